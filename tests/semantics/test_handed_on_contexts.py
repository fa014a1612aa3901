"""Results have the very objects that the contexts of inputs hold: such calls run eagerly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor


@dataclasses.dataclass
class Config:
    scale: float = 1.0
    parts: list[float] = dataclasses.field(default_factory=lambda: [1.0])


def scale_of(c: Any) -> float:
    if isinstance(c, tuple):
        return scale_of(c[0])
    if isinstance(c, list):
        return float(c[0])
    if isinstance(c, dict):
        return scale_of(c["inner"]) if "inner" in c else float(c["scale"])
    return float(c.scale * c.parts[0])


class Scaled(Tensor):
    """``sin`` and ``cos`` (the backward of ``sin``) are multiplied with what the context says. ``neg`` gets a copy of it."""

    a: Tensor
    c: Any

    @staticmethod
    def __new__(cls, a: Tensor, c: Any) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype)

    def __init__(self, a: Tensor, c: Any) -> None:
        self.a, self.c = a, c

    def __tensor_flatten__(self) -> Any:
        return ["a"], self.c

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        c = next(t.c for t in args if isinstance(t, cls))
        out = func(*[t.a if isinstance(t, cls) else t for t in args], **(kwargs or {}))
        if func in (torch.ops.aten.sin.default, torch.ops.aten.cos.default):
            out = out * scale_of(c)
        return cls(out, copy_of(c) if func is torch.ops.aten.neg.default else c)


def copy_of(c: Any) -> Any:
    return dataclasses.replace(c) if isinstance(c, Config) else type(c)(c)


class Inside(Scaled):
    """The object is inside of a context that is made anew each time."""

    def __tensor_flatten__(self) -> Any:
        return ["a"], {"c": self.c, "more": (1, [2])}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context["c"])


def change(c: Any, scale: float) -> None:
    if isinstance(c, tuple):
        change(c[0], scale)
    elif isinstance(c, list):
        c[0] = scale
    elif isinstance(c, dict):
        if "inner" in c:
            change(c["inner"], scale)
        else:
            c["scale"] = scale
    else:
        c.scale = scale


CONTEXTS: dict[str, Callable[[], Any]] = {
    "dataclass": Config,
    "list": lambda: [1.0, "rest"],
    "dict": lambda: {"scale": 1.0},
    "in a tuple": lambda: ({"scale": 1.0}, 3),
    "in a dict": lambda: {"inner": Config(), "name": "x"},
}
KINDS = [
    pytest.param(cls, make, id=f"{cls.__name__} {name}") for cls in (Scaled, Inside) for name, make in CONTEXTS.items()
]


def inner(c: Any) -> Any:
    """The object that can be changed."""
    return c[0] if isinstance(c, tuple) else c


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize(("cls", "make"), KINDS)
def test_results_have_the_object_of_the_input(cls: Any, make: Any, trains: bool) -> None:
    def function(x: Any, y: Any) -> Any:
        return x.exp(), y.exp() * x, x.neg(), x.view(-1), x.exp().view(3), x.detach()

    region, found = st.compile(function), []
    for call in (function, region, region):
        x, y = (cls(torch.ones(3), make()).requires_grad_(trains) for _ in range(2))
        results = call(x, y)
        change(x.c, 5.0)
        rows = [[inner(r.c) is inner(x.c), inner(r.c) is inner(y.c), scale_of(r.c)] for r in results]
        found.append([rows, [r.sin().a.tolist() for r in results]])
    assert found[0] == found[1] == found[2] and not region.specializations
