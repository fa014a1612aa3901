"""Attributes of the user's objects that no code of a region reads are not compared; all others are."""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st

Tensor = torch.Tensor
NAME = "sca" + "le"
get = getattr
FORMAT = "{0.scale}"


class Trainer:
    __match_args__ = ("scale",)

    def __init__(self) -> None:
        self.model, self.weight, self.epoch, self.name = nn.Linear(3, 3), torch.ones(3), 0, "start"
        self.losses, self.log, self.best, self.scale = list[float](), {"step": [0]}, None, 1.0
        self.other = Other()

    def next(self, k: int) -> None:
        """Between two calls."""
        self.losses.append(float(k))
        self.log["step"].append(k)
        self.other.seen[k] = "seen"
        self.epoch, self.name, self.best, self.scale = k + 1, f"epoch {k}", k * 0.5, k + 2.0
        if k == 2:
            self.losses, self.other = [], Other()


class Other:
    def __init__(self) -> None:
        self.seen: dict[int, str] = {}
        self.scale = 1.0


@dataclasses.dataclass
class Config:
    scale: float = 1.0
    comment: str = ""

    def next(self, k: int) -> None:
        self.scale, self.comment = k + 2.0, f"at {k}"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.history, self.step, self.scale = nn.Linear(3, 3), list[float](), 0, 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def next(self, k: int) -> None:
        self.history.append(float(k))
        self.step, self.scale = k, k + 2.0
        self.train(k % 2 == 0)


class Read(torch.autograd.Function):
    """Its backward alone reads the object that it keeps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Any) -> Tensor:
        ctx.kept = kept
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.kept.scale, None


def matched(t: Any, x: Tensor) -> Tensor:
    match t:
        case Trainer(scale):
            return x * scale
    return x


def hooked(t: Any, x: Tensor) -> Tensor:
    y = x * 1
    y.register_hook(lambda grad: grad * t.scale)
    return y


def whole_step(t: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        w = (x * 1).requires_grad_()
        (g,) = torch.autograd.grad(Read.apply(w * 2, t).sum(), w)
    return x * g


#: what a region does with an object, and whether a change of ``scale`` may be no other trace
PROGRAMS: dict[str, tuple[Callable[[], Any], Callable[[Any, Tensor], Any], bool]] = {
    "a trainer": (Trainer, lambda t, x: t.model(x) * t.weight, True),
    "a module": (Model, lambda t, x: t(x), True),
    "a dataclass": (Config, lambda t, x: x * 2 if t is not None else x, True),
    "getattr of a constant name": (Trainer, lambda t, x: x * getattr(t, "factor", 2.0) * hasattr(t, "zz"), True),
    "a call of eval": (Model, lambda t, x: t.eval()(x), False),
    "getattr with a default": (Trainer, lambda t, x: x * getattr(t, NAME, "none"), False),
    "an attribute": (Trainer, lambda t, x: x * t.scale, False),
    "of another object": (Trainer, lambda t, x: x * t.other.scale + len(t.other.seen), False),
    "getattr": (Trainer, lambda t, x: x * getattr(t, NAME), False),
    "another name for getattr": (Trainer, lambda t, x: x * get(t, NAME), False),
    "a partial of getattr": (Trainer, lambda t, x: x * functools.partial(getattr, t)(NAME), False),
    "a getter": (Trainer, lambda t, x: x * operator.attrgetter("scale")(t), False),
    "vars": (Trainer, lambda t, x: x * vars(t)[NAME], False),
    "a copy": (Trainer, lambda t, x: x * [*copy.copy(t).__dict__.values()][7], False),
    "a pattern": (Trainer, matched, False),
    "a format": (Trainer, lambda t, x: x * float(FORMAT.format(t)), False),
    "the fields of a dataclass": (Config, lambda t, x: x * [*dataclasses.astuple(t)][0], False),
    "a dataclass compared": (Config, lambda t, x: x * (t == Config(3.0, "at 1")), False),
    "a hook": (Trainer, hooked, False),
    "a backward": (Trainer, lambda t, x: Read.apply(x, t), False),
    "a backward inside": (Trainer, whole_step, False),
}


@pytest.mark.parametrize("by_argument", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sweep(every=4)
def test_as_in_eager(name: str, by_argument: bool) -> None:
    make, function, unread = PROGRAMS[name]
    rows = []
    for compiled in (False, True):
        torch.manual_seed(0)
        thing = make()
        region: Any = function if by_argument else functools.partial(function, thing)
        region = st.compile(region) if compiled else region
        rows.append(found := [])
        for k in range(6):
            x = torch.full((2, 3), float(k), requires_grad=True)
            y = region(thing, x) if by_argument else region(x)
            found += [y.detach(), *torch.autograd.grad(y.sum(), x)]
            thing.next(k)
    assert all(map(torch.equal, *rows))
    if unread:
        assert len(region.specializations) == 1


def test_what_a_later_backward_reads() -> None:
    """Its guards are those of the function, which has not read it."""
    thing = Trainer()

    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return Read.apply(grad * ctx.saved_tensors[0], thing)

    region = st.compile(lambda x: Outer.apply(x))
    for k in range(3):
        seen = []
        for f in (Outer.apply, region):
            x = torch.ones(3, requires_grad=True)
            (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            seen.append(torch.autograd.grad(g.sum(), x)[0])
        assert torch.equal(*seen)
        thing.next(k)


def _named(x: torch.Tensor, name: str = "") -> torch.Tensor:
    return x * 2


def _rest(x: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
    return x * 2


def _stored(x: torch.Tensor, step: int) -> torch.Tensor:
    step = 3  # noqa: F841  # no read
    return x * 2


def _in_a_cell(x: torch.Tensor, scale: float) -> torch.Tensor:
    return (lambda: x * scale)()


def _by_locals(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * locals()["scale"]


class _Module(torch.nn.Module):
    def forward(self, x: torch.Tensor, epoch: int = 0, scale: float = 1.0) -> torch.Tensor:
        return x * scale


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (_named, [((), {"name": f"sample {k}"}) for k in range(12)]),
        (_named, [((f"sample {k}",), {}) for k in range(12)]),
        (_rest, [((k, str(k)), {"key": k}) for k in range(12)]),
        (_stored, [((k,), {}) for k in range(12)]),
        (_Module(), [((), {"epoch": k}) for k in range(12)]),
        (_Module().forward, [((k,), {}) for k in range(12)]),
    ],
)
def test_arguments_that_no_code_loads(function: Any, calls: list[tuple[Any, Any]]) -> None:
    region = st.compile(function)
    for args, kwargs in calls:
        assert torch.equal(region(torch.ones(2), *args, **kwargs), function(torch.ones(2), *args, **kwargs))
    assert len(region.specializations) == 1


@pytest.mark.parametrize("function", [_in_a_cell, _by_locals, _Module()])
def test_arguments_that_code_loads_in_another_way(function: Any) -> None:
    region = st.compile(function)
    key = "scale"
    for scale in (2.0, 3.0, 5.0):
        expected = function(torch.ones(2), **{key: scale})
        assert torch.equal(region(torch.ones(2), **{key: scale}), expected)


def test_hooks_see_all_arguments() -> None:
    module = _Module()
    seen: list[int] = []
    module.register_forward_hook(lambda m, args, kwargs, out: out * kwargs["epoch"], with_kwargs=True)
    region = st.compile(module)
    for epoch in (2, 3):
        assert torch.equal(region(torch.ones(2), epoch=epoch), module(torch.ones(2), epoch=epoch))
    assert seen == []
