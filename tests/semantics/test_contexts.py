"""Contexts: compared, changed in place between calls, and of views."""

from __future__ import annotations

import array
import dataclasses
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

import subclass_trace as st
from subclass_trace.runtime.emit import plain_context, same_code
from subclass_trace.runtime.source import Code
from subclass_trace.subclass.context import same_context

# ---------------------------------------------------------------------------------------------- contexts that are compared as Python writes them
_VALUES: list[Any] = [
    [1],
    [1.0],
    [True],
    [0.0],
    [-0.0],
    [float("nan")],
    [complex(0.0, -0.0)],
    [complex(0.0, 0.0)],
    ["1"],
    ["a" * 3],
    [None],
    (1,),
    (1.0,),
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    {"a": 1.0, "b": 2},
    {1: 1},
    [[1], [1]],
    [(1,), (1,)],
    [1, [2, {"k": (3, None)}]],
    [2**70],
    [-(2**70)],
    [1] * 1000,
    ["\ud800"],
    [b"ab"],
    [bytearray(b"ab")],
    [array.array("b", b"ab")],
    [torch.Size([1])],
    [torch.float32],
    {"d": torch.float32, "b": [1, 64], "f": True, "n": None},
    {"d": torch.float32, "b": [1, 64], "f": 1, "n": None},
    {"d": torch.float32, "b": [1, 64.0], "f": True, "n": None},
    {"b": [1, 64], "d": torch.float32, "f": True, "n": None},
    {"d": torch.float32, "b": (1, 64), "f": True, "n": ()},
    (torch.device("cpu"), 2),
    (torch.float32, -0.0, [torch.strided, {1: "a"}]),
    (torch.float32, 0.0, [torch.strided, {1: "a"}]),
    (torch.float32, -0.0, [torch.strided, {"1": "a"}]),
    [],
    {},
    {"a": {}},
]


def _again(value: Any) -> Any:
    """An equal value of other objects."""
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(map(_again, value))
    if isinstance(value, dict):
        return {_again(k): _again(v) for k, v in value.items()}
    if isinstance(value, torch.device):
        return torch.device(str(value))
    return "".join([*value]) if type(value) is str else type(value)(value) if type(value) in (int, float) else value


@pytest.mark.parametrize("a", range(len(_VALUES)))
def test_bytes_tell_what_the_walk_tells(a: int) -> None:
    known = plain_context(_VALUES[a])
    for b, value in enumerate(_VALUES if known is not None else ()):
        now = _again(value)
        written = plain_context(now)
        assert (written == known or same_context(_VALUES[a], now)) is same_context(_VALUES[a], now) is (a == b)


@pytest.mark.parametrize("a", range(len(_VALUES)))
def test_generated_code_tells_what_the_walk_tells(a: int) -> None:
    source = Code("False")
    source.line(f"def same(now): return {same_code(source, 'now', _VALUES[a])}")
    same = source.build("same", "test")
    for b, value in enumerate(_VALUES):
        try:
            found = same(_again(value))
        except (TypeError, KeyError, IndexError, ValueError):  # where it is called, these are a miss
            found = False
        assert found is (a == b)


def test_a_list_that_contains_itself_is_no_plain_one() -> None:
    value: list[Any] = [1]
    value.append(value)
    assert plain_context(value) is None


# ---------------------------------------------------------------------------------------------- contexts that change in place between calls: what the operations of the class read is as in eager
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


def _set(held: Any) -> None:
    held.v = 3.0


def _append(held: Any) -> None:
    held.append(2.0)


def _put(held: Any) -> None:
    held["v"] = 3.0


def _with(held: Any, **attributes: Any) -> Any:
    vars(held).update(attributes)
    return held


_CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], None], Callable[[Any], Any]]] = {
    "object": (lambda: Box(1.0), _set, lambda h: h.v),
    "object in a tuple": (lambda: (Box(1.0), 1), lambda h: _set(h[0]), lambda h: h[0].v),
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
    "dict": (lambda: {"v": 1.0}, _put, lambda h: h["v"]),
}


@pytest.mark.parametrize("name", _CASES)
def test_a_change_in_place_is_seen(name: str) -> None:
    make, change, Held.read = _CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, regions = [], (lambda x: x.sin().a, st.compile(lambda x: x.sin().a))
        for region in regions:
            x = Held(torch.ones(1), make())
            found.append([region(x).item(), region(x).item(), change(x.held), region(x).item(), region(x).item()])
    assert found[0] == found[1] and found[0][0] != found[0][3]
    assert len(regions[1].specializations) == (0 if "object" in name or "Namespace" in name else 2)


_INSIDE = ["object", "frozen dataclass with a list", "dict"]


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


# ---------------------------------------------------------------------------------------------- views of wrappers whose operations make tensors
class Masked(torch.Tensor):
    """Makes a tensor of its shape in each of its operations."""

    @staticmethod
    def __new__(cls, value: Tensor) -> Masked:
        return Tensor._make_wrapper_subclass(cls, value.shape, strides=value.stride(), dtype=value.dtype)

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["value"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Masked:
        return cls(inner["value"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert torch.ones(args[0].value.shape).shape == args[0].shape
        out = cls(func(args[0].value, *args[1:], **(kwargs or {})))
        return return_and_correct_aliasing(func, args, kwargs, out) if func.is_view else out


def test_view_operations_that_make_tensors_of_changing_sizes() -> None:
    compiled = st.compile(lambda x: (x[None], x[1:]))
    for n in (4, 6, 9):
        x = Masked(torch.ones(n))
        first, second = compiled(x)
        assert first.value.shape == (1, n) and second.value.shape == (n - 1,) and first._base is x
    assert len(compiled.specializations) == 2
