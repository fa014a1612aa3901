"""Named programs, eager against compiled: aliasing, mutation and outputs, over dense tensors and wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as s
from oracle import Inputs, backward_of, check
from torch import nn
from wrappers import Scaled, biased, dense, masked, nested, scaled, two

from subclass_trace.zoo import TwoTensor

KINDS: dict[str, Callable[..., Any]] = {
    "dense": dense,
    "two": two,
    "nested": nested,
    "scaled": scaled,
    "biased": biased,
    "masked": masked,
}
POINTWISE = ("dense", "two", "nested", "masked")


# ---------------------------------------------------------------------------------------------- one input, nothing else
def _no_grad_add(x):
    with torch.no_grad():
        x.add_(1)
    return x * 2


def _swap(x):
    t = x.clone()
    x.copy_(x.flip(0))
    return t, x


UNARY: dict[str, Callable[[Any], Any]] = {
    "input itself": lambda x: x,
    "input twice": lambda x: (x, x),
    "view": lambda x: x.view(-1),
    "view chain": lambda x: x.view(-1)[1:].unsqueeze(0),
    "two views": lambda x: (x[0], x[1:]),
    "view twice": lambda x: (v := x.view(-1), (v, v))[1],
    "value twice": lambda x: (v := x * 2, (v, v))[1],
    "value and detach": lambda x: (v := x * 2, (v, v.detach()))[1],
    "input and detach": lambda x: (x, x.detach()),
    "split": lambda x: x.split(1),
    "unbind": lambda x: x.unbind(0),
    "split of value": lambda x: (x * 2).split(1),
    "views of value": lambda x: (v := x * 2, (v[0], v[1:], v.view(-1)))[1],
    "views and their base": lambda x: (v := x * 2, (v[0], v))[1],
    "transpose": lambda x: x.transpose(0, 1),
    "expand": lambda x: x.expand(2, 3, 3),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "nothing": lambda x: None,
    "number": lambda x: (x.dim(), x * 2),
    "add_": lambda x: x.add_(1),
    "add_ and use": lambda x: (x.add_(1), x * 2)[1],
    "add_ of a view": lambda x: (x[0].add_(1), x * 2)[1],
    "mul_ of a view chain": lambda x: (x.view(-1)[1:4].mul_(2), x)[0],
    "copy_": lambda x: x.copy_(x * 2),
    "zero_": lambda x: x.zero_(),
    "fill a row": lambda x: x.__setitem__(0, 5.0),
    "no_grad add_": _no_grad_add,
    "data add_": lambda x: (x.data.add_(1), x * 2)[1],
    "detach add_": lambda x: (x.detach().add_(1), x * 2)[1],
    "view first, mutate, read": lambda x: (v := x[0], x.add_(1), v * 2)[2],
    "foreach": lambda x: (torch._foreach_add_([x], 1.0), x)[1],
    "unsqueeze_": lambda x: (x.unsqueeze_(0), x * 2)[1],
    "t_": lambda x: (x.t_(), x * 2)[1],
    "clone mutated": lambda x: (c := x.clone(), c.add_(1), c)[2],
    "view of value mutated": lambda x: (v := x * 2, v[0].add_(1), v)[2],
    "two of one view mutated": lambda x: (v := x * 2, a := v[0], b := v[0], a.add_(1), b)[4],
    "swap": _swap,
}
#: AccumulateGrad copies the caller's tangent in eager, by an operation that these classes do not keep (or do not have)
COPIED_TANGENT = {"clone", "clone mutated"}


@pytest.mark.parametrize(
    ("kind", "grad"),
    [
        pytest.param(k, g, marks=() if k == "two" or (k == "dense" and g == "nonleaf") else pytest.mark.slow)
        for k in KINDS
        for g in ("no", "leaf", "nonleaf")
    ],
)
@pytest.mark.parametrize("name", UNARY)
def test_one_input(name: str, kind: str, grad: str) -> None:
    def make(call: int) -> Inputs:
        w = KINDS[kind](3, 3, seed=4 + 2 * call)
        if grad == "no":
            return Inputs((w,))
        w.requires_grad_()
        return Inputs((w if grad == "leaf" else w * 1,), (w,))

    if grad == "no" or (name in COPIED_TANGENT and kind in ("scaled", "biased", "masked")):
        backward = None
    else:
        backward = backward_of((0, 1, 2))
    check(UNARY[name], make, backward=backward, specializations=1)


# ---------------------------------------------------------------------------------------------- two inputs that share memory
def _pair(kind: str, how: str, seed: int) -> tuple[Any, Any]:
    x = KINDS[kind](4, seed=seed)
    if how == "same":
        return x, x
    if how == "view":
        return x, x[1:]
    if how == "disjoint":
        big = KINDS[kind](8, seed=seed)
        return big[:4], big[4:]
    if how == "overlap":
        big = KINDS[kind](6, seed=seed)
        return big[:4], big[2:]
    if how == "detach":
        return x, x.detach()
    i, j, k = (dense(4, seed=seed + n) for n in range(3))
    if how == "inner":
        return TwoTensor(i, j), i
    if how == "shared inner":
        return TwoTensor(i, j), TwoTensor(i, k)
    if how == "crossed":
        return TwoTensor(i, j), TwoTensor(j, i)
    if how == "inner twice":
        return TwoTensor(i, i), k
    if how == "inner view":
        return TwoTensor(i, j), i[1:]
    assert how == "shared scale"
    scale = torch.tensor(0.5)
    return Scaled(i, scale), Scaled(j, scale)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "read": lambda x, y: (x * 2, y * 3),
    "write x, read y": lambda x, y: (x.mul_(2), y * 3)[1],
    "write y, read x": lambda x, y: (y.mul_(2), x * 3)[1],
    "write both": lambda x, y: (x.mul_(2), y.mul_(3), x * 1, y * 1)[2:],
    "read, write, read": lambda x, y: (a := y * 1, x.mul_(2), y * 1 - a.sum())[2],
    "return both": lambda x, y: (x, y),
    "write x, return y": lambda x, y: (x.mul_(2), y)[1],
    "view of y after writing x": lambda x, y: (x.mul_(2), y[1:])[1],
}
BY_KIND = ("same", "view", "disjoint", "overlap", "detach")
SPECIAL = ("inner", "shared inner", "crossed", "inner twice", "inner view", "shared scale")
PAIRS = [(k, h) for h in BY_KIND for k in ("dense", "two", "nested", "scaled")] + [("two", h) for h in SPECIAL]


@pytest.mark.parametrize(
    ("kind", "how"), [pytest.param(k, h, marks=() if k == "two" else pytest.mark.slow) for k, h in PAIRS]
)
@pytest.mark.parametrize("name", BINARY)
def test_inputs_that_share_memory(name: str, kind: str, how: str) -> None:
    check(BINARY[name], lambda call: Inputs(_pair(kind, how, 3 + 2 * call)), specializations=1)


@pytest.mark.parametrize("how", ["same", "disjoint", "overlap", "detach"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=() if kind == "two" else pytest.mark.slow)
        for name in BINARY
        for kind in ("dense", "two", "nested")
    ],
)
def test_inputs_that_share_memory_and_require_grad(name: str, kind: str, how: str) -> None:
    def make(call: int) -> Inputs:
        w = KINDS[kind](8, seed=3 + 2 * call).requires_grad_()
        y = w * 1
        pairs = {
            "same": lambda: (y, y),
            "disjoint": lambda: (y[:4], y[4:]),
            "overlap": lambda: (y[:5], y[3:]),
            "detach": lambda: (y, y.detach()),
        }
        return Inputs(pairs[how](), (w,))

    check(BINARY[name], make, backward=backward_of((0, 1)), specializations=1)


# ---------------------------------------------------------------------------------------------- modules
LAYERS = {
    "linear": lambda: nn.Linear(4, 4),
    "layernorm": lambda: nn.LayerNorm(4),
    "batchnorm": lambda: nn.BatchNorm1d(4),
    "relu": nn.ReLU,
    "inplace relu": lambda: nn.ReLU(inplace=True),
    "dropout": lambda: nn.Dropout(0.3),
    "gelu": nn.GELU,
}


class Tied(nn.Module):
    """The same weight twice, beside a buffer that counts calls."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.one, self.two = body, nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.calls.add_(1)
        return self.two(self.body(self.one(x))) * self.calls


@settings(max_examples=25)
@given(
    s.lists(s.sampled_from(sorted(LAYERS)), min_size=1, max_size=4),
    s.booleans(),
    s.lists(s.booleans(), min_size=2, max_size=3),
)
def test_generated_modules(names: list[str], tied: bool, training: list[bool]) -> None:
    import copy

    import subclass_trace as st

    torch.manual_seed(0)
    body = nn.Sequential(*[LAYERS[n]() for n in names])
    eager: nn.Module = Tied(body) if tied else body
    other = copy.deepcopy(eager)
    region = st.compile(other)
    for step, flag in enumerate(training):
        results = []
        for module, call in ((eager, eager), (other, region)):
            module.train(flag).zero_grad()
            torch.manual_seed(step)
            x = dense(5, 4, seed=step).requires_grad_() * 1
            loss = call(x).pow(2).sum()
            try:
                loss.backward()
            except RuntimeError:
                if call is eager:  # two in-place activations in a row: eager refuses the program
                    assume(False)
                raise
            with torch.no_grad():
                for p in module.parameters():
                    if p.grad is not None:
                        p.sub_(0.01 * p.grad)
            results.append((module.state_dict(), [p.grad for p in module.parameters()], torch.get_rng_state()))
        torch.testing.assert_close(results[1], results[0])
    asks = not {"batchnorm", "dropout"}.isdisjoint(names)  # is it training?
    assert len(region.specializations) == (len(set(training)) if asks else 1)
