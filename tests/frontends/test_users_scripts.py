"""What scripts of users showed: each compared with eager mode."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor

import subclass_trace as st

Step = Callable[..., Any]


def parameters_after(model: nn.Module, wrap: Callable[[Step], Step], step: Step, calls: int) -> list[torch.Tensor]:
    wrapped = wrap(step)
    for k in range(calls):
        torch.manual_seed(k)
        wrapped(k)
    return [p.detach().clone() for p in model.parameters()]


# ---------------------------------------------------------------------------------------------- learning rate 0
@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.sweep(every=6)
def test_a_step_that_dynamo_serves_takes_a_rate_of_zero(kind: Any, options: dict[str, Any]) -> None:
    """`torch.compile` alone makes NaN of weights whose moments are 0."""

    def trained(wrap: Callable[[Step], Step]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 1))
        optimizer = kind(model.parameters(), lr=1e-2, **options)

        def step(k: int) -> torch.Tensor | None:
            loss = model(torch.tensor([0, 1])).square().mean()
            if loss > 1e3:
                return None
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        def scheduled(k: int) -> None:
            optimizer.param_groups[0]["lr"] = 0.005 * (1 + math.cos(math.pi * k / 4))
            wrapped(k)

        wrapped = wrap(step)
        return parameters_after(model, lambda f: f, scheduled, 6)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = trained(lambda f: st.compile(f, frontend="auto"))
    torch.testing.assert_close(found, trained(lambda f: f), rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------------------------------- exceptions
class Stops(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError, SystemExit, Stops])
def test_what_was_done_before_any_exception_stands(error: type[BaseException]) -> None:
    def trained(wrap: Callable[[Step], Step]) -> Any:
        model, count = nn.Linear(2, 1), [0]
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        @wrap
        def step(x: torch.Tensor) -> None:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            count[0] += 1
            if count[0] == 2:
                raise error("enough")

        raised = []
        for _ in range(4):
            try:
                step(torch.ones(1, 2))
            except error:
                raised.append(count[0])
        return raised, count, model.weight.tolist()

    assert trained(st.compile) == trained(lambda f: f)


# ---------------------------------------------------------------------------------------------- layers
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm": (lambda: nn.LSTM(4, 4), (3, 2, 4)),
    "lstm, dropout between": (lambda: nn.LSTM(4, 4, num_layers=2, dropout=0.2, batch_first=True), (2, 3, 4)),
    "lstm, both directions": (lambda: nn.LSTM(4, 4, bidirectional=True), (3, 2, 4)),
    "gru, batch first": (lambda: nn.GRU(4, 4, batch_first=True), (2, 3, 4)),
    "pooling of channels_last": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)).to(memory_format=torch.channels_last),
        (2, 3, 5, 5),
    ),
}


@pytest.mark.parametrize("whole", [True, False], ids=["whole step", "model"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.sweep(every=4)
def test_layers_train_by_our_trace(name: str, whole: bool) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    first = make()

    def trained(wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
        model = copy.deepcopy(first)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        called = model if whole else wrap(model)

        def step(k: int) -> None:
            x = torch.randn(shape)
            x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
            out = called(x)
            (out[0] if isinstance(out, tuple) else out).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return parameters_after(model, wrap if whole else lambda f: f, step, 3)

    with warnings.catch_warnings():
        warnings.simplefilter("error", st.HandOverWarning)
        warnings.filterwarnings("error", message="a call of a region runs eagerly")
        found = trained(st.compile)
    assert all(map(torch.equal, found, trained(lambda f: f)))


# ---------------------------------------------------------------------------------------------- others
def test_no_tensor_is_a_fake_to_the_code_of_the_user() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        seen = [isinstance(x, FakeTensor), isinstance(y, (FakeTensor, int)), type(y) is FakeTensor]
        return y + 1 if any(seen) else y + 2

    assert st.compile(f)(torch.ones(1)).item() == f(torch.ones(1)).item() == 5


def test_an_attribute_that_each_call_makes_anew_is_waited_for_once() -> None:
    """A fused optimizer gets its scale from the scaler, and gives it back."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def step(x: torch.Tensor) -> None:
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    region = st.compile(step)
    for _ in range(5):
        region(torch.randn(3, 4))
    assert len(region.specializations) == 1


@pytest.mark.filterwarnings("ignore")
def test_a_class_that_counts_what_it_is_asked_is_asked_what_eager_mode_asks() -> None:
    class Counts(torch.Tensor):
        asked: list[str] = []

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.asked.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    region, x = st.compile(lambda x: x * 2, frontend="auto"), torch.ones(3).as_subclass(Counts)
    for _ in range(3):
        Counts.asked.clear()
        region(x)
        assert Counts.asked == ["mul"]


def _plus(of: int) -> Callable[..., Any]:
    """A hook that adds to the value at this place."""
    return lambda *given: tuple(v + 100 for v in given[of]) if isinstance(given[of], tuple) else given[of] + 100


@pytest.mark.parametrize(
    "register", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]
)
@pytest.mark.parametrize("module", [True, False])
def test_a_region_inside_of_another_has_its_hooks(register: str, module: bool) -> None:
    of = {"register_forward_hook": 2}.get(register, 1)
    seen = []
    for wrap in (lambda f: f, st.compile):
        torch.manual_seed(0)
        inner = wrap(nn.Linear(2, 2))
        outer = wrap(nn.Sequential(inner, nn.Tanh()) if module else lambda x, inner=inner: inner(x).tanh())
        rows = []
        for k in range(5):
            if k == 1:
                handle = getattr(inner, register)(_plus(of))
            if k == 4:
                handle.remove()
            x = torch.full((1, 2), 0.1, requires_grad=True)
            out = outer(x)
            out.sum().backward()
            rows.append((out.tolist(), x.grad.tolist()))  # type: ignore[union-attr]
        seen.append(rows)
    for expected, found in zip(*seen, strict=True):
        torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(expected[0]))
        torch.testing.assert_close(torch.tensor(found[1]), torch.tensor(expected[1]))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm])
def test_a_gradient_penalty_takes_batches_of_all_sizes(norm: Any) -> None:
    """A backward that holds for one size alone is no error of the next one."""
    models = [nn.Sequential(nn.Linear(3, 4), norm(4)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    calls = [models[0], st.compile(models[1])]
    for size in (2, 3, 4, 5):
        found = []
        for call in calls:
            torch.manual_seed(size)
            x = torch.randn(size, 3, requires_grad=True)
            (g,) = torch.autograd.grad(call(x).sin().sum(), x, create_graph=True)
            g.square().sum().backward()
            found.append((g.detach(), x.grad))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "f",
    [lambda x: x.quantile(0.3, dim=0), lambda x: torch.stft(x, 8, window=x.detach()[:8], return_complex=True).abs()],
)
def test_shapes_that_torch_changes_in_place(f: Any) -> None:
    region, found = st.compile(f, frontend="trace"), []
    for call in (f, region):
        torch.manual_seed(0)
        x = torch.randn(32, requires_grad=True)
        out = call(x)
        out.sum().backward()
        found.append((out.detach(), x.grad))
    torch.testing.assert_close(*found)
    assert len(region.specializations) == 1
