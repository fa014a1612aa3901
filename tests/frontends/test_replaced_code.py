"""Code, classes and containers that change between two calls: a region sees what is there, as eager does."""

from __future__ import annotations

import collections
import functools
import random
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace.runtime.held import as_held, parts_of
from subclass_trace.subclass.context import same_context

Tensor = torch.Tensor
Case = tuple[Callable[[Tensor], Tensor], Sequence[Callable[[], Any]]]
CASES: dict[str, Callable[[], Case]] = {}
K = 2.0


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def differences(make: Callable[[], Case]) -> tuple[list[float], list[float]]:
    """What eager and the region give, each with objects of its own: before the changes, and after each of them."""
    rows = []
    for compile in (lambda f: f, st.compile):
        function, changes = make()
        compiled = compile(function)
        rows.append([float(compiled(torch.ones(())))])
        for change in changes:
            change()
            rows[-1] += [float(compiled(torch.ones(()))) for _ in range(2)]
    return rows[0], rows[1]


# ---------------------------------------------------------------------------------------------- classes
class Doubles:
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else instance._v * 2

    def __set__(self, instance: Any, value: float) -> None:
        instance._v = value


class Elsewhere:
    def __init__(self) -> None:
        self.table: Any = weakref.WeakKeyDictionary()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.table[instance]

    def __set__(self, instance: Any, value: float) -> None:
        self.table[instance] = value


class ByName:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_of_" + name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return getattr(instance, self.name)

    def __set__(self, instance: Any, value: float) -> None:
        setattr(instance, self.name, value)


def of_descriptor(kind: type) -> Case:
    class Holder:
        d = kind()

    held = Holder()
    held.d = 1
    return lambda x: x * held.d, [lambda: setattr(held, "d", 5)]


for kind in (Doubles, Elsewhere, ByName):
    CASES[kind.__name__] = functools.partial(of_descriptor, kind)


def classes() -> Any:
    class Base:
        def factor(self) -> float:
            return 2.0

        @property
        def half(self) -> float:
            return 1.0

        @staticmethod
        def plain(x: Tensor) -> Tensor:
            return x * 3

        @classmethod
        def of_class(cls, x: Tensor) -> Tensor:
            return x * 5

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.factor()

    class Middle(Base):
        pass

    class Last(Middle):
        def factor(self) -> float:
            return super().factor() + 1

    return Base, Middle, Last


@case
def methods_of_an_object() -> Case:
    base, middle, last = classes()
    p = last()
    changes = [
        lambda: setattr(middle, "factor", lambda self: 10.0),
        lambda: delattr(middle, "factor"),
        lambda: setattr(base, "factor", lambda self: 20.0),
        lambda: setattr(last, "factor", lambda self: 30.0),
        lambda: setattr(last, "__call__", lambda self, x: x * 7),
        lambda: setattr(p, "__class__", base),
    ]
    return lambda x: p(x), changes


@case
def other_members_of_an_object() -> Case:
    base, _, last = classes()
    p = last()
    changes = [
        lambda: setattr(base, "half", property(lambda self: 4.0)),
        lambda: setattr(last, "half", 8.0),
        lambda: setattr(base, "plain", staticmethod(lambda x: x * 9)),
        lambda: setattr(last, "of_class", classmethod(lambda cls, x: x * 11)),
        lambda: setattr(p, "plain", lambda x: x),
    ]
    return lambda x: p.plain(x) + p.of_class(x) * p.half, changes


@case
def a_class_that_is_used_and_rebound() -> Case:
    base, _, last = classes()
    used = base

    def function(x: Tensor) -> Tensor:
        return x * used().factor()

    def rebind() -> None:
        nonlocal used
        used = last

    return function, [lambda: setattr(base, "factor", lambda self: 20.0), rebind]


@case
def what_a_class_sets_up() -> Case:
    class Sized:
        def __init__(self) -> None:
            self.k = K

    globals()["K"] = 2.0
    held = {"cls": Sized}
    return lambda x: x * held["cls"]().k, [lambda: globals().__setitem__("K", K + 1)]


@case
def an_object_behind_a_class() -> Case:
    class Holder:
        shared = types.SimpleNamespace(k=1.0)

    held = Holder()
    return lambda x: x * held.shared.k, [
        lambda: setattr(Holder.shared, "k", 2.0),
        lambda: setattr(Holder, "shared", types.SimpleNamespace(k=3.0)),
    ]


@case
def attributes_that_come_later() -> Case:
    class Holder:
        pass

    held = Holder()
    return lambda x: x * getattr(held, "k", 3.0), [
        lambda: setattr(Holder, "k", 4.0),
        lambda: setattr(held, "k", 5.0),
        lambda: delattr(held, "k"),
    ]


@case
def a_property_of_a_class() -> Case:
    class Meta(type):
        @property
        def k(cls) -> float:
            return cls._k  # type: ignore[attr-defined, no-any-return]

    class Holder(metaclass=Meta):
        _k = 1.0

    return lambda x: x * Holder.k, [lambda: setattr(Holder, "_k", 2.0)]


# ---------------------------------------------------------------------------------------------- modules
@case
def methods_of_a_module() -> Case:
    class Net(nn.Module):
        def extra(self) -> float:
            return 2.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.extra()

    class Other(Net):
        def extra(self) -> float:
            return 9.0

    net = Net()
    return nn.Sequential(net), [
        lambda: setattr(Net, "extra", lambda self: 7.0),
        lambda: setattr(Net, "__call__", lambda self, x: x * 13),
        lambda: delattr(Net, "__call__"),
        lambda: setattr(Net, "forward", lambda self, x: x * self.extra() * 100),
        lambda: setattr(net, "__class__", Other),
    ]


@case
def forward_of_a_class_of_torch() -> Case:
    patch = mock.patch.object(nn.Tanh, "forward", lambda self, x: x * 100)
    return nn.Sequential(nn.Tanh()), [patch.start, patch.stop]


@case
def an_attribute_of_a_python_module() -> Case:
    module = types.ModuleType("of_the_user")
    exec("K = 2.0\ndef scale(x): return x * K\nclass Held:\n    k = 3.0\n", module.__dict__)
    return lambda x: module.scale(x) * module.K * module.Held.k, [
        lambda: setattr(module, "K", 5.0),
        lambda: setattr(module.Held, "k", 7.0),
        lambda: setattr(module, "scale", lambda x: x * 11),
    ]


# ---------------------------------------------------------------------------------------------- functions
@case
def what_a_function_holds() -> Case:
    def helper(x: Tensor, k: float = 2.0, *, j: float = 3.0, held: Any = {"k": 1.0}) -> Tensor:  # noqa: B006
        return x * k * j * held["k"] * helper.factor  # type: ignore[attr-defined, no-any-return]

    def other(x: Tensor, k: float = 2.0) -> Tensor:
        return x * k * 100 * helper.factor  # type: ignore[attr-defined, no-any-return]

    helper.factor = 1.0  # type: ignore[attr-defined]
    keywords: Any = helper.__kwdefaults__
    return lambda x: helper(x), [
        lambda: setattr(helper, "__defaults__", (5.0,)),
        lambda: keywords.__setitem__("j", 7.0),
        lambda: keywords["held"].__setitem__("k", 4.0),
        lambda: setattr(helper, "factor", 2.0),
        lambda: setattr(helper, "__kwdefaults__", {"j": 1.0, "held": {"k": 3.0}}),
        lambda: setattr(helper, "__code__", other.__code__),
    ]


@case
def a_default_that_changes_in_place() -> Case:
    def helper(x: Tensor, held: Any = [1.0]) -> Tensor:  # noqa: B006
        return x * held[0]  # type: ignore[no-any-return]

    held: Any = helper.__defaults__
    return helper, [lambda: held[0].__setitem__(0, 4.0)]


@case
def keywords_of_a_partial() -> Case:
    inner = functools.partial(lambda x, k: x * k, k=2.0)
    outer = functools.partial(lambda x, f, k: f(x) * k, f=inner, k=3.0)
    return outer, [lambda: inner.keywords.__setitem__("k", 5.0), lambda: outer.keywords.__setitem__("k", 7.0)]


# ---------------------------------------------------------------------------------------------- containers
class Words(dict[str, float]):
    factor = 2.0


def of_container(held: Any, key: Any, value: Any) -> Case:
    return lambda x: x * float(held[key]), [lambda: held.__setitem__(key, value)]


CONTAINERS: dict[str, Callable[[], Case]] = {
    "an OrderedDict": lambda: of_container(collections.OrderedDict(a=1.0), "a", 2.0),
    "a defaultdict": lambda: of_container(collections.defaultdict(float, a=1.0), "a", 2.0),
    "a dict of the user's": lambda: of_container(Words(a=1.0), "a", 2.0),
    "a UserDict": lambda: of_container(collections.UserDict(a=1.0), "a", 2.0),
    "a ChainMap": lambda: of_container(collections.ChainMap({"a": 1.0}), "a", 2.0),
    "a bytearray": lambda: of_container(bytearray(b"\x01"), 0, 2),
    "an array of numpy": lambda: of_container(np.array([1.0, 2.0]), 1, 3.0),
}
CASES |= CONTAINERS


@case
def a_view_of_a_dict() -> Case:
    table = {"a": 1.0}
    view = types.MappingProxyType(table)
    return lambda x: x * view["a"], [lambda: table.__setitem__("a", 2.0)]


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen(name: str) -> None:
    eager, ours = differences(CASES[name])
    assert ours == eager
    assert len(set(eager)) > 1  # the changes matter


def test_what_does_not_change_makes_no_specialization() -> None:
    base, _, last = classes()
    p, named = last(), collections.OrderedDict(a=1.0)
    region = st.compile(lambda x: p(x) * named["a"] * p.half)
    for _ in range(3):
        region(torch.ones(()))
        last.unused = base.unused = lambda self: 1.0
        p.also_unused = 2.0
    assert len(region.specializations) == 1


def test_what_a_region_assigns_to_functions_and_python_modules() -> None:
    def helper(x: Tensor) -> Tensor:
        helper.calls += 1  # type: ignore[attr-defined]
        helper.size = x.shape[0]  # type: ignore[attr-defined]
        module.flag, module.size = "set", x.shape[0]  # type: ignore[attr-defined]
        return x * 2

    module = types.ModuleType("of_the_user")
    helper.calls = 0  # type: ignore[attr-defined]
    region = st.compile(lambda x: helper(x))
    for count, size in ((1, 2), (2, 2), (3, 3), (4, 4)):
        module.flag = None  # type: ignore[attr-defined]
        region(torch.ones(size))
        assert (helper.calls, helper.size) == (count, size)  # type: ignore[attr-defined]
        assert (module.flag, module.size) == ("set", size)  # type: ignore[attr-defined]
    assert len(region.specializations) == 2


def random_value(draw: random.Random, depth: int = 0) -> Any:
    """A value as configurations hold them."""
    kinds: list[Callable[[], Any]] = [
        lambda: draw.random(),
        lambda: str(draw.randrange(9)),
        lambda: None,
        lambda: helper_of_values,
    ]
    if depth < 3:
        inside = [random_value(draw, depth + 1) for _ in range(draw.randrange(4))]
        named = {str(k): v for k, v in enumerate(inside)}
        kinds += [
            lambda: inside,
            lambda: tuple(inside),
            lambda: named,
            lambda: collections.OrderedDict(named),
            lambda: collections.UserDict(named),
            lambda: collections.deque(inside),
            lambda: {1, 2},
            lambda: bytearray(b"ab"),
        ]
    return draw.choice(kinds)()


def helper_of_values() -> None:
    """Compared by identity."""


def places_in(value: Any) -> list[Callable[[Any], None]]:
    """Ways to replace one of the values inside, the innermost first."""
    found: list[Callable[[Any], None]] = []
    if isinstance(value, (list, tuple, dict, collections.UserDict, collections.deque)):
        inside = value.values() if isinstance(value, (dict, collections.UserDict)) else value
        found += [place for v in inside for place in places_in(v)]
    if isinstance(value, (list, dict, collections.UserDict, collections.deque, bytearray)):
        keys = range(len(value)) if isinstance(value, (list, collections.deque, bytearray)) else list(value)
        found += [functools.partial(value.__setitem__, k) for k in keys]
    return found


def test_long_containers_are_known_by_their_parts() -> None:
    for value in ([object() for _ in range(40)], {k: object() for k in range(40)}, [{"params": (object(),) * 50}]):
        held = as_held(value)
        parts = parts_of(held)
        assert parts is not None and parts.hold(value) and same_context(held, as_held(value))
        inside: Any = value if len(value) > 1 else value[0]
        inside["params" if len(value) == 1 else 7] = None
        assert not parts.hold(value) and not same_context(held, as_held(value))


@pytest.mark.parametrize("seed", range(40))
def test_containers_are_known_by_their_parts(seed: int) -> None:
    draw = random.Random(seed)
    value = [random_value(draw), random_value(draw)]
    held = as_held(value)
    parts = parts_of(held)
    assert same_context(held, as_held(value)) and (parts is None or parts.hold(value))
    for place in places_in(value):
        place(7)
        assert not same_context(held, as_held(value))
        assert parts is None or not parts.hold(value)
        held = as_held(value)
        parts = parts_of(held)
        assert parts is None or parts.hold(value)
