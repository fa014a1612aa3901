"""Numbers and strings that the code of a wrapper class changes: refused, not counted once; caches work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import subclass_trace as st
from subclass_trace.capture.dispatch_state import assigned, unchanged_by_dispatch

Tensor = torch.Tensor
CALLS = 0
READY = False
_CACHE: dict[Any, Any] = {}


class _Base(torch.Tensor):
    """Computes on its inner tensor; what ``note`` does besides is up to the class."""

    @staticmethod
    def __new__(cls, d: Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, d.shape, dtype=d.dtype, requires_grad=d.requires_grad)

    def __init__(self, d: Tensor) -> None:
        self.d = d.detach()

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["d"], None

    @classmethod
    def note(cls, func: Any) -> None:
        raise NotImplementedError

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.note(func)
        args, kwargs = pytree.tree_map_only(cls, lambda s: s.d, (args, kwargs or {}))
        return pytree.tree_map_only(Tensor, cls, func(*args, **kwargs))


def _unflatten(cls: type) -> Any:
    return staticmethod(lambda inner, context, size, stride: cls(inner["d"]))  # type: ignore[call-arg]


class Counts(_Base):
    total = 0

    @classmethod
    def note(cls, func: Any) -> None:
        cls.total += 1


class Inherits(Counts):
    """Sets an attribute of its own where it had that of its base."""


class Names(_Base):
    last = "nothing"

    @classmethod
    def note(cls, func: Any) -> None:
        if func is torch.ops.aten.cos.default:  # which the backward of sin calls
            cls.last = str(func)


class Globals(_Base):
    @classmethod
    def note(cls, func: Any) -> None:
        _count()


def _count() -> None:
    global CALLS
    CALLS += 1


class Once(_Base):
    """Sets up what it needs when it first runs."""

    table: Any = None
    ready = False

    @classmethod
    def note(cls, func: Any) -> None:
        global READY
        READY = cls.ready = True
        if cls.table is None:
            cls.table = 7
        _CACHE.setdefault(func, len(_CACHE))


class Wanted(Counts):
    __trace_time_state__ = ("total",)


for _cls in (Counts, Inherits, Names, Globals, Once, Wanted):
    _cls.__tensor_unflatten__ = _unflatten(_cls)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("cls", "place", "value"), [(Counts, "Counts.total", 0), (Inherits, "Inherits.total", 0), (Globals, "CALLS", 0)]
)
@pytest.mark.parametrize("grad", [False, True])
def test_a_count_is_refused(cls: Any, place: str, value: Any, grad: bool) -> None:
    global CALLS
    Counts.total = CALLS = 0
    x = cls(torch.ones(2)).requires_grad_(grad)
    with pytest.raises(st.UnsupportedError, match=f"{cls.__name__} changes {place}") as caught:
        st.compile(lambda x: x.sin() * 2)(x)
    assert caught.value.expected == f"{place} as it was: 0" and "test_dispatch_state.py:" in str(caught.value.path)
    assert Counts.total == CALLS == 0


def test_a_wrapper_that_is_made_inside() -> None:
    Counts.total = 0
    with pytest.raises(st.UnsupportedError, match=r"Counts\.total"):
        st.compile(lambda x: Counts(x).sin().d)(torch.ones(2))
    assert Counts.total == 0


def test_what_a_backward_changes() -> None:
    x = Names(torch.ones(2)).requires_grad_()
    y = st.compile(lambda x: x.sin())(x)
    with pytest.raises(st.UnsupportedError, match=r"Names\.last"):
        y.sum().backward()
    assert Names.last == "nothing"


def test_what_is_set_up_once() -> None:
    region = st.compile(lambda x: x.sin() * 2)
    for _ in range(2):
        assert torch.equal(region(Once(torch.ones(2))).d, torch.ones(2).sin() * 2)
    assert Once.table == 7 and READY and _CACHE


def test_a_count_of_traces_that_the_author_wants() -> None:
    Wanted.total = 0
    region = st.compile(lambda x: x.sin() * 2)
    region(Wanted(torch.ones(2)))
    counted = Wanted.total
    region(Wanted(torch.ones(2)))
    assert counted > 0 and Wanted.total == counted


def test_a_count_that_the_function_names_too() -> None:
    Counts.total = 0

    def f(x: Any) -> Any:
        Counts.total += 1
        return x * 2

    with pytest.raises(st.UnsupportedError, match=r"Counts\.total"):
        st.compile(f)(Counts(torch.ones(2)))
    assert Counts.total == 0


def test_what_is_looked_at() -> None:
    mine = {(place.cls.__name__, place.name) for place in assigned() if place.cls.__module__ == __name__}
    assert {("Counts", "total"), ("Names", "last"), ("Globals", "CALLS"), ("Wanted", "total")} <= mine
    with pytest.raises(KeyError), unchanged_by_dispatch():
        Counts.total += 1
        raise KeyError
    with unchanged_by_dispatch():
        pass
