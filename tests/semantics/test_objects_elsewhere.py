"""Objects that a region has from its arguments, or by names, in results, attributes and contexts: each call has its own there."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_objects_made import Config, Held, Plain

import subclass_trace as st
from subclass_trace.errors import UnsupportedError

Tensor = torch.Tensor

MAKE: dict[str, Callable[[], Any]] = {
    "list": lambda: [1],
    "dict": lambda: {"a": 1},
    "dataclass": Config,
    "array": lambda: np.zeros(2),
    "namespace": lambda: types.SimpleNamespace(n=2, tags=[1]),
}
OBJECTS = ("dataclass", "array", "namespace")


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("grad", [False, True])
def test_an_argument_as_a_result(name: str, grad: bool) -> None:
    region = st.compile(lambda x, c: (x * 2, c, [c]))
    for _ in range(3):
        c = MAKE[name]()
        _, found, (again,) = region(torch.ones(2, requires_grad=grad), c)
        assert found is c and again is c


def test_a_list_inside_of_an_argument() -> None:
    def region(x: Tensor, c: Config) -> Any:
        c.tags.append("later")
        return x * c.bits, c.tags

    compiled = st.compile(region)
    for count in (1, 1, 2):
        ours, eager = Config(4, ["x"] * count), Config(4, ["x"] * count)
        assert compiled(torch.ones(2), ours)[1] is ours.tags
        assert region(torch.ones(2), eager)[1] == ours.tags


@pytest.mark.parametrize("name", MAKE)
def test_an_argument_that_is_assigned(name: str) -> None:
    class Keeps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept: Any = None

        def forward(self, x: Tensor, c: Any) -> Tensor:
            self.kept = c
            return x * 2

    module, place = Keeps(), types.SimpleNamespace(kept=None)

    def region(x: Tensor, c: Any) -> Tensor:
        place.kept = c
        return x * 2

    for holder, compiled in ((module, st.compile(module)), (place, st.compile(region))):
        for _ in range(3):
            c = MAKE[name]()
            compiled(torch.ones(2), c)
            assert holder.kept is c


@pytest.mark.parametrize("name", MAKE)
def test_what_the_context_of_an_input_holds_is_assigned(name: str) -> None:
    place = types.SimpleNamespace(kept=None)

    def region(x: Any) -> Tensor:
        place.kept = x.held
        return x.a * 2

    compiled = st.compile(region)
    for _ in range(3):
        x = Held(torch.ones(2), MAKE[name]())
        compiled(x)
        assert place.kept is x.held


@pytest.mark.parametrize("name", MAKE)
def test_the_context_of_a_closed_over_wrapper_as_a_result(name: str) -> None:
    w = Held(torch.ones(2), MAKE[name]())
    region = st.compile(lambda x: (x * w.a, w.held))
    for _ in range(2):
        assert region(torch.ones(2))[1] is w.held


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("where", ["closure", "module"])
def test_the_context_of_a_result_is_from_elsewhere(name: str, where: str) -> None:
    class Gives(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = MAKE[name]()

        def forward(self, x: Tensor) -> Any:
            return Held(x * 2, self.kept)

    kept, module = MAKE[name](), Gives()
    region: Any = st.compile(module if where == "module" else (lambda x: Held(x * 2, kept)))
    for _ in range(2):
        assert region(torch.ones(2)).held is (module.kept if where == "module" else kept)


def test_a_new_dict_that_holds_a_list_from_outside() -> None:
    place: Any = types.SimpleNamespace(n=0, log=[], best=None)

    def region(x: Tensor) -> Tensor:
        place.n += 1
        place.log.append(place.n)
        place.best = {"log": place.log, "n": 3}
        return x * place.n

    compiled = st.compile(region)
    for k in range(1, 4):
        compiled(torch.ones(2))
        assert place.best == {"log": list(range(1, k + 1)), "n": 3} and place.best["log"] is place.log


class _Config:
    def __init__(self) -> None:
        self.scale = torch.tensor(2.0)


PUT: dict[str, Callable[[Any], Any]] = {
    "in a dict": lambda x: Held(x.a * 2, {"amax": x.a.amax()}),
    "a tensor": lambda x: Held(x.a * 2, x.a.amax()),
    "in an object": lambda x: Held(x.a * 2, Plain(x.a.amax())),
    "in a dataclass": lambda x: Held(x.a * 2, Config(tags=[x.a])),  # type: ignore[list-item]
    "a deep copy": lambda x: Held(x.a * 2, copy.deepcopy(_CONFIG)),
}
_CONFIG = _Config()


@pytest.mark.parametrize("name", PUT)
def test_a_traced_tensor_in_the_context_of_a_result(name: str) -> None:
    with pytest.raises(UnsupportedError, match="flatten context of a result|deepcopy|deep copy"):
        st.compile(PUT[name])(Held(torch.ones(2), 1))


def test_a_size_in_an_object_in_the_context_of_a_result() -> None:
    region = st.compile(lambda x: Held(x * 2, types.SimpleNamespace(rows=x.shape[0])))
    for n in (3, 4, 5, 4):
        rows = region(torch.ones(n)).held.rows
        assert type(rows) is int and rows == n


@dataclasses.dataclass
class _Info:
    long: Any


@pytest.mark.parametrize(
    "function",
    [
        lambda x: {x: 1},
        lambda x: {x * 2: 1},
        lambda x: types.MappingProxyType({"a": x * 2}),
        lambda x: frozenset({x * 2}),
        lambda x: ValueError(x * 2),
        lambda x: {"a": x * 2}.values(),
    ],
)
def test_traced_tensors_in_odd_places_of_a_result(function: Callable[[Tensor], Any]) -> None:
    with pytest.raises(UnsupportedError, match="result"):
        st.compile(lambda x: (x, function(x)))(torch.ones(2))


def test_a_comparison_of_sizes_in_a_result() -> None:
    region = st.compile(lambda x: (x * 2, _Info(x.shape[0] > 4)), dynamic=True)
    with pytest.raises(UnsupportedError, match="comparison"):
        region(torch.ones(5))
    said = st.compile(lambda x: (x * 2, _Info(bool(x.shape[0] > 4))), dynamic=True)
    assert [said(torch.ones(n))[1].long for n in (3, 5, 6)] == [False, True, True]


def test_one_list_at_two_places_of_a_result() -> None:
    def region(x: Tensor, d: dict[str, Any]) -> Any:
        rows, sizes = [x * 2, x.shape[0]], {"n": x.shape[0]}
        log = d.setdefault("log", [])
        log.append(x.shape[0])
        return rows, (rows, {"again": [rows, sizes]}), sizes, log

    for dynamic in (False, True):
        compiled = st.compile(region, dynamic=dynamic)
        for n in (3, 4, 4):
            d: dict[str, Any] = {}
            rows, (again, inside), sizes, log = compiled(torch.ones(n), d)
            assert rows is again is inside["again"][0] and sizes is inside["again"][1] and log is d["log"]
            assert torch.equal(rows[0], torch.full((n,), 2.0)) and rows[1] == n and sizes == {"n": n} and log == [n]


def test_arrays_that_share_memory() -> None:
    def shared(x: Tensor) -> Any:
        a = np.zeros(3)
        return x * 2, a, a[1:]

    with pytest.raises(UnsupportedError, match="shares memory"):
        st.compile(shared)(torch.ones(2))
    with pytest.raises(UnsupportedError, match="shares memory"):
        st.compile(lambda x, a: (x, a[1:]))(torch.ones(2), np.zeros(3))
    region = st.compile(lambda x: (x, np.arange(6).reshape(2, 3)))  # a view of what nobody else has
    first, second = region(torch.ones(2))[1], region(torch.ones(2))[1]
    first[0, 0] = 7
    assert second.tolist() == [[0, 1, 2], [3, 4, 5]] == region(torch.ones(2))[1].tolist()


class _Overflow(Exception):
    def __init__(self, rows: Any, value: Any = None) -> None:
        self.rows, self.value = rows, value


def test_exceptions_with_traced_values() -> None:
    def with_tensor(x: Tensor) -> Tensor:
        raise _Overflow(3, x * 2)

    def with_size(x: Tensor) -> Tensor:
        if x.shape[0] > 3:
            raise _Overflow(x.shape[0])
        return x * 2

    with pytest.raises(UnsupportedError, match="_Overflow"):
        st.compile(with_tensor)(torch.ones(2))
    region = st.compile(with_size)
    for n in (3, 4, 5, 2, 6):
        if n <= 3:
            assert torch.equal(region(torch.ones(n)), torch.full((n,), 2.0))
            continue
        with pytest.raises(_Overflow) as caught:
            region(torch.ones(n))
        assert type(caught.value.rows) is int and caught.value.rows == n


@pytest.mark.parametrize("make", [lambda: Held(torch.ones(2), 1), lambda: torch.nn.Parameter(Held(torch.ones(2), 1))])
def test_a_copy_of_a_wrapper_has_its_attributes(make: Callable[[], Any]) -> None:
    x = make()
    found, expected = st.compile(copy.copy)(x), copy.copy(x)
    assert vars(found).keys() == vars(expected).keys()
    assert isinstance(found, torch.nn.Parameter) == isinstance(expected, torch.nn.Parameter)
