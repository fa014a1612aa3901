"""Tables: how the things that a region may write are read as a whole, written at a key, and put
back.

A `Table` has no state; the thing is handed in. Things are read and written by the methods of the
built-in base (``dict``'s, ``OrderedDict``'s, ``type``'s), never by ``__setitem__`` or
``__setattr__`` of the user's.
"""

from __future__ import annotations

import collections
import sys
import types
import warnings
from collections.abc import Mapping as MappingType
from typing import Any

from ..subclass.attributes import members_of
from ..subclass.values import is_a
from .frames import frame_outside
from .place import Place
from .values import MISSING, base_of, dict_of_class


class Table:
    """One kind of mutable thing, as a table of key -> value."""

    def of(self, thing: Any) -> dict[Any, Any]:
        """All that it holds, as a copy."""
        raise NotImplementedError

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """Write a value; `MISSING` takes it away."""
        raise NotImplementedError

    def fill(self, thing: Any, table: MappingType[Any, Any]) -> None:
        """Make it hold exactly this, in this order."""
        now = self.of(thing)
        for key in now.keys() - table.keys():
            self.put(thing, key, MISSING)
        for key, value in table.items():
            if now.get(key, MISSING) is not value:
                self.put(thing, key, value)

    def extend(self, thing: Any, values: Any) -> None:
        """Add items at the end."""
        raise NotImplementedError


class Mapping(Table):
    """A dict, whatever its subclass: also the namespace of an object or of a Python module."""

    def of(self, thing: Any) -> dict[Any, Any]:
        """A copy."""
        return dict(base_of(thing).items(thing))

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """Set an item, or take it away."""
        base = base_of(thing)
        if value is MISSING:
            base.pop(thing, key, None)
        elif dict.__contains__(thing, key):
            dict.__setitem__(thing, key, value)
        else:
            base.__setitem__(thing, key, value)

    def fill(self, thing: Any, table: MappingType[Any, Any]) -> None:
        """In this order; where only values differ, only they are written."""
        if [*map(id, base_of(thing).keys(thing))] == [*map(id, table)]:
            return super().fill(thing, table)
        base = base_of(thing)
        base.clear(thing)
        for key, value in table.items():
            base.__setitem__(thing, key, value)


class Names(Mapping):
    """The namespace of an object or of a Python module, in which the order says nothing."""

    fill = Table.fill


class Sequence(Table):
    """A list or a deque."""

    def of(self, thing: Any) -> dict[Any, Any]:
        """Numbers -> items."""
        return dict(enumerate(base_of(thing).__iter__(thing)))

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """Set an item that is there."""
        base_of(thing).__setitem__(thing, key, value)

    def extend(self, thing: Any, values: Any) -> None:
        """Add items at the end."""
        base_of(thing).extend(thing, values)

    def fill(self, thing: Any, table: MappingType[Any, Any]) -> None:
        """All items, set afresh."""
        base_of(thing).clear(thing)
        base_of(thing).extend(thing, table.values())


class Bag(Table):
    """A set: each item is its own key."""

    def of(self, thing: Any) -> dict[Any, Any]:
        """Items -> themselves."""
        return {item: item for item in set.__iter__(thing)}

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """Add or discard."""
        set.discard(thing, key) if value is MISSING else set.add(thing, value)


#: the one key of a cell
CONTENTS = "cell_contents"


class Cell(Table):
    """A closure cell."""

    def of(self, thing: Any) -> dict[Any, Any]:
        """One row, or none."""
        try:
            return {CONTENTS: thing.cell_contents}
        except ValueError:
            return {}

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """Bind it, or empty it."""
        if value is MISSING:
            del thing.cell_contents
        else:
            thing.cell_contents = value


class OfClass(Table):
    """The attributes of a class, written through ``type``, whose caches of methods know of it
    then."""

    def of(self, thing: Any) -> dict[Any, Any]:
        """A copy, without what ``copy.copy`` remembers there."""
        return {k: v for k, v in dict_of_class(thing).items() if k != "__slotnames__"}

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """By ``type``'s own methods."""
        if value is not MISSING:
            type.__setattr__(thing, key, value)
        elif key in type.__dict__["__dict__"].__get__(thing):
            type.__delattr__(thing, key)


class Slots(Table):
    """The slots of an object."""

    def of(self, thing: Any) -> dict[Any, Any]:
        """Those that are not empty."""
        found = {}
        for name, member in members_of(type(thing)).items():
            try:
                found[name] = member.__get__(thing)
            except AttributeError:
                continue
        return found

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """Fill one, or empty it."""
        member = members_of(type(thing))[key]
        if value is not MISSING:
            member.__set__(thing, value)
        elif key in self.of(thing):
            member.__delete__(thing)


class Printed(Table):
    """What ``print`` writes to, with its options (the thing): each call adds to it."""

    def extend(self, thing: Any, values: Any) -> None:
        """Print it."""
        print(*values, **thing)


class Warned(Table):
    """A line of the user's that warns (the thing: category, file, line, module); or the caller of
    the region so many levels up (``outside``)."""

    def extend(self, thing: Any, values: Any) -> None:
        """Warn, if it is to be shown."""
        where: dict[str, Any] = dict(thing)
        if levels := where.pop("outside", 0):
            frame = frame_outside(sys._getframe(1), levels)
            names, file, line = frame.f_globals, frame.f_code.co_filename, frame.f_lineno
            where |= {"filename": file, "lineno": line, "module": names.get("__name__", "<string>")}
        else:
            names = vars(sys.modules.get(where["module"], types.ModuleType("")))
        seen = names.setdefault("__warningregistry__", {})
        (text,) = values
        warnings.warn_explicit(text, **where, registry=seen)


MAPPING, NAMES, SEQUENCE, BAG, CELL, CLASS, SLOTS, PRINTED, WARNED = (
    kind() for kind in (Mapping, Names, Sequence, Bag, Cell, OfClass, Slots, Printed, Warned)
)


def table_of(thing: Any) -> Table:
    """The table of a container or a cell."""
    if is_a(thing, dict):
        return MAPPING
    if is_a(thing, (list, collections.deque)):
        return SEQUENCE
    return BAG if is_a(thing, set) else CELL


class Written:
    """Something that a run writes.

    Attributes:
        thing, table, place: what it is, how it is read and written, where it stands.
        before: its table before the first write.
        keys: those that are written; None: any may be.
        added: the items that were added at the end of a list.
        moved: the keys that were taken away; those that are there again are the last ones.
    """

    __slots__ = ("added", "before", "keys", "moved", "place", "table", "thing")

    def __init__(self, thing: Any, table: Table, place: Place) -> None:
        self.thing, self.table, self.place = thing, table, place
        self.before = table.of(thing)
        self.keys: set[Any] | None = set()
        self.added: list[Any] = []
        self.moved: set[Any] = set()

    def covers(self, key: Any) -> bool:
        """Is what stands at a key now perhaps what the run has put there?"""
        if self.keys is None or self.table is CELL:
            return True
        if self.table is SEQUENCE:
            return type(key) is int and (key in self.keys or not 0 <= key < len(self.before))
        return key in self.keys

    @property
    def now(self) -> dict[Any, Any]:
        """Its table, without what another thread writes meanwhile at other keys."""
        held, before, keys = self.table.of(self.thing), self.before, self.keys
        if keys is None:
            return held
        if self.table is SEQUENCE:
            items = {key: held.get(key, value) for key, value in before.items() if key in keys}
            return {**before, **items, **dict(enumerate(self.added, len(before)))}
        own = {
            key: value if key in keys else before[key]
            for key, value in held.items()
            if key in keys or key in before
        }
        gone = {key: value for key, value in before.items() if key not in own and key not in keys}
        if not gone:
            return own
        kept = [key for key in before if key in own]
        if [*own][: len(kept)] != kept:  # one of them was taken away, and put there again
            return own | gone
        return {key: own.get(key, before[key]) for key in before if key in own or key in gone} | own

    def undo(self) -> None:
        """It holds what it held, and what another thread has written at other keys."""
        if self.keys is not None and self.table is SEQUENCE:
            _take_off(self.thing, self.added)
        now, before = self.table.of(self.thing), self.before
        if self.keys is None:
            if len(now) != len(before) or any(
                a is not b or now[a] is not before[b] for a, b in zip(now, before, strict=True)
            ):
                self.table.fill(self.thing, before)
            return
        for key in self.keys & now.keys() if self.table is SEQUENCE else self.keys:
            if now.get(key, MISSING) is not before.get(key, MISSING):
                self.table.put(self.thing, key, before.get(key, MISSING))
        now = self.table.of(self.thing)
        first = {key: now[key] for key in before if key in now}
        if self.table is MAPPING and [*first] != [key for key in now if key in before]:
            self.table.fill(self.thing, first | now)


def _take_off(thing: Any, added: list[Any]) -> None:
    """Items that were added at the end of a list or a deque go."""
    base = base_of(thing)
    for item in reversed(added):
        numbers = range(base.__len__(thing) - 1, -1, -1)
        at = next((k for k in numbers if base.__getitem__(thing, k) is item), None)
        if at is not None:  # else another thread has taken it
            base.__delitem__(thing, at)
