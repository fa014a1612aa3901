"""What of some guards is pinned: what C code compares of the objects that stand at their places."""

from __future__ import annotations

import collections
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

from ..state.guards import StateGuards, others_of
from ..state.place import STEPS, Place, Roots
from ..state.recorder import instance_dict
from ..state.rows import HOOKS, Row
from ..state.values import MISSING, lookup, size_of
from ..subclass.values import is_a
from ..torch_api import words
from ..torch_api.guards import own_table, versions_see_writes
from .batches import WORDS, batches, is_plain, own_dict

#: a batch, and a number in it
Unit = tuple[str, int]
#: stands for what is not read yet
NEW: Any = object()
_FROZEN = (
    types.MethodType,
    property,
    staticmethod,
    classmethod,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
)


#: kinds of rows of which Python code compares something
FACTS = frozenset(("raw", "exact", "based", "hooks", "size"))


class Pinned:
    """The pins of some guards, as the last call has found them. Generated code has these very
    lists.

    Attributes:
        batches: what C code compares; ``empty``: dicts that have to stay so; ``facts``: what only
            Python code compares.
        things: what stands at the places `places`: the tensors, and what is written or compared in
            each call.
    """

    def __init__(
        self, guards: StateGuards, written: Sequence[Place] = (), *, sure: bool = True
    ) -> None:
        """``sure``: what stands there now meets the rows; else they are compared before the pins
        are used."""
        self.guards, self.rows = guards, guards.fixed
        wanted = [
            *guards.flat,
            *written,
            *(p for row in guards.moving for p in (row.place, *others_of(row))),
        ]
        self.places: tuple[Place, ...] = tuple(
            dict.fromkeys(p for p in wanted if not p.moves and not p.late)
        )
        self.empty: list[Any] = []
        # reader, of what, key, what it gives
        self.facts: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self.things: list[Any] = []
        self.batches = batches()
        self._compared: set[str] = set()
        self._failed: Row | None = None
        self._sees_writes = versions_see_writes()
        self._lock = threading.RLock()  # a cache that is asked again may call a region
        self._bind({})
        self._sure = sure
        if not sure:
            for batch in self.batches.values():
                batch.known.clear()
            self.facts[:0] = [(holds, None, "is", NEW)] if self.facts else []

    @property
    def call(self) -> Roots:
        """The roots."""
        return Roots((), {}, self.guards.function)

    # ---- pinning
    def _bind(self, found: dict[Place, Any]) -> None:
        """Pin what stands there now, which meets the rows. ``found``: what was read of it by
        now."""
        self._found: dict[Place, Any] = {}
        self._read = found
        self._once: dict[tuple[Any, ...], Any] = {}
        self._told: dict[Unit, list[Place]] = {}
        self._about: dict[Unit, list[Row]] = {}
        self._units_of: dict[Place, list[Unit]] = {}
        self._keys: dict[Unit, Any] = {}  # of `_once`
        for batch in self.batches.values():
            batch.next = []
        self._tables: dict[int, Unit] = {}  # id of a dict -> its unit
        self._dicts: dict[Unit, dict[Any, Any]] = {}
        self._versioned: dict[Unit, type] = {}  # units of versions of classes
        self._empty: dict[int, Any] = {}
        self._facts: list[Any] = []
        for place in dict.fromkeys([*(row.place for row in self.rows), *self.places]):
            self._pin(place)
        for row in self.rows:
            self._pin_row(row)
        for batch in self.batches.values():
            batch.commit()
        self.facts[:], self.empty[:] = self._facts, self._empty.values()
        self.things[:] = [self._found[place] for place in self.places]
        self._all_compared = False
        self._children: dict[Place, list[Place]] = {}
        for place in self._found:
            if place.parent is not None:
                self._children.setdefault(place.parent, []).append(place)
        self._rows_at: dict[Place, list[Row]] | None = None

    def _add(self, batch: str, *row: Any) -> Unit:
        """Compare this from now on: by a word of memory where there is one for this kind."""
        key = (batch, *map(id, row))
        unit: Unit | None = self._once.get(key)
        if unit is None:
            of_kind = WORDS.get(batch)
            word = None if of_kind is None else of_kind(*row)
            name, what = (batch, row) if word is None else ("words", (word,))
            unit = self._once[key] = name, self.batches[name].add(what)
            self._keys[unit] = key
            if batch == "tables":
                self._tables[id(row[0])], self._dicts[unit] = unit, row[0]
                if (
                    word is None and not row[0]
                ):  # a first `update` does not move the versions that are counted by watchers
                    self._empty[id(row[0])] = row[0]
        self._units.append(unit)
        return unit

    def _pin(self, place: Place) -> Any:
        found = self._found
        if place in found:
            return found[place]
        if place.parent is None:
            found[place] = value = place.read(self.call)
            return value
        parent = self._pin(place.parent)
        value = self._read.get(place, NEW)
        found[place] = value = STEPS[place.kind](parent, place.key) if value is NEW else value
        self._tell(place, parent)
        return value

    def _tell(self, place: Place, parent: Any) -> None:
        """Compare what tells that a place is read as it is now."""
        self._units = self._units_of.setdefault(place, [])
        units = self._telling(place.kind, place.key, parent)
        if units is None:
            self._facts.append((STEPS[place.kind], parent, place.key, self._found[place]))
        for unit in units or ():
            self._told.setdefault(unit, []).append(place)
            if place.kind == "getattr":  # what stands there is no item of the dict
                self._dicts.pop(unit, None)

    def _telling(self, kind: str, key: Any, of: Any) -> Sequence[Unit] | None:
        """What is compared from now on, and tells that the step gives the same again; None: nothing
        does."""
        sees = self._sees_writes
        if kind == "attr" or (kind == "getattr" and key == "__dict__" and not is_a(of, type)):
            return self._namespace(of)
        if kind == "item":
            return self._item(of, key)
        if kind in ("lookup", "own", "super") and sees:
            return self._class(of if kind != "super" else key[0])
        if kind == "getattr" and type(key) is str and not is_a(of, (type, threading.local)):
            return self._slot(of, key)
        if kind == "contents" and STEPS[kind](of, key) is not MISSING:
            return [self._add("cells", of)]
        if (
            kind == "inner"
            and type(of) is types.FunctionType
            and key in ("__defaults__", "__kwdefaults__")
        ):
            self._add("defaults" if key == "__defaults__" else "named", of)
            return ()
        return () if kind == "cell" or (kind == "inner" and type(of) in _FROZEN) else None

    def _item(self, of: Any, key: Any) -> Sequence[Unit] | None:
        if is_a(of, dict) and self._sees_writes:
            return [self._add("tables", of)]
        if is_a(of, list) and type(key) is int and -size_of(of) <= key < size_of(of):
            return [self._add("lists", of, key)]
        return () if is_a(of, tuple) else None

    def _slot(self, of: Any, key: str) -> Sequence[Unit] | None:
        member = lookup(type(of), key)
        if type(member) is not types.MemberDescriptorType or STEPS["getattr"](of, key) is MISSING:
            return None
        self._class(type(of))
        self._add("types", of)
        return [self._add("slots", of, key)]

    def _class(self, cls: type) -> list[Unit]:
        """All that a class and its bases define."""
        known: list[Unit] | None = self._once.get(("class", id(cls)))
        if known is None:
            word = words.class_version(cls)
            if word is not None:
                known = [("words", self.batches["words"].add((word,)))]
                self._versioned[known[0]], self._keys[known[0]] = cls, ("class", id(cls))
            else:
                self._add("mros", cls)
                known = [
                    self._add("tables", own_dict(base))
                    for base in cls.__mro__
                    if base.__flags__ & 1 << 9
                ]
            self._once["class", id(cls)] = known
        self._units += known
        return known

    def _namespace(self, of: Any) -> Sequence[Unit] | None:
        space = instance_dict(of)
        if space is None or not self._sees_writes:
            return None
        if type(lookup(type(of), "__getattribute__")) is types.FunctionType:
            return None
        if ("own", id(space)) not in self._once:
            self._once["own", id(space)] = True
            own_table(space)
        self._add("types", of)
        self._add("spaces", of)
        return [self._add("tables", space)]

    def _pin_row(self, row: Row) -> None:
        """What of a thing is compared besides what it is."""
        value = self._found[row.place]
        self._units = self._units_of.setdefault(row.place, [])
        if row.kind == "func" and type(value) is types.FunctionType:
            self._add("codes", value)
        elif row.kind == "hooks":
            for name in HOOKS:
                held = (instance_dict(value) or {}).get(name)
                if held is not None:
                    self._empty[id(held)] = held
            if self._namespace(value) is None:
                self._facts.append((holds, value, row.kind, row.known))
        elif row.kind == "truth" and not row.known and is_a(value, dict):
            self._empty[id(value)] = value
        elif row.kind in ("len", "keys", "truth", "set"):
            # No version tells of the order of an OrderedDict.
            ordered = is_a(value, collections.OrderedDict) and row.kind == "keys"
            if is_a(value, dict) and self._sees_writes and not ordered:
                self._about.setdefault(self._add("tables", value), []).append(row)
            elif row.kind in ("len", "truth") and is_a(value, (list, set)):
                self._about.setdefault(self._add("lengths", value), []).append(row)
            elif not is_a(value, tuple):
                self._facts.append((holds, value, row.kind, row.known))
        elif row.kind in FACTS:
            self._facts.append((holds, value, row.kind, row.known))
        elif row.kind == "type" and not is_plain(value):
            self._add("types", value)


def holds(value: Any, kind: Any) -> None:
    """Stands for a row among facts."""
