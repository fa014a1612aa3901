"""What the code of wrapper classes names may change between calls."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor

GAIN = 1.0
SETTINGS: dict[str, Any] = {"gain": 1.0}
HELD = types.SimpleNamespace(gain=1.0)
SEEN: list[str] = []
CACHE: dict[Any, Any] = {}
TABLE: dict[Any, Callable[..., Any]] = {}


def _times_one(x: Any) -> Any:
    return x.d * 1.0


def _times_three(x: Any) -> Any:
    return x.d * 3.0


def _helper(x: Any) -> Any:
    return x.d * GAIN


class Gained(Tensor):
    """One inner tensor; operations see it scaled by everything around."""

    gain = 1.0
    calls = 0
    __trace_time_state__ = ("calls",)
    d: Tensor

    @staticmethod
    def __new__(cls, d: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, d.shape, dtype=d.dtype)

    def __init__(self, d: Tensor) -> None:
        self.d = d

    def __tensor_flatten__(self) -> Any:
        return ["d"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["d"])

    def dense(self) -> Tensor:
        """What operations compute with."""
        return self.d * type(self).gain

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Gained.calls += 1
        SEEN.append(str(func))
        CACHE.setdefault((func, len(CACHE)), len(SEEN))

        def plain(x: Any) -> Any:
            return (x.dense() + _helper(x) + TABLE["scale"](x)) * SETTINGS["gain"] * HELD.gain

        return func(*tree_map_only(cls, plain, args), **tree_map_only(cls, plain, kwargs or {}))


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    global GAIN
    yield
    GAIN, Gained.gain, HELD.gain = 1.0, 1.0, 1.0
    SETTINGS.update(gain=1.0)
    TABLE["scale"] = _times_one


TABLE["scale"] = _times_one


def _set_global() -> None:
    global GAIN
    GAIN = 5.0


def _other_dense(self: Any) -> Tensor:
    return self.d * 7.0


CHANGES: dict[str, Callable[[], Any]] = {
    "attribute of the class": lambda: setattr(Gained, "gain", 2.0),
    "global": _set_global,
    "item of a dict": lambda: SETTINGS.update(gain=3.0),
    "attribute of an object": lambda: setattr(HELD, "gain", 4.0),
    "function in a table": lambda: TABLE.update(scale=_times_three),
    "method": lambda: setattr(Gained, "dense", _other_dense),
}


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside of another"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change: str, inside: bool) -> None:
    def f(x: Any, y: Tensor) -> Any:
        return x * y

    def out(call: Callable[..., Any]) -> Tensor:
        x: Any = Gained(torch.arange(3.0))
        found = call(TwoTensor(x, Gained(torch.ones(3))) if inside else x, torch.full((3,), 2.0))
        return found.a if inside else found

    region, dense = st.compile(f), Gained.dense
    try:
        for _ in range(2):
            assert torch.equal(out(region), out(f))
        CHANGES[change]()
        for _ in range(2):
            assert torch.equal(out(region), out(f))
    finally:
        Gained.dense = dense  # type: ignore[method-assign]
    assert torch.equal(out(region), out(f))
    assert len(region.specializations) == 2


def test_methods_that_the_function_calls() -> None:
    region = st.compile(lambda x: x.dense() * 2)
    x = Gained(torch.arange(3.0))
    for gain in (1.0, 2.0, 1.0):
        Gained.gain = gain
        assert torch.equal(region(x), x.d * gain * 2)
    assert len(region.specializations) == 2


def test_what_the_class_counts_and_keeps_is_not_compared() -> None:
    region = st.compile(lambda x: x * 2)
    x = Gained(torch.arange(3.0))
    for _ in range(4):
        x * 2  # counts, logs and caches outside of the region
        region(x)
    assert len(region.specializations) == 1


def test_a_number_that_changes_in_each_call_becomes_a_symbol() -> None:
    global GAIN
    region = st.compile(lambda x: x * 2)
    x = Gained(torch.arange(3.0))
    for step in range(6):
        GAIN = 1.0 + step
        assert torch.equal(region(x), x * 2)
    assert len(region.specializations) == 2


class Mode(enum.Enum):
    """How to scale."""

    ONE = 1
    TWO = 2


class _Proxy:
    """Whoever asks it for anything gets an error."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


_PROXY = _Proxy()
_MEMO: dict[Any, Any] = {}
_NAMED = {"mode": ""}


class Moded(Gained):
    """Scaled by a mode, a class and an object, with a cache that other code fills as well."""

    mode = Mode.ONE
    scaling: Any = _times_one
    helper: Any = types.SimpleNamespace

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _PROXY is None or len(_MEMO) > 1000:
            raise AssertionError

        def plain(x: Any) -> Any:
            return x.d * cls.mode.value * (5 if cls.helper is Mode else 1) + len(_NAMED["mode"])

        return func(*tree_map_only(cls, plain, args), **tree_map_only(cls, plain, kwargs or {}))


def test_enum_members_classes_and_proxies() -> None:
    region = st.compile(lambda x: x * 2)
    x = Moded(torch.arange(3.0))
    helper = Moded.helper
    try:
        for mode, other in ((Mode.ONE, helper), (Mode.TWO, helper), (Mode.TWO, Mode), (Mode.ONE, helper)):
            Moded.mode, Moded.helper = mode, other
            assert torch.equal(region(x), x * 2)
    finally:
        Moded.mode, Moded.helper = Mode.ONE, helper
    assert len(region.specializations) == 3


def test_what_other_code_puts_into_a_cache() -> None:
    region = st.compile(lambda x: x * 2)
    x = Moded(torch.arange(3.0))
    for number in range(12):
        _MEMO[number] = number
        assert torch.equal(region(x), x * 2)
    _MEMO.clear()
    assert len(region.specializations) <= 4


def test_settings_with_many_values() -> None:
    region = st.compile(lambda x: x * 2)
    x = Moded(torch.arange(3.0))
    try:
        for name in ("a", "bb", "ccc", "dddd", "eeeee", "a"):
            _NAMED["mode"] = name
            assert torch.equal(region(x), x * 2)
    finally:
        _NAMED["mode"] = ""
    assert len(region.specializations) == 5
