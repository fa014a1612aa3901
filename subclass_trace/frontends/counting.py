"""Numbers that a function only moves on (``self.calls += 1``), which are moved on in each call.

While the function is traced, such a number is a `Counted` one: it notes what is added to it. So a float is moved in the very
steps that it would be moved in without a region, and a number that was assigned in between is told from one that was not.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.user_code import is_library
from ..plan import CountPlan
from ..runtime.guards import OF_EVERY_MODULE
from ..runtime.held import ABSENT
from .reach import Reached

#: what may be added to a number
_AMOUNTS: tuple[Any, ...] = (int, float, torch.SymInt, torch.SymFloat)
_MOST_ITEMS = 1000


class Counted:
    """A number that notes in ``steps`` what is added to it."""

    steps: tuple[Any, ...]

    def __add__(self, amount: Any) -> Any:
        return _moved(self, amount) if isinstance(amount, _AMOUNTS) else NotImplemented

    __radd__ = __add__  # as a Counter does

    def __sub__(self, amount: Any) -> Any:
        return _moved(self, 0 - amount) if isinstance(amount, _AMOUNTS) else NotImplemented


def _moved(number: Any, amount: Any) -> Counted:
    kind = float if isinstance(number, float) or isinstance(amount, (float, torch.SymFloat)) else int
    value = kind(number) + amount if isinstance(amount, (int, float)) else kind(number)  # nobody reads the sum
    return counted(value, (*number.steps, amount))


class _Int(Counted, int):
    pass


class _Float(Counted, float):
    pass


class Text(str):
    """A text that nobody reads."""


def counted(value: float, steps: tuple[Any, ...] = ()) -> Counted:
    """The number ``value`` as one that notes what is added to it."""
    made = _Float(value) if isinstance(value, float) else _Int(value)
    made.steps = steps
    return made


@dataclass(frozen=True, eq=False)
class Count:
    """``owner.name += value``, ``owner[name] += value``, or that of the contents of a cell; see `CountPlan`."""

    owner: Any
    name: Any
    is_item: bool
    value: Any

    def plan(self, result: int) -> CountPlan:
        """The same with the amount of a call, which is number ``result``."""
        return CountPlan(self.owner, self.name, self.is_item, result)


@dataclass(frozen=True, eq=False)
class Place:
    """Where a counter stands: in ``table[name]`` of ``owner``, or in the cell ``owner``. ``was``: what it held, or ABSENT."""

    owner: Any
    table: Any
    name: Any
    is_item: bool
    was: Any

    def read(self) -> Any:
        if self.table is None:
            return self.owner.cell_contents
        return value_at(self.table, self.name)

    def put(self, value: Any) -> None:
        if self.table is None:
            self.owner.cell_contents = value
        elif value is ABSENT:
            del self.table[self.name]
        else:
            self.table[self.name] = value

    def settle(self) -> Iterator[Count]:
        """Put back what was there, unless something else was assigned; what was added."""
        now = self.read()
        if isinstance(now, Text):
            self.put(self.was)
        if isinstance(now, Counted):
            self.put(self.was)
            whole = isinstance(now, int) and all(isinstance(n, (int, torch.SymInt)) for n in now.steps)
            for amount in [sum(now.steps)] if whole and now.steps else now.steps:
                yield Count(self.owner, self.name, self.is_item, amount)


def counters_of(
    reached: Reached,
    tables: Sequence[tuple[Any, Any]],
    skip: Collection[tuple[int, str]] = (),
    readable: Collection[int] = (),
) -> list[Place]:
    """The numbers that the code of a function only moves on, or only assigns; from now on they note what is added. And texts
    that it only assigns: from now on others like them, which shows if the code assigns what was there already.

    ``tables``: (object, module or class, its attributes as a dict); ``skip``: (id of an owner, name) of others;
    ``readable``: ids of containers whose numbers are read.
    """
    found = [*_places(reached, tables)] if reached.counters else []
    for owner, table in tables:
        names = left_out(owner, reached) if isinstance(owner, torch.nn.Module) else _unread(owner, table, reached)
        found += [Place(owner, table, n, False, table[n]) for n in names]
    places = [p for p in found if (id(p.owner), p.name) not in skip and id(p.owner) not in readable]
    for place in places:
        start = getattr(type(place.owner), place.name) if place.was is ABSENT else place.was
        place.put(Text(start) if isinstance(start, str) else counted(start))
    return places


def tallies_of(reached: Reached, tables: Sequence[tuple[Any, Any]]) -> dict[int, Any]:
    """The containers that the code only counts in (``tally[key] += 1``) or appends to, by their ids."""
    rows = [(row.name, row.read()) for row in reached.slots if row.name in reached.counters]
    rows += [(name, value_at(table, name)) for _, table in tables for name in reached.counters]
    found = [v for name, v in rows if isinstance(v, deque) or reached.only_adds(name, v)]
    return {id(value): value for value in found if isinstance(value, (dict, list, deque, set))}


def _places(reached: Reached, tables: Sequence[tuple[Any, Any]]) -> Iterator[Place]:
    names, seen = reached.counters, set[tuple[int, Any]]()

    def fresh(place: Place) -> Iterator[Place]:
        if (key := (id(place.owner), place.name)) not in seen:
            seen.add(key)
            yield place

    for row in reached.slots:
        if row.name in names and type(row.holder) in (dict, types.CellType):
            value, is_cell = row.read(), row.key is None
            if type(value) in (int, float):
                yield from fresh(Place(row.holder, None if is_cell else row.holder, row.key, not is_cell, value))
            for item in _items(value):
                yield from fresh(item)
    for owner, table in tables:
        for name in names:
            value = value_at(table, name)
            of_class = getattr(type(owner), name, None) if value is ABSENT else None
            if type(value) in (int, float) or type(of_class) in (int, float):
                yield from fresh(Place(owner, table, name, False, value))
            for item in _items(value):
                yield from fresh(item)


def read_late(module: torch.nn.Module, reached: Reached) -> frozenset[str]:
    """The attributes of a module of a class of the user's that only hooks name: the hooks look at them when they run."""
    names = (reached.late & vars(module).keys()) - OF_EVERY_MODULE
    bases = [cls for cls in type(module).__mro__ if cls not in (object, torch.nn.Module)]
    return frozenset(names) if names and not any(map(is_library, bases)) else frozenset()


def left_out(owner: Any, reached: Reached) -> frozenset[str]:
    """The numbers among the attributes of an object or module that its code assigns, and that no code reads.

    The classes must be the user's own: what code of a library reads is not known.
    """
    if not reached.unread or isinstance(owner, type) or not hasattr(owner, "__dict__"):
        return frozenset()
    bases = [cls for cls in type(owner).__mro__ if cls not in (object, torch.nn.Module)]
    held = vars(owner)
    names = {n for n in reached.unread if type(held.get(n)) in (int, float)} - OF_EVERY_MODULE
    return frozenset(names) if names and not any(map(is_library, bases)) else frozenset()


def _unread(owner: Any, table: Any, reached: Reached) -> list[str]:
    """The same, and texts, of an object, a class, a function or a Python module, all of whose attributes are in a table."""
    cls = owner if isinstance(owner, type) else type(owner)
    classes = [] if isinstance(owner, (types.FunctionType, types.ModuleType)) else cls.__mro__[:-1]
    if any(map(is_library, classes)):
        return []
    return sorted(n for n in reached.unread if type(value_at(table, n)) in (int, float, str))


def value_at(table: Any, name: Any) -> Any:
    try:
        return table[name]
    except LookupError:
        return ABSENT


def _items(value: Any) -> Iterator[Place]:
    """The numbers in a dict or a list."""
    if isinstance(value, (dict, list)) and len(value) <= _MOST_ITEMS:
        rows = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in list(rows):
            if type(item) in (int, float):
                yield Place(value, value, key, True, item)
