"""Modules as regions: parameters, buffers, hooks, flags, attributes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch_features import VERSION

import subclass_trace as st
from subclass_trace.zoo import TwoTensor


def check_training(make, x, steps=3, lr=0.1, **options) -> None:
    torch.manual_seed(0)
    eager = make()
    compiled = copy.deepcopy(eager)
    region = st.compile(compiled, **options)
    for which, model, call in ((0, eager, eager), (1, compiled, region)):
        torch.manual_seed(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for _ in range(steps):
            optimizer.zero_grad()
            call(x).pow(2).mean().backward()
            optimizer.step()
    for (name, a), (_, b) in zip(eager.state_dict().items(), compiled.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, msg=lambda m, name=name: f"{name}: {m}")
    for a, b in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert len(region.specializations) == 1


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.out = nn.Linear(4, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.embed(x.long().abs() % 5))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(4, 4),
        lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)),
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()),
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
        lambda: nn.Sequential(*[nn.Linear(4, 4)] * 3),
        Tied,
        lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    ],
    ids=[
        "linear",
        "layernorm",
        "batchnorm",
        "dropout",
        "shared module",
        "tied",
        "transformer",
        "weight norm",
        "spectral norm",
    ],
)
def test_training_a_module(make) -> None:
    check_training(make, torch.randn(3, 4))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_an_rnn(kind: type[nn.Module]) -> None:
    """It keeps weak references to its weights, which are read as what they lead to."""
    rnn, x = kind(4, 3, batch_first=True), torch.randn(2, 5, 4)
    region = st.compile(rnn)
    for _ in range(2):
        torch.testing.assert_close(region(x)[0], rnn(x)[0])
        with torch.no_grad():
            rnn.weight_hh_l0.mul_(0.5)
    assert len(region.specializations) <= 1  # the last two change the shape of a tensor in place: they may run eagerly


def test_parameters_replaced_and_retyped_between_calls() -> None:
    m = nn.Linear(2, 2)
    region, x = st.compile(m), torch.randn(1, 2)

    def same():
        torch.testing.assert_close(region(x).detach(), m(x).detach())

    same()
    m.weight = nn.Parameter(torch.randn(2, 2))
    same()
    assert len(region.specializations) == 1
    m.weight.requires_grad_(False)
    same()
    m.bias = None
    same()
    m.weight = nn.Parameter(torch.randn(3, 2))
    same()
    m.double()
    x = x.double()
    same()
    m.weight = nn.Parameter(TwoTensor(m.weight.detach(), m.weight.detach() * 2))
    assert type(region(x)) is TwoTensor


def test_buffers_added_replaced_and_written() -> None:
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x * self.count

    m = M()
    region = st.compile(m)
    assert [region(torch.ones(1)).item() for _ in range(3)] == [1, 2, 3]
    assert m.count.item() == 3 and type(m.count) is torch.Tensor
    m.count = torch.full((), 10.0)
    assert region(torch.ones(1)).item() == 11


def test_attributes_that_forward_assigns() -> None:
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count = self.count + 1
            self.last = x + 1
            return x * self.count

    m = M()
    region = st.compile(m)
    assert [region(torch.ones(1) * k).item() for k in range(1, 4)] == [1, 4, 9]
    assert m.count.item() == 3 and m.last.item() == 4 and type(m.last) is torch.Tensor


def test_module_hooks_run() -> None:
    m = nn.Linear(2, 2)
    m.register_forward_hook(lambda mod, args, out: out * 3)
    m.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
    x = torch.randn(1, 2)
    torch.testing.assert_close(st.compile(m)(x), m(x))


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_backward_hook_of_a_module_that_comes_later(register: str) -> None:
    m = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    region = st.compile(m)
    for later in (False, True):
        if later:
            getattr(m[1], register)(lambda mod, *grads: (grads[0][0] * 3,))
        x = torch.ones(1, 2, requires_grad=True)
        got, want = (torch.autograd.grad(f(x).sum(), x) for f in (region, m))
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("values", [(2, 2.0, True), (0.0, -0.0), ((1, 2), (1, 2.0)), (2, torch.ones(3))], ids=str)
def test_an_attribute_of_a_module_that_changes_its_type_or_sign(values: tuple[object, ...]) -> None:
    class Scale(nn.Module):
        scale: object

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.scale[-1] if isinstance(self.scale, tuple) else self.scale)

    m, x = Scale(), torch.arange(3)
    region = st.compile(m)
    for value in values:
        m.scale = value
        got, want = region(x), m(x)
        assert got.dtype is want.dtype
        torch.testing.assert_close(1 / got, 1 / want)


def test_module_as_an_argument() -> None:
    region = st.compile(lambda m, x: m(x))
    a, b, x = nn.Linear(2, 2), nn.Linear(2, 2), torch.randn(1, 2)
    for m in (a, b, a):
        out = region(m, x)
        torch.testing.assert_close(out, m(x))
        m.zero_grad()
        out.sum().backward()
        assert m.weight.grad is not None


def test_dynamo_from_the_start() -> None:
    def branch(x):
        return x.sin() if x.sum() > 0 else x.cos()

    region = st.compile(branch, frontend="dynamo")  # no warning: it was asked for
    for x in (torch.ones(2), -torch.ones(2)):
        assert torch.equal(region(x), branch(x))
    assert not region.specializations and 'frontend="dynamo"' in region.explain()


class Reading(torch.nn.Module):
    """Dynamo compiles the little or the much that stands around the reading of a value."""

    def __init__(self, *, reads: int) -> None:
        super().__init__()
        self.reads, self.seen = reads, 0.0

    def forward(self, x):
        self.seen = x.sum().item() if x.sum() > 0 else -1.0
        for _ in range(self.reads):
            x = x.sin() * 2
        return x + self.seen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reads", [1, 40])
def test_what_dynamo_compiles_little_of_runs_eagerly(reads: int) -> None:
    model = Reading(reads=reads)
    region = st.compile(model, frontend="auto")
    for _ in range(5):
        x = torch.randn(2, 5, 3)
        assert torch.equal(region(x), model(x))
    assert region.explain().startswith("served by torch.compile")
    if VERSION < (2, 13):  # Dynamo leaves out the whole frame
        return
    assert ("it runs eagerly" in region.explain()) is (reads < 40)


@pytest.mark.parametrize("retain", [False, True])
def test_a_model_of_wrappers_is_converted_while_the_last_loss_is_there(retain: bool) -> None:
    """Torch cannot swap a parameter to which something has a weak reference."""

    def run(wrap: Callable[[nn.Module], nn.Module]) -> list[Any]:
        torch.manual_seed(0)
        model, found = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)), []
        for layer in (model[0], model[2]):
            layer.weight = nn.Parameter(TwoTensor(layer.weight.detach(), layer.weight.detach() * 2))
        call = wrap(model)
        for dtype in (torch.float32, torch.float64):
            loss = call(torch.ones(2, 4, dtype=dtype)).square().mean()
            if retain:
                loss.backward(retain_graph=True)
            loss.backward()
            found += [loss.detach().a, model[0].weight.grad.a.clone()]
            model.double()
        return found

    torch.testing.assert_close(run(st.compile), run(lambda m: m))
