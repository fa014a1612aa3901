"""What a function does to Python state while it is traced.

A trace runs the function once, on tensors without data. What it assigns to globals, cells, attributes and items, what it
counts, appends and removes is taken back, and done in each call; objects that it makes are made anew for each (see
`capture.objects_made`). A traced tensor that it puts into a list, a dict or an object would stay there in the place of a real
one, and no later call would put another there: it is taken out, and refused.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..capture.dispatch_state import assigned
from ..capture.facts import holds_traced
from ..capture.user_code import is_foreign
from ..errors import UnsupportedError
from ..plan import AppendPlan, AssignmentPlan, RemovalPlan
from ..runtime.guards import NameGuard
from ..runtime.held import ABSENT, Same, Slotted, as_held, is_simple
from ..subclass.arguments import attributes_inside
from ..subclass.context import is_atom
from ..subclass.paths import Path
from .asked import Asked
from .counting import Count, Counted, Place, Text, counters_of, tallies_of, value_at
from .members import attributes_of, is_plain_object
from .reach import Reached, Slot

_MUTABLE = (list, dict, set, deque)
_SYMBOLS: tuple[Any, ...] = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True, eq=False)
class Effect:
    """``holder[key] = value``; the contents of a cell where ``key`` is None. ``anew``: see `AssignmentPlan`."""

    holder: Any
    key: Any
    value: Any
    anew: bool = False

    def plan(self, result: int) -> AssignmentPlan:
        """The same with the value of a call, which is number ``result``."""
        return AssignmentPlan(self.holder, None, self.key, result, self.anew)

    def read(self) -> Any:
        """What stands there after a call."""
        return self.holder.cell_contents if self.key is None else self.holder[self.key]


@dataclass(frozen=True, eq=False)
class Removal:
    """``del holder[key]``; of a list or a deque the last item (-1)."""

    holder: Any
    key: Any
    value: None = None

    def plan(self, result: int) -> RemovalPlan:
        """The same in a call."""
        return RemovalPlan(self.holder, None, self.key, result)


@dataclass(frozen=True, eq=False)
class Append:
    """``holder.append(value)``, to a list, a deque or a set. ``anew``: see `AssignmentPlan`."""

    holder: Any
    value: Any
    anew: bool = False

    def plan(self, result: int) -> AppendPlan:
        """The same with the value of a call, which is number ``result``."""
        return AppendPlan(self.holder, result, self.anew)


Change: TypeAlias = Effect | Removal | Count | Append


@dataclass(frozen=True, eq=False)
class Kept:
    """What a region leaves in Python state, as it outlives the trace.

    Attributes:
        known: ids of the containers that are not new.
        lends: tells of an object if an input has it.
    """

    known: Collection[int]
    lends: Callable[[Any], bool]

    def is_made(self, value: Any) -> bool:
        """Is it a container that the function made?"""
        return type(value) in _MUTABLE and id(value) not in self.known

    def is_traced(self, value: Any) -> bool:
        """Is it a tensor, or holds it traced ones?"""
        simple = self.lends(value) or isinstance(value, _SYMBOLS) or is_simple(value)
        return not simple and (isinstance(value, torch.Tensor) or holds_traced(value))

    def effect(self, holder: Any, key: Any, value: Any) -> Effect:
        """It was put there."""
        return Effect(holder, key, value, self.is_made(value))

    def append(self, holder: Any, value: Any) -> Append:
        """It was added to this."""
        return Append(holder, value, self.is_made(value))


@contextlib.contextmanager
def effects_on(
    reached: Reached, readable: Collection[int] = (), lends: Callable[[Any], bool] = lambda _: False
) -> Iterator[list[Change]]:
    """Inside, the function runs. Afterwards what it reaches is as it was, but for objects that containers got, and for those
    that were moved in lists: these happen at trace time.

    Yields a list that is filled on the way out: what was done with numbers, flags and strings. Torch's own modules make
    good what they keep for themselves (an RNN the list of its weights).

    ``readable``: ids of containers that it reads otherwise than by the names with which it counts or appends;
    ``lends``: tells of an object if an input has it.

    Raises:
        UnsupportedError: traced tensors were left somewhere.
    """
    skip = {(id(place.holder), place.name) for place in assigned()}  # what wrapper classes count is not the function's
    rows = [(held, held.content()) for held in held_by(reached)]
    kept = Kept({id(value) for value, _ in reached.held}, lends)
    slots = [(row, row.read()) for row in writable(reached) if (id(row.holder), row.name) not in skip]
    effects: list[Change] = []
    found: list[Path] = []
    left: list[Any] = []
    tables = [(held.owner, held.value) for held, _ in rows if held.attributes]
    counters = counters_of(reached, tables, skip, readable)
    tallies = {key: value for key, value in tallies_of(reached, tables).items() if key not in readable}
    emptied = {key for key, value in tallies.items() if isinstance(value, set) or getattr(value, "maxlen", None)}
    for key in emptied:  # else what is in there already, and what drops out, would hide what is added
        tallies[key].clear()
    try:
        yield effects
    finally:
        for place in counters:
            effects += _settle(place)
        for row, was in slots:
            now = row.read()
            if now is not was and lends(now):
                effects.append(Effect(row.holder, row.key, now))
                _bind(row.holder, row.key, was)
                continue
            of_python = not isinstance(row.holder, Asked)
            if _is_effect(was, now) or (of_python and _is_another(was, now)):
                effects.append(kept.effect(row.holder, row.key, now))
                _bind(row.holder, row.key, was)
            elif now is ABSENT and was is not ABSENT and row.key is not None and of_python:
                effects.append(Removal(row.holder, row.key))
                _bind(row.holder, row.key, was)
            elif now is not was and holds_traced(now):
                found.append(row.path)
                left.append(now)
                _bind(row.holder, row.key, was)
        for held, was in rows:
            if held.attributes or isinstance(held.value, dict):
                others = {name for owner, name in skip if owner == id(held.owner)}
                effects += _take_back(held, was, id(held.value) in tallies, others, kept)
            elif isinstance(held.value, (list, deque, set)):
                effects += _items_back(held.value, was, id(held.value) in emptied, kept)
            traced = [v for v in held.added(was) if holds_traced(v)]
            if traced:
                held.restore(was)
                left += traced
                if held.path is not None:
                    found.append(held.path)
    if found:
        raise UnsupportedError(
            "a traced tensor escapes from the region through Python state",
            path=found[0],
            expected="results that are returned; buffers and attributes of modules may be assigned",
            got=f"a traced tensor, or a size of one, in {found[0]}, which the function reads or writes",
            fix="return it and store it outside of the region, hand over the list or dict as an argument, or keep a tensor "
            "in a buffer of a module",
        )


def _inside(value: Any, depth: int = 4) -> Iterator[Any]:
    """What lies in a list, and in containers and objects there."""
    if type(value) in (*_MUTABLE, tuple):
        items = list(value.values() if isinstance(value, dict) else value)
    else:
        items = [v for _, v in attributes_inside(value)] if is_plain_object(value) else []
    if not items or not depth:
        yield value
    for item in items if depth else ():
        yield from _inside(item, depth - 1)


def writable(reached: Reached) -> Iterator[Slot]:
    """The slots that code may bind to something else."""
    return (row for row in (*reached.slots, *reached.unbound) if _is_writable(row.holder))


def put_back(row: Slot, value: Any) -> None:
    """Bind a slot to what it held."""
    _bind(row.holder, row.key, value)


def _is_writable(holder: Any) -> bool:
    return type(holder) in (dict, types.CellType) or (isinstance(holder, Asked) and holder.write is not None)


def _bind(holder: Any, key: str | None, value: Any) -> None:
    """Give a name or an attribute its value back."""
    if key is None:
        holder.cell_contents = value
    elif value is ABSENT:
        del holder[key]
    else:
        holder[key] = value


def _is_effect(was: Any, now: Any) -> bool:
    """Was a number, a flag or a string assigned, or a size?"""
    if now is was or now is ABSENT or not (isinstance(now, _SYMBOLS) or is_simple(now)):
        return False
    return not _is_same(was, now)


def _is_same(was: Any, now: Any) -> bool:
    return now is was or (type(now) is type(was) and is_simple(now) and bool(now == was))


def _is_another(was: Any, now: Any) -> bool:
    """Was an object, a function or a container assigned where something else was, and no tensor?"""
    if now is was or isinstance(was, torch.Tensor):
        return False
    return not (now is ABSENT or isinstance(now, torch.Tensor) or is_simple(now) or holds_traced(now))


def _settle(place: Place) -> Iterator[Change]:
    """What a counter was moved by, or what was assigned to it."""
    now = place.read()
    if isinstance(now, (Counted, Text)) or not is_simple(now):
        yield from place.settle()
    elif now is not ABSENT:
        yield Effect(place.owner if place.table is None else place.table, place.name, now)
        place.put(place.was)


def _take_back(
    held: _Held,
    was: dict[Any, Any],
    counted: bool,
    skip: Collection[str],
    kept: Kept,
) -> Iterator[Change]:
    """Of attributes, or of a dict."""
    table, of_torch = held.value, held.attributes and held.path is None
    moved = [] if held.attributes else _moved(list(table), list(was))
    if any(kept.is_traced(table[key]) for key in moved):
        moved = []  # which is refused
    again = set(map(id, moved))  # a tensor that is a key has no simple ``==``
    yield from (Removal(table, key) for key in moved if key in was)
    for key in list(table):
        before, now = was.get(key, ABSENT), table[key]
        if now is not before and kept.lends(now):
            yield Effect(table, key, now)
            _bind(table, key, before)
            continue
        another = not of_torch and _is_another(before, now)
        if key is None or key in skip or not (another or _is_effect(before, now) or id(key) in again):
            continue
        missing = before is ABSENT and hasattr(type(table), "__missing__")  # a plain dict has nothing to add to there
        if counted and missing and isinstance(now, (int, float, *_SYMBOLS)):
            yield Count(table, key, True, now)
        else:
            yield kept.effect(table, key, now)
        _bind(table, key, before)
    gone = [key for key in was if key not in table and key not in skip]
    for key in gone:
        yield Removal(table, key)
        table[key] = was[key]
    if (gone or moved) and type(table) is dict and not held.attributes:  # in their old order
        new = {key: table.pop(key) for key in list(table)}
        table.update({key: new.pop(key) for key in was if key in new} | new)


def _moved(now: list[Any], was: list[Any]) -> list[Any]:
    """The keys that stand elsewhere than they would if others had gone and new ones had come."""
    there = set(now)
    expected = [key for key in was if key in there]
    first = next((k for k, (a, b) in enumerate(zip(now, expected, strict=False)) if a is not b), None)
    return [] if first is None else now[first:]


def _items_back(container: Any, was: Any, emptied: bool, kept: Kept) -> Iterator[Change]:
    """What was done to a list, a deque or a set, if no tensors are among what it got.

    ``emptied``: it was empty when the function began, and code only adds to it.
    """
    old = list(was)
    now = list(container) if emptied or _is_changed(container, was) else old
    if any(kept.is_traced(v) for v in _new_ones(now, () if emptied else old)):
        if emptied:
            _fill(container, [*old, *now])
        return
    changes: list[Change]
    if emptied:
        changes = [kept.append(container, v) for v in now]
    elif isinstance(container, set):
        changes = [Removal(container, v) for v in old if v not in container]
        changes += [kept.append(container, v) for v in _new_ones(now, old)]
    elif (new := _appended(now, old, getattr(container, "maxlen", None))) is not None:
        changes = [kept.append(container, v) for v in new]
    else:
        changes = [Removal(container, -1) for _ in old[len(now) :]]
        both = enumerate(zip(now, old, strict=False))
        changes += [kept.effect(container, k, value) for k, (value, before) in both if not _is_same(before, value)]
        changes += [kept.append(container, v) for v in now[len(old) :]]
    if emptied or now is not old:
        _fill(container, old)
    yield from changes


def _is_changed(container: Any, was: Any) -> bool:
    if isinstance(container, set):  # a copy may have another order
        return set(map(id, container)) != set(map(id, was))
    return len(container) != len(was) or any(map(operator.is_not, container, was))


def _fill(container: Any, items: Sequence[Any]) -> None:
    container.clear()
    (container.update if isinstance(container, set) else container.extend)(items)


def _new_ones(now: Sequence[Any], old: Sequence[Any]) -> list[Any]:
    known = set(map(id, old))
    return [v for v in now if id(v) not in known]


def _appended(now: list[Any], old: list[Any], most: int | None) -> list[Any] | None:
    """The new items, where nothing else was done, but that a deque of at most so many has dropped others; else None."""
    for k in range(len(old) + 1) if most == len(now) else range(1):
        rest = old[k:]
        if len(rest) <= len(now) and not any(map(operator.is_not, now, rest)):
            return now[len(rest) :]
    return None


def left_alone(reached: Reached, plans: Iterable[Any]) -> list[NameGuard]:
    """Guards for attributes that code assigns and does not read, where the trace has assigned nothing, or what was there:
    a call in which something else is there is of another kind. For numbers and texts it is known which: see `counters_of`.
    Flags, functions and the like are few, and so are objects that are found elsewhere as well; others are not compared.

    ``plans``: what a call does to Python state.
    """
    assigned = {
        (_table_key(plan.owner), plan.name) for plan in plans if isinstance(plan, (AssignmentPlan, RemovalPlan))
    }
    found, known = [], {id(value) for value, _ in reached.held}
    for held in held_by(reached) if reached.unread else ():
        if not held.attributes or held.path is None or isinstance(held.owner, torch.nn.Module):
            continue
        for name in sorted(reached.unread):
            value = value_at(held.value, name)
            if (_table_key(held.value), name) not in assigned and (_is_fixed(value) or id(value) in known):
                table = held.value if type(held.value) is dict else Slotted(held.owner)
                seen = as_held(value) if is_simple(value) else Same(value)
                found.append(NameGuard(table, name, seen, held.path.attr(name)))
    return found


def _table_key(table: Any) -> int:
    """One number for all tables of the attributes of one object."""
    if isinstance(table, ClassTable):
        return id(table.cls)
    if isinstance(table, Slotted):
        return id(table.value)
    return id(table.table) if isinstance(table, _Stored) else id(table)


def _is_fixed(value: Any) -> bool:
    """Is it one of few: a flag, a member of an enum, a dtype, a function?"""
    if value is ABSENT or type(value) in (int, float, str):
        return False
    return (
        is_simple(value) or is_atom(value) or isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType))
    )


# ---------------------------------------------------------------------------------------------- what may be changed
@dataclass(frozen=True, eq=False)
class _Held:
    """A container, or the attributes of an object or a class (seen as a dict). ``path``: None where nobody is told."""

    value: Any
    path: Path | None
    attributes: bool = False
    owner: Any = None  # whose attributes they are

    def content(self) -> Any:
        """A copy of it."""
        if self.attributes or isinstance(self.value, dict):
            return {k: self.value[k] for k in list(self.value)}
        return list(self.value) if isinstance(self.value, _Cache) else type(self.value)(self.value)

    def added(self, was: Any) -> list[Any]:
        """What it holds that it did not hold before."""
        if isinstance(was, dict):
            return [v for k, v in self.content().items() if k not in was or was[k] is not v]
        known = set(map(id, was))
        return [v for v in self.value if id(v) not in known]

    def restore(self, was: Any) -> None:
        """Make it what it was."""
        value = self.value
        if isinstance(was, dict):
            for key in [k for k in list(value) if k not in was]:
                del value[key]
            for key, item in was.items():
                value[key] = item
        elif isinstance(value, _Cache):
            value.function.cache_clear()
        else:
            value.clear()
            value.update(was) if isinstance(was, set) else value.extend(was)


class ClassTable:
    """The attributes of a class, as a dict."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self.cls))

    def __getitem__(self, key: str) -> Any:
        return vars(self.cls)[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if vars(self.cls).get(key) is not value:
            setattr(self.cls, key, value)

    def __delitem__(self, key: str) -> None:
        delattr(self.cls, key)


class _Stored:
    """The globals of a Python module, or the attributes of an ``nn.Module``, as far as the code assigns them as attributes."""

    def __init__(self, table: dict[str, Any], names: Collection[str]) -> None:
        self.table, self.names = table, names

    def __iter__(self) -> Iterator[str]:
        return (name for name in sorted(self.names) if name in self.table)

    def __getitem__(self, key: str) -> Any:
        return self.table[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.table[key] = value

    def __delitem__(self, key: str) -> None:
        del self.table[key]


class _Cache:
    """What a function with ``functools.lru_cache`` remembers. It is emptied, where a trace has left something there."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __iter__(self) -> Iterator[Any]:
        """The tensors inside."""
        todo, seen = [(self.function, 0)], set[int]()
        while todo:
            value, depth = todo.pop()
            for inner in gc.get_referents(value):
                if isinstance(inner, torch.Tensor):
                    yield inner
                elif depth < 4 and id(inner) not in seen and not isinstance(inner, (type, types.FunctionType, str)):
                    seen.add(id(inner))
                    todo.append((inner, depth + 1))


def held_by(reached: Reached) -> Iterator[_Held]:
    """The containers, objects and classes that code may change."""
    for value, path in reached.held:
        if isinstance(value, _MUTABLE):
            yield _Held(value, path)
        elif isinstance(value, type):
            yield _Held(ClassTable(value), path, attributes=True, owner=value)
        elif isinstance(value, types.ModuleType):  # other threads may be at work there
            yield _Held(_Stored(vars(value), reached.stored), path, attributes=True, owner=value)
        elif isinstance(value, functools._lru_cache_wrapper):
            yield _Held(_Cache(value), path)
        elif (attributes := attributes_of(value)) is not None:
            yield _Held(attributes, path, attributes=True, owner=value)
    for root, path in reached.modules:
        for name, module in root.named_modules():
            place, foreign = path.attr(name) if name else path, is_foreign(type(module))
            if foreign:  # what torch's own modules keep for themselves is nobody's business
                yield _Held(_Stored(vars(module), reached.stored), place, attributes=True, owner=module)
            yield _Held(vars(module), None if foreign else place, attributes=True, owner=module)
