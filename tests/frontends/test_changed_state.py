"""Objects, functions, modules and arrays that a region puts into Python state, or finds in it in the place of others."""

from __future__ import annotations

import array
import dataclasses
import enum
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor


class Record:
    """An object of the user's."""

    def __init__(self, n: Any) -> None:
        self.n = n


@dataclasses.dataclass(frozen=True)
class Step:
    """A configuration that is replaced."""

    n: int = 0


# ---------------------------------------------------------------------------------------------- modules by several names
class Shared(torch.nn.Module):
    """One of its modules has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        self.active = self.first
        self.rows = torch.nn.ModuleList([self.first, self.second, self.first])

    def forward(self, x: Tensor) -> Tensor:
        for module in self.rows:
            x = module(x)
        return self.active(x) * (1 if self.active is self.first else 10)


def test_each_name_of_a_module_is_guarded() -> None:
    net = Shared()
    region, x = st.compile(net), torch.ones(1)

    def check() -> None:
        assert torch.equal(region(x), net(x))

    check()
    net.active = net.second
    check()
    net.rows[2] = net.second
    check()
    net.active = net.first
    check()
    count = len(region.specializations)
    check()
    assert len(region.specializations) == count == 4
    assert "another module is its 'active'" in region.explain()


class Switching(Shared):
    """Takes turns."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.active = self.first if self.active is self.second else self.second
        return y


def test_a_region_gives_a_module_another_name() -> None:
    nets = [Switching() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    region, x = st.compile(nets[1]), torch.ones(1)
    for _ in range(5):
        assert torch.equal(region(x), nets[0](x))
        assert [net.active is net.first for net in nets] in ([True] * 2, [False] * 2)


# ---------------------------------------------------------------------------------------------- objects
@pytest.mark.parametrize(
    ("first", "function"),
    [
        (Record(0), lambda v: Record(v.n + 1)),
        (Step(), lambda v: dataclasses.replace(v, n=v.n + 1)),
        (numpy.zeros(2), lambda v: v + 1),
        (numpy.int64(3), lambda v: v + 1),
        (frozenset(), lambda v: v | {len(v)}),
        ((0,), lambda v: (v[0] + 1,)),
        ([Record(0)], lambda v: [Record(v[0].n + 1)]),
        ({}, lambda v: {**v, len(v): Record(1)}),
        (lambda: 0, lambda v: (lambda n: lambda: n)(v() + 1)),
    ],
    ids=["object", "frozen", "array", "numpy", "frozenset", "tuple", "list", "dict", "function"],
)
def test_an_object_takes_the_place_of_another(first: Any, function: Callable[[Any], Any]) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.state = first

        def forward(self, x: Tensor) -> Tensor:
            self.state = function(self.state)
            return x * 2

    def seen(value: Any) -> Any:
        if isinstance(value, Record):
            return value.n
        if isinstance(value, list):
            return [seen(v) for v in value]
        if isinstance(value, dict):
            return {k: seen(v) for k, v in value.items()}
        return value() if callable(value) else value.tolist() if isinstance(value, numpy.ndarray) else value

    nets = Net(), Net()
    region = st.compile(nets[1])
    for n in (3, 3, 4, 5):
        nets[0](torch.ones(n)), region(torch.ones(n))
        expected, found = (seen(net.state) for net in nets)
        assert found == expected and type(found) is type(expected)


def test_a_function_that_is_kept() -> None:
    """It may refer to sizes, which are fixed then, and to what is there already."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.later = torch.nn.Parameter(torch.ones(1)), None

        def forward(self, x: Tensor, how: str) -> Tensor:
            rows: Any = x.shape[0] if how == "size" else self if how == "self" else x
            made: dict[str, Any] = {"closure": lambda: rows, "partial": functools.partial(max, rows, 0)}
            self.later = {"kept": made["partial" if how == "size" else "closure"]}
            return x * 2

    net = Net()
    region = st.compile(net)
    for n in (3, 4, 5, 3):
        region(torch.ones(n), "size")
        assert net.later["kept"]() == n
    region(torch.ones(3), "self")
    assert net.later["kept"]() is net
    with pytest.raises(st.UnsupportedError, match="keeps a function that refers to a tensor, or a size, of its own"):
        region(torch.ones(3), "tensor")


def test_an_attribute_of_a_module_of_torch() -> None:
    layer = torch.nn.Linear(1, 1)

    def f(x: Tensor, how: str) -> Tensor:
        layer.seen = (x.shape[0], 1) if how == "size" else [x * 2]
        return x * 2

    region = st.compile(f)
    for n in (3, 4, 5):
        region(torch.ones(n), "size")
        assert layer.seen == (n, 1)
    with pytest.raises(st.UnsupportedError, match="a traced tensor escapes"):
        region(torch.ones(3), "tensor")
    assert layer.seen == (5, 1)


def test_a_module_that_is_made() -> None:
    def f(x: Tensor, tensors: bool) -> Any:
        module = torch.nn.Linear(1, 1) if tensors else torch.nn.Identity()
        module.rows = x.shape[0]
        return x * 2, module

    region = st.compile(f)
    for n in (3, 4, 5):
        assert region(torch.ones(n), False)[1].rows == n
    with pytest.raises(st.UnsupportedError, match="returns a Linear that holds tensors"):
        region(torch.ones(3), True)


# ---------------------------------------------------------------------------------------------- assigned, and never read
class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Kind:
    tag: Any = None


def _one() -> None: ...


def _other() -> None: ...


FIRST, SECOND = Record(1), Record(2)


@pytest.mark.parametrize("where", ["object", "slots", "class", "function", "module"])
@pytest.mark.parametrize(
    "values",
    [
        (1, 2),
        (1.5, 2.5),
        ("a", "bc"),
        (None, 1),
        (True, False),
        (*Color,),
        (_one, _other),
        (FIRST, SECOND),
        ((1,), (2,)),
    ],
    ids=lambda values: type(values[0]).__name__,
)
def test_what_was_there_already_is_assigned_in_a_later_call_too(where: str, values: tuple[Any, Any]) -> None:
    """A trace in which nothing changes does not tell an assignment from none, where nothing reads the attribute."""

    class Slots:
        __slots__ = ("tag",)

    def run(compiled: Callable[[Any], Any]) -> list[Any]:
        owners: dict[str, Any] = {"object": Record(0), "slots": Slots(), "class": Kind, "function": _one}
        owner = owners.get(where) or torch.nn.Identity()
        owner.tag = values[0]

        def f(x: Tensor, how: int) -> Tensor:
            if how < 3:
                owner.tag = values[1 if how == 2 else 0]
            return x * how

        function, found = compiled(f), []
        for how in (0, 1, 2, 1, 3, 2, 3, 0, 2, 0):
            function(torch.ones(2), how)
            found.append(owner.tag)
        return found

    assert run(st.compile) == run(lambda f: f)


# ---------------------------------------------------------------------------------------------- arrays
ARRAY, BYTES, NUMBERS = numpy.zeros(2), bytearray(2), array.array("i", [0, 0])
OBJECTS = numpy.empty(2, dtype=object)
HOLDER = types.SimpleNamespace(rows=[numpy.zeros(2)])


def _global(x: Tensor) -> None:
    ARRAY[0] += 1


def _bytes(x: Tensor) -> None:
    BYTES[0] += 1


def _numbers(x: Tensor) -> None:
    NUMBERS[0] += 1


def _objects(x: Tensor) -> None:
    OBJECTS[0] = x


def _inside(x: Tensor) -> None:
    HOLDER.rows[0][1] = x.shape[0]


@pytest.mark.parametrize("write", [_global, _bytes, _numbers, _objects, _inside])
def test_arrays_from_outside_are_not_written(write: Callable[[Tensor], None]) -> None:
    def f(x: Tensor) -> Tensor:
        write(x)
        return x * 2

    with pytest.raises(st.UnsupportedError, match=r"writes to a (numpy array|bytearray|array) from outside"):
        st.compile(f)(torch.ones(3))
    assert not ARRAY.any() and not any(BYTES) and not any(NUMBERS) and not HOLDER.rows[0].any()
    assert OBJECTS.tolist() == [None, None]


def test_arrays_from_outside_are_read() -> None:
    region = st.compile(lambda x: x * float(ARRAY[0]) + torch.from_numpy(ARRAY).sum())
    try:
        for n in (3.0, 4.0):
            ARRAY[0] = n
            assert region(torch.ones(1)).item() == 2 * n
    finally:
        ARRAY[0] = 0
