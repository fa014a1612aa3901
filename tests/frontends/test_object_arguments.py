"""Objects among the arguments: what a guard keeps of one that is changed in place, or that is equal to another."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor
SCALE = 2.0


class Equal:
    """Equal to its like, if what it holds is."""

    factor = 3.0

    def __init__(self, k: Any) -> None:
        self._k = k

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and bool(self._k == other._k)

    __hash__ = None  # type: ignore[assignment]

    @property
    def k(self) -> Any:
        return self._k

    def __len__(self) -> int:
        return int(self._k)

    def __call__(self, x: Tensor) -> Tensor:
        return x * self._k  # type: ignore[no-any-return]


class Slotted:
    __slots__ = ("q",)

    def __init__(self, q: float) -> None:
        self.q = q

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slotted) and self.q == other.q


class Inner:
    def __init__(self, v: float) -> None:
        self.v = v


class Numbers(list[float]):
    def total(self) -> float:
        return sum(self)


@dataclasses.dataclass
class Record:
    k: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    k: Any


def scaled(x: Tensor, k: float = 1.0) -> Tensor:
    return x * SCALE * k


def sets(name: str, value: Any) -> Callable[[Any], None]:
    return lambda p: setattr(p, name, value)


#: name -> (function, first argument, changes: a new argument, or None where it is changed in place), specializations
CASES: dict[str, tuple[Callable[[Tensor, Any], Tensor], Callable[[], Any], list[Callable[[Any], Any]], int]] = {
    "property": (
        lambda x, p: x * p.k,
        lambda: Equal(1),
        [sets("_k", 2), lambda p: Equal(2), lambda p: Equal(5), lambda p: Equal(1)],
        3,
    ),
    "length": (lambda x, p: x * len(p), lambda: Equal(1), [sets("_k", 2)], 2),
    "call": (lambda x, p: p(x), lambda: Equal(1), [sets("_k", 2), lambda p: Equal(2)], 2),
    "slots": (lambda x, p: x * p.q, lambda: Slotted(1), [sets("q", 2), lambda p: Slotted(2)], 2),
    "class": (lambda x, p: x * p.k, lambda: Equal(1), [sets("__class__", type("E", (Equal,), {"k": 7}))], 2),
    "object inside": (lambda x, p: x * p.k.v, lambda: Equal(Inner(1)), [lambda p: sets("v", 7)(p.k)], 2),
    "object in a list inside": (lambda x, p: x * p.k[0].v, lambda: Equal([Inner(1)]), [lambda p: sets("v", 7)(p.k[0])], 2),
    "dataclass": (lambda x, p: x * p.k, lambda: Record(1), [sets("k", 2), lambda p: Record(2)], 2),
    "object in a dataclass": (lambda x, p: x * p.k.v, lambda: Record(Inner(1)), [lambda p: sets("v", 7)(p.k)], 2),
    "list in a frozen one": (
        lambda x, p: x * p.k[0],
        lambda: Frozen([1]),
        [lambda p: p.k.__setitem__(0, 7), lambda p: Frozen([7]), lambda p: Frozen([1])],
        2,
    ),
    "list of the user's": (lambda x, p: x * p.total(), lambda: Numbers([1.0]), [lambda p: p.append(3.0)], 2),
    "partial": (
        lambda x, p: p(x),
        lambda: functools.partial(scaled, k=2.0),
        [lambda p: p.keywords.__setitem__("k", 5.0)],
        2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_change_of_an_argument_is_seen(name: str) -> None:
    function, make, changes, count = CASES[name]
    rows = []
    region = st.compile(function)
    for call in (function, region):
        p = make()
        rows.append([float(call(torch.ones(()), p))])
        for change in changes:
            p = change(p) or p
            rows[-1] += [float(call(torch.ones(()), p)) for _ in range(2)]
    assert rows[0] == rows[1] and len(set(rows[0])) > 1
    assert len(region.specializations) == count


def test_what_a_class_among_the_arguments_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    region, p, x = st.compile(lambda x, p, f: f(x) * p.factor * p.k), Equal(1), torch.ones(())
    assert float(region(x, p, scaled)) == 6
    monkeypatch.setattr(Equal, "factor", 5.0)
    assert float(region(x, p, scaled)) == 10
    monkeypatch.setattr(Equal, "k", property(lambda self: 7))
    assert float(region(x, p, scaled)) == 70
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert float(region(x, p, scaled)) == 105


@pytest.mark.parametrize("make", [lambda: Equal(1), lambda: Record(1), lambda: Equal(Record(1))])
def test_what_a_region_assigns_it_assigns_to_the_argument_of_the_call(make: Callable[[], Any]) -> None:
    def function(x: Tensor, p: Any) -> Tensor:
        inner = p._k if isinstance(p, Equal) and isinstance(p._k, Record) else p
        inner.k2 = 3
        return x * 2

    region = st.compile(function)
    for p in [make(), make(), make()]:
        region(torch.ones(()), p)
        region(torch.ones(()), p)
        assert getattr(p, "k2", None) == 3 or p._k.k2 == 3


def test_an_object_that_holds_itself() -> None:
    p: Any = Equal(None)
    p._k, p.n = p, 2.0
    region = st.compile(lambda x, p: x * p.k.n)
    assert float(region(torch.ones(()), p)) == 2
    p.n = 3.0
    assert float(region(torch.ones(()), p)) == 3
