"""Programs that a user of the package has broken it with: values, and what they leave, are eager's."""

from __future__ import annotations

import collections
import functools
import types
import unittest.mock
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import subclass_trace as st

Wrap = Callable[[Any], Any]


def cache_with_a_keyword(wrap: Wrap) -> Any:
    config, runs = {"base": 10.0}, []

    @functools.lru_cache
    def table(n: int) -> float:
        runs.append(n)
        return config["base"] * n

    region, got = wrap(lambda x: x * table(n=3)), []
    for call in range(4):
        if call == 2:
            config["base"] = 99.0
        got.append(region(torch.ones(1)).item())
    return got, runs, table.cache_info().misses, table.cache_info().currsize


def cache_of_another_specialization(wrap: Wrap) -> Any:
    """A guard of another name does not fill the cache."""
    config = {"base": 10.0}

    @functools.lru_cache
    def scale(name: str) -> float:
        return config["base"] * len(name)

    region, got = wrap(lambda x, name: x * scale(name)), []
    for name, base, clear in [("aa", 10.0, 0), ("bbb", 10.0, 0), ("aa", 20.0, 1), ("bbb", 30.0, 0)]:
        config["base"] = base
        if clear:
            scale.cache_clear()
        got.append(region(torch.ones(1), name).item())
    return got, scale.cache_info().misses, scale.cache_info().currsize


def getattribute_appears(wrap: Wrap) -> Any:
    class Held:
        k = 2

    held = Held()
    region = wrap(lambda x: x * held.k)
    before = region(torch.ones(1)).item()
    Held.__getattribute__ = lambda self, name: 10  # type: ignore[method-assign, assignment]
    return before, region(torch.ones(1)).item()


def getattribute_of_a_metaclass_appears(wrap: Wrap) -> Any:
    class Meta(type):
        pass

    class Held(metaclass=Meta):
        k = 2

    region = wrap(lambda x: x * Held.k)
    before = region(torch.ones(1)).item()
    Meta.__getattribute__ = lambda cls, name: 8  # type: ignore[method-assign, assignment]
    return before, region(torch.ones(1)).item()


def getattr_of_a_module_appears(wrap: Wrap) -> Any:
    module = types.ModuleType("plug")
    region = wrap(lambda x: x * (module.dyn if hasattr(module, "dyn") else 1))
    before = region(torch.ones(1)).item()
    module.__getattr__ = lambda name: 5.0  # type: ignore[method-assign, assignment]
    return before, region(torch.ones(1)).item()


def _backwards(region: Any, change: Callable[[], Any]) -> list[float]:
    got = []
    for call in range(3):
        x = torch.ones(1, requires_grad=True)
        y = region(x)
        if call == 1:
            change()
        y.sum().backward()
        got.append(x.grad.item())  # type: ignore[union-attr]
    return got


def backward_is_replaced(wrap: Wrap) -> Any:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    def change() -> None:
        Double.backward = staticmethod(lambda ctx, g: g * 7)  # type: ignore[assignment]

    return _backwards(wrap(lambda x: Double.apply(x) * 3), change)


def backward_with_a_cell_is_replaced(wrap: Wrap) -> Any:
    space = types.SimpleNamespace(k=2.0)

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * space.k

    def change() -> None:
        Scale.backward = staticmethod(lambda ctx, g: g * 7)  # type: ignore[assignment]

    return _backwards(wrap(lambda x: Scale.apply(x) * 3), change)


def code_of_a_hook_is_replaced(wrap: Wrap) -> Any:
    def hook(g: Any) -> Any:
        return g * 9

    def f(x: Any) -> Any:
        y = x * 1
        y.register_hook(hook)
        return y * 3

    def change() -> None:
        hook.__code__ = (lambda g: g * 4).__code__

    return _backwards(wrap(f), change)


def what_none_is(wrap: Wrap) -> Any:
    """To ``__get__``, None is a missing instance."""

    @functools.singledispatch
    def kind(value: Any) -> int:
        return 1

    kind.register(int)(lambda value: 2)
    region = wrap(lambda x: x * kind(None) + len(None.__class__.__mro__) + None.__eq__(None))
    return region(torch.ones(1)).tolist()


class _Pair(tuple[int, int]):
    """A tuple with attributes, as the calls that `unittest.mock` keeps are."""

    def __new__(cls, a: int, b: int) -> _Pair:
        return tuple.__new__(cls, (a, b))

    def __init__(self, a: int, b: int) -> None:
        self.total: Any = a + b


class _Few(frozenset[int]):
    def __init__(self, *args: Any) -> None:
        self.total: Any = len(self)


def attributes_of_what_is_immutable(wrap: Wrap) -> Any:
    kept: dict[str, Any] = {"list": []}

    def f(x: Any) -> Any:
        pair, few = _Pair(1, 2), _Few([3])
        few.total = x.sum()
        kept["pair"] = pair
        kept["list"].append({"few": (few,)})
        return x * 2, pair, few

    region, found = wrap(f), []
    for _ in range(3):
        x, pair, few = region(torch.ones(2))
        last = kept["list"][-1]["few"][0]
        found += [x.tolist(), type(pair), pair, pair.total, few, few.total.item()]
        found += [last is few, last.total.item(), kept["pair"] is pair]
    return found


def a_mock_is_called(wrap: Wrap) -> Any:
    mocked = unittest.mock.Mock(return_value=2)
    region = wrap(lambda x: x * mocked(3))
    got = [region(torch.ones(1)).item() for _ in range(3)]
    return got, mocked.call_count, str(mocked.call_args), len(mocked.call_args_list)


PROGRAMS = (
    attributes_of_what_is_immutable,
    a_mock_is_called,
    what_none_is,
    cache_with_a_keyword,
    cache_of_another_specialization,
    getattribute_appears,
    getattribute_of_a_metaclass_appears,
    getattr_of_a_module_appears,
    backward_is_replaced,
    backward_with_a_cell_is_replaced,
    code_of_a_hook_is_replaced,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_eager(program: Callable[[Wrap], Any]) -> None:
    assert program(lambda f: st.compile(f, frontend="trace")) == program(lambda f: f)


def test_a_number_that_each_backward_finds_changed() -> None:
    """It is not traced without end: the region runs eagerly, and says so."""
    space, layer = types.SimpleNamespace(k=0.0), torch.nn.Linear(2, 2)

    def f(x: Any) -> Any:
        y = layer(x)
        y.register_hook(lambda g: g * space.k)
        return y.sin()

    region = st.compile(f)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(30):
            space.k += 0.1
            found = []
            for call in (f, region):
                layer.weight.grad = None
                call(torch.ones(1, 2)).sum().backward()
                found.append(layer.weight.grad)
            assert torch.equal(*found)
    assert len([w for w in caught if "reads another value of Python state" in str(w.message)]) == 1
    assert "another value of Python state" in region.explain()


class _Text(str):
    __slots__ = ()


_PAIR = collections.namedtuple("_PAIR", "a b")(1, "x")
_TEXTS: dict[str, Callable[[], Any]] = {
    "a namedtuple": lambda: f"{_PAIR} {_PAIR!r} {'%s-%s' % _PAIR}",  # noqa: UP031
    "a number in a text": lambda: 1 in _Text("a1"),
    "a text in a text": lambda: "a" in _Text("a1"),
    "a text in bytes": lambda: "a" in bytearray(b"ab"),
    "a width for an object": lambda: f"{SimpleNamespace(a=1):>5}",
    "no width": lambda: f"{SimpleNamespace(a=1)}",
}


@pytest.mark.parametrize("name", _TEXTS)
def test_texts_and_what_is_in_them(name: str) -> None:
    """Values, or the error, are eager mode's."""

    def seen(x: torch.Tensor) -> torch.Tensor:
        try:
            found.append(_TEXTS[name]())
        except TypeError as error:
            found.append(str(error))
        return x + 1

    found: list[Any] = []
    for call in (seen, st.compile(seen)):
        call(torch.ones(1))
    assert found[0] == found[1]
