"""Contexts that change in place between calls: what the operations of the class read is as in eager."""

from __future__ import annotations

import dataclasses
import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

import subclass_trace as st

Tensor = torch.Tensor


class Held(Tensor):
    """One inner tensor, and anything as context. ``read``: what ``sin`` takes of the context, as a factor."""

    a: Tensor
    held: Any
    read: Callable[[Any], Any] = lambda held: 1

    @staticmethod
    def __new__(cls, a: Tensor, held: Any) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a: Tensor, held: Any) -> None:
        self.a, self.held = a, held

    def __tensor_flatten__(self) -> Any:
        return ["a"], self.held

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        held = next(t.held for t in tree_leaves((args, kwargs)) if isinstance(t, cls))
        dense_args, dense_kwargs = tree_map_only(cls, lambda t: t.a, (args, kwargs or {}))
        out = func(*dense_args, **dense_kwargs)
        if func is torch.ops.aten.sin.default:
            out = out * cls.read(held)
        out = tree_map_only(Tensor, lambda t: cls(t, held), out)
        return return_and_correct_aliasing(func, args, kwargs or {}, out)


class Box:
    def __init__(self, v: Any) -> None:
        self.v = v


class Slotted:
    __slots__ = ("v",)

    def __init__(self, v: Any) -> None:
        self.v = v


class Valued(Box):
    """Equal by value."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Valued) and self.v == other.v

    def __hash__(self) -> int:
        return hash(self.v)


class Derived(Box):
    @functools.cached_property
    def doubled(self) -> float:
        return float(2 * self.v)


@dataclasses.dataclass(frozen=True)
class Frozen:
    v: list[float]


@dataclasses.dataclass
class Counted:
    v: float = 1.0
    step: int = 0


@dataclasses.dataclass(slots=True)
class CountedSlots:
    v: float = 1.0


@dataclasses.dataclass
class Uncompared:
    """A field that its ``==`` leaves out is read as well."""

    v: float = dataclasses.field(default=1.0, compare=False)


def _scaled(v: list[float], by: float = 1.0) -> float:
    return v[0] * by


def _set(held: Any) -> None:
    held.v = 3.0


def _count(held: Any) -> None:
    held.v += 2.0


def _append(held: Any) -> None:
    held.append(2.0)


def _put(held: Any) -> None:
    held["v"] = 3.0


def _with(held: Any, **attributes: Any) -> Any:
    vars(held).update(attributes)
    return held


_CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], None], Callable[[Any], Any]]] = {
    "object": (lambda: Box(1.0), _set, lambda h: h.v),
    "object that counts": (lambda: Box(1.0), _count, lambda h: h.v),
    "object with slots": (lambda: Slotted(1.0), _set, lambda h: h.v),
    "object with its own equality": (lambda: Valued(1.0), _set, lambda h: h.v),
    "object in a tuple": (lambda: (Box(1.0), 1), lambda h: _set(h[0]), lambda h: h[0].v),
    "object in an object": (lambda: Box(Box(1.0)), lambda h: _set(h.v), lambda h: h.v.v),
    "object in a dict": (lambda: {"k": [Box(1.0)]}, lambda h: _set(h["k"][0]), lambda h: h["k"][0].v),
    "list in an object": (lambda: Box([1.0]), lambda h: _append(h.v), lambda h: sum(h.v)),
    "frozen dataclass with a list": (lambda: Frozen([1.0]), lambda h: _append(h.v), lambda h: sum(h.v)),
    "dataclass": (Counted, _set, lambda h: dataclasses.asdict(h)["v"]),
    "dataclass with slots": (CountedSlots, _set, lambda h: h.v),
    "field that is not compared": (Uncompared, _set, lambda h: h.v),
    "what a dataclass holds beside its fields": (
        lambda: _with(Counted(), extra=1.0),
        lambda h: setattr(h, "extra", 3.0),
        lambda h: h.extra,
    ),
    "SimpleNamespace": (lambda: types.SimpleNamespace(v=1.0), _set, lambda h: h.v),
    "default of a function": (
        lambda: types.FunctionType(_scaled.__code__, globals(), "f", ([1.0], 1.0)),
        lambda h: setattr(h, "__defaults__", ([3.0], 1.0)),
        lambda h: h(),
    ),
    "dict": (lambda: {"v": 1.0}, _put, lambda h: h["v"]),
}


def _run(call: Callable[[Tensor], Any], held: Any, change: Callable[[Any], None], read: Any) -> list[float]:
    Held.read = read
    x = Held(torch.ones(1), held)
    found = [call(x).a.item(), call(x).a.item()]
    change(held)
    return [*found, call(x).a.item(), call(x).a.item()]


@pytest.mark.parametrize("name", _CASES)
def test_a_change_in_place_is_seen(name: str) -> None:
    make, change, read = _CASES[name]
    region = st.compile(lambda x: x.sin())
    expected = _run(lambda x: x.sin(), make(), change, read)
    assert expected[0] != expected[2]
    assert _run(region, make(), change, read) == expected
    assert len(region.specializations) == 2


_INSIDE = [
    "object",
    "object that counts",
    "list in an object",
    "frozen dataclass with a list",
    "default of a function",
    "dict",
]


@pytest.mark.parametrize("name", _INSIDE)
def test_a_change_inside_a_region_runs_eagerly(name: str) -> None:
    make, change, read = _CASES[name]
    Held.read = lambda held: change(held) or 1
    seen = []
    for call in (lambda f: f, st.compile):
        x = Held(torch.ones(1), make())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(lambda x: x.sin())(x)
        seen.append(read(x.held))
    assert seen[0] == seen[1] and "flatten context" in str(caught[0].message)


def test_what_a_class_remembers_is_no_change() -> None:
    Held.read = lambda held: held.doubled
    region = st.compile(lambda x: x.sin())
    held = Derived(1.0)
    for _ in range(3):
        assert region(Held(torch.ones(1), held)).a.item() == Held(torch.ones(1), held).sin().a.item()
    assert len(region.specializations) == 1


def test_equal_objects_share_a_specialization_while_the_first_is_as_it_was() -> None:
    Held.read = lambda held: held.v
    region = st.compile(lambda x: x.sin())
    first, second = Valued(2.0), Valued(2.0)
    region(Held(torch.ones(1), first))
    region(Held(torch.ones(1), second))
    assert len(region.specializations) == 1
    first.v = 5.0  # the specialization hands on the first one: it no longer serves the second
    found = region(Held(torch.ones(1), second))
    assert found.held.v == 2.0
    assert found.a.item() == Held(torch.ones(1), second).sin().a.item()


def _itself() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


_INCOMPARABLE: dict[str, Callable[[], Any]] = {
    "itself": _itself,
    "tensor": lambda: [torch.ones(2)],
    "closure": lambda: (lambda box: lambda: box)([1]),
    "set of objects": lambda: {Box(1.0)},
}


@pytest.mark.parametrize("name", _INCOMPARABLE)
def test_what_cannot_be_compared_runs_eagerly(name: str) -> None:
    Held.read = lambda held: 2.0
    region, held = st.compile(lambda x: x.sin()), _INCOMPARABLE[name]()
    with pytest.warns(UserWarning, match="context of args"):
        found = region(Held(torch.ones(1), held))
    assert found.held is held and found.a.item() == torch.ones(1).sin().item() * 2
    assert not region.specializations
