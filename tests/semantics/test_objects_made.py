"""Objects that a region makes: each call makes its own, one where eager has one; what comes from elsewhere stays itself."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

import subclass_trace as st
from subclass_trace.capture.objects_made import objects_made

Tensor = torch.Tensor


@dataclasses.dataclass
class Config:
    bits: int = 4
    tags: list[str] = dataclasses.field(default_factory=list)


class Plain:
    def __init__(self, *held: Any) -> None:
        self.held = held


class Held(Tensor):
    """Keeps an object, which is its context, and hands it on."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, a: Tensor, held: Any) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, requires_grad=a.requires_grad)

    def __init__(self, a: Tensor, held: Any) -> None:
        self.a, self.held = a, held

    def __tensor_flatten__(self) -> Any:
        return ["a"], (self.held,)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context[0])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = next(t for t in args if isinstance(t, Held))
        out = func(*tree_map(lambda t: t.a if isinstance(t, Held) else t, args), **(kwargs or {}))
        return Held(out, first.held)


NEW: dict[str, Callable[[], Any]] = {
    "list": lambda: [1],
    "dict": lambda: {"a": [1]},
    "set": lambda: {1},
    "deque": lambda: collections.deque([1], maxlen=3),
    "counter": lambda: collections.Counter("ab"),
    "default dict": lambda: collections.defaultdict(list, {1: [2]}),
    "array": lambda: np.zeros(2),
    "bytes": lambda: bytearray(b"a"),
    "dataclass": lambda: Config(8, ["x"]),
    "object": lambda: Plain([1], {2}),
    "namespace": lambda: types.SimpleNamespace(n=[1]),
}
COMPARED = ("list", "dict", "array", "bytes", "dataclass")  # an object without an equality is another context


def _told(value: Any) -> Any:
    """What an object is, and all in it, to be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value).__name__, [_told(v) for v in value]
    if hasattr(value, "__dict__"):
        return type(value).__name__, {k: _told(v) for k, v in vars(value).items()}
    return value


def _inside(value: Any) -> list[Any]:
    """An object and the mutable ones in it."""
    if isinstance(value, (tuple, list, collections.deque)):
        items = list(value)
    elif isinstance(value, dict):
        items = list(value.values())
    else:
        items = list(vars(value).values()) if hasattr(value, "__dict__") else []
    own = [] if isinstance(value, (int, str, tuple)) else [value]
    return own + [v for item in items for v in _inside(item)]


def _differ(*values: Any) -> bool:
    ids = [id(v) for value in values for v in _inside(value)]
    return len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", NEW)
def test_an_attribute_of_an_input(name: str) -> None:
    def region(x: Tensor) -> Tensor:
        x.note = NEW[name]()  # type: ignore[attr-defined]
        return x * 2

    compiled, xs = st.compile(region), [torch.ones(2) for _ in range(3)]
    for x in xs:
        compiled(x)
    assert _differ(*[x.note for x in xs])  # type: ignore[attr-defined]
    assert all(_told(x.note) == _told(NEW[name]()) for x in xs)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("grad", [False, True])
def test_an_attribute_of_a_result(name: str, grad: bool) -> None:
    def region(x: Tensor) -> Tensor:
        y = x * 2
        y.note = NEW[name]()  # type: ignore[attr-defined]
        return y

    compiled = st.compile(region)
    results = [compiled(torch.ones(2, requires_grad=grad)) for _ in range(3)]
    assert _differ(*[y.note for y in results])
    assert all(_told(y.note) == _told(NEW[name]()) for y in results)


@pytest.mark.parametrize("name", NEW)
def test_a_result(name: str) -> None:
    compiled = st.compile(lambda x: (x * 2, NEW[name]()))
    results = [compiled(torch.ones(2))[1] for _ in range(3)]
    assert _differ(*results) and all(_told(r) == _told(NEW[name]()) for r in results)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", [n for n in NEW if n in COMPARED])
def test_two_results_share_one(name: str, grad: bool) -> None:
    def region(x: Any) -> Any:
        x.held = held = NEW[name]()
        return x * 2, x * 3, held

    compiled = st.compile(region)
    xs = [Held(torch.ones(2), "before").requires_grad_(grad) for _ in range(3)]
    rows = [compiled(x) for x in xs]
    for x, (a, b, held) in zip(xs, rows, strict=True):
        assert a.held is b.held is held is x.held  # type: ignore[attr-defined]
        assert _told(held) == _told(NEW[name]())
        if grad:
            torch.autograd.backward([a, b], [torch.ones(2), torch.ones(2)])
            assert x.grad is not None
            torch.testing.assert_close(getattr(x.grad, "a", x.grad), torch.full((2,), 5.0))
    assert _differ(*[held for _, _, held in rows])


@pytest.mark.parametrize("name", [n for n in NEW if n in COMPARED])
def test_two_wrappers_that_are_made(name: str) -> None:
    def region(x: Tensor) -> Any:
        held = NEW[name]()
        return Held(x * 2, held), Held(x * 3, held)

    compiled = st.compile(region)
    rows = [compiled(torch.ones(2)) for _ in range(3)]
    assert all(a.held is b.held for a, b in rows) and _differ(*[a.held for a, _ in rows])


def test_one_inside_of_another() -> None:
    def region(x: Tensor) -> Tensor:
        inner = [1]
        x.a, x.b = Plain(inner, x), (inner, 3)  # type: ignore[attr-defined]
        return x * 2

    def without_tensor(x: Tensor) -> Tensor:
        inner = [1]
        x.a, x.b, x.c = Plain(inner), (inner, 3), {"k": inner}  # type: ignore[attr-defined]
        return x * 2

    with pytest.raises(st.SubclassTraceError):  # holds a traced tensor
        st.compile(region)(torch.ones(2))
    compiled, xs = st.compile(without_tensor), [torch.ones(2) for _ in range(3)]
    for x in xs:
        compiled(x)
        assert x.a.held[0] is x.b[0] is x.c["k"]  # type: ignore[attr-defined]
    assert len({id(x.b[0]) for x in xs}) == 3  # type: ignore[attr-defined]


TABLE: set[int] = {1}
CONFIG = Config()


@functools.lru_cache
def _cached(n: int) -> list[int]:
    return [n]


@pytest.mark.parametrize(
    "from_elsewhere",
    [lambda: TABLE, lambda: CONFIG, lambda: CONFIG.tags, lambda: _cached(3), lambda: collections, lambda: Config],
    ids=["global", "dataclass", "in a dataclass", "cache", "module", "class"],
)
def test_what_comes_from_elsewhere_stays_itself(from_elsewhere: Callable[[], Any]) -> None:
    def region(x: Tensor) -> Tensor:
        y = x * 2
        y.note = (from_elsewhere(), 1)  # type: ignore[attr-defined]
        return y

    compiled = st.compile(region)
    for _ in range(3):
        assert compiled(torch.ones(2)).note[0] is from_elsewhere()


def test_an_attribute_that_another_input_has() -> None:
    def region(x: Any, y: Any) -> Tensor:
        x.held = y.held
        return x.a * 2

    compiled = st.compile(region)
    for make in (lambda: [1], lambda: {"a": 1}, Config, lambda: np.zeros(2)):
        for _ in range(2):
            x, y = Held(torch.ones(2), make()), Held(torch.ones(2), make())
            before = x.held
            compiled(x, y)
            assert x.held is y.held and x.held is not before


@pytest.mark.parametrize("make", [lambda: [1], lambda: {"a": 1}, Config, lambda: np.zeros(2)])
def test_a_result_that_an_input_has(make: Callable[[], Any]) -> None:
    compiled = st.compile(lambda x: (x * 2, x.held))
    for _ in range(3):
        x = Held(torch.ones(2), make())
        y, held = compiled(x)
        assert held is x.held is y.held


def test_who_holds_it_tells() -> None:
    outside = Config()
    inside = outside.tags
    held = [[1], [outside], (inside, [2]), torch.ones(2)]
    held[3].note = Plain({3})  # type: ignore[attr-defined]
    made, others = objects_made(held)
    found = [v for v, _ in made]
    assert any(v is outside for v in others) and any(v is inside for v in others)
    assert not any(v is outside or v is inside for v in found) and len(held) == 4
    assert sorted(type(v).__name__ for v in found) == ["Plain", "list", "list", "list", "set"]
    assert found.index({3}) < next(k for k, v in enumerate(found) if isinstance(v, Plain))  # what is inside comes first
