"""What of some guards stands still between calls, compared in one go.

The versions of all dicts and classes that decided the trace, the classes of the objects, and what
no version tells, are pinned: lists of objects, a function of C that is mapped over them, and what
it gave. Generated code maps it again and compares. Where something differs, the rows that it may
concern are compared, and what stands there now is pinned.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import operator
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import Reason
from ..state.guards import StateGuards, others_of
from ..state.place import GONE, STEPS, Call, Place
from ..state.recorder import instance_dict
from ..state.rows import HOOKS, KINDS, Row
from ..state.values import ATOMS, MISSING, is_a, lookup
from ..state.writes import MAPPING, NAMES
from ..torch_api import words
from ..torch_api.guards import own_table, versions_see_writes
from .batches import WORDS, batches, is_plain, own_dict, same_read
from .source import Source

#: a batch, and a number in it
Unit = tuple[str, int]
_NEW: Any = object()
_KEY = operator.attrgetter("key")


_FROZEN = (
    types.MethodType,
    property,
    staticmethod,
    classmethod,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
)


#: kinds of rows of which Python code compares something; of which anything is pinned besides the
# object
_FACTS = frozenset(("raw", "exact", "based", "hooks"))
_PINNED = frozenset((*_FACTS, "func", "len", "keys", "truth", "set", "type"))


class Pins:
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
            self.facts[:0] = [(_holds, None, "is", _NEW)] if self.facts else []

    @property
    def call(self) -> Call:
        """The roots."""
        return Call((), {}, self.guards.function)

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
        value = self._read.get(place, _NEW)
        found[place] = value = STEPS[place.kind](parent, place.key) if value is _NEW else value
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
        if is_a(of, list) and type(key) is int and -len(of) <= key < len(of):
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
                self._facts.append((_holds, value, row.kind, row.known))
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
                self._facts.append((_holds, value, row.kind, row.known))
        elif row.kind in _FACTS:
            self._facts.append((_holds, value, row.kind, row.known))
        elif row.kind == "type" and not is_plain(value):
            self._add("types", value)

    # ---- checking
    def hold(self) -> bool:
        """Do the facts, which C code cannot compare?"""
        for read, of, key, value in self.facts:
            if read is _holds:
                if not KINDS[key][0](of, value):
                    return False
                continue
            now = read(of, key)
            if now is not value and not same_read(now, value):
                return False
        return True

    def why(self) -> Reason | None:
        """Something differs: which row does not hold any more; None: all do, and what stands there
        now is pinned."""
        with self._lock:
            try:
                if self._failed is None or self._failed.holds(self.call):
                    self._failed = self._repin()
                if self._failed is not None:
                    return Reason(self._failed.why(self.call), self._failed.code)
                return self._other_kinds
            except GONE as error:
                self._failed = None
                gone = f"something is gone that the region reads ({error!r})"
                return Reason(gone, "what the region reads is there")

    def differs(self) -> bool:
        """The same, without words."""
        with self._lock:
            try:
                if self._failed is None or self._failed.holds(self.call):
                    self._failed = self._repin()
            except GONE:
                self._failed = None
                return True
            return self._failed is not None or self._other_kinds is not None

    @property
    def _other_kinds(self) -> Reason | None:
        """Generated code does not compare some kind of what is pinned by now."""
        if self._all_compared:
            return None
        others = {name for name, batch in self.batches.items() if batch.columns[0]} - self._compared
        if others or (self.facts and "facts" not in self._compared):
            return Reason("what the region reads of Python state is of other kinds than before")
        self._all_compared = True
        return None

    def _repin(self) -> Row | None:
        """Compare the rows that what differs may concern, and pin that; the first row that does not
        hold."""
        differing = [*self._differing()] if self._sure else []
        if self._sure and not any(self.empty) and (not self.facts or self.hold()):
            changed = self._changed([unit for unit, _ in differing])
            if changed is not None:
                return self._repin_some(differing, changed)
        read: dict[Place, Any] = {}
        failed = next(
            (
                row
                for row in self.rows
                if not row.holds_of(lambda place: self._reading(read, place))
            ),
            None,
        )
        if failed is None:
            self._bind(read)
            self._sure = True
        return failed

    def _differing(self) -> Iterator[tuple[Unit, Any]]:
        """The units that give something else than before, with that. A class that was written gets
        its version here."""
        for name, batch in self.batches.items():
            now = batch.now() if batch.known else batch.known
            if now != batch.known:
                for k in itertools.compress(itertools.count(), map(operator.ne, now, batch.known)):
                    cls = self._versioned.get((name, k))
                    word = None if cls is None else words.class_version(cls)
                    yield (name, k), now[k] if word is None else word.value

    def _changed(self, units: Sequence[Unit]) -> dict[Place, Any] | None:
        """What stands at other places than before, with what is below them; None: more than that
        differs."""
        changed: dict[Place, Any] = {}
        for unit in units:
            if unit not in self._told and unit not in self._about:
                return None
            if unit in self._versioned and words.class_version(self._versioned[unit]) is None:
                return None
            for place in self._differing_in(unit):
                assert place.parent is not None
                of = changed.get(place.parent, self._found[place.parent])
                now = STEPS[place.kind](of, place.key)
                if now is not self._found[place]:
                    self._move(place, now, changed)
        return changed

    def _differing_in(self, unit: Unit) -> Sequence[Place]:
        """The places that a unit tells of; of a dict those alone at which something else stands."""
        places = self._told.get(unit, ())
        table = self._dicts.get(unit)
        if table is None:
            return places
        now = map(dict.get, itertools.repeat(table), map(_KEY, places), itertools.repeat(MISSING))
        before = map(self._found.__getitem__, places)
        return [*itertools.compress(places, map(operator.is_not, now, before))]

    def _move(self, place: Place, now: Any, changed: dict[Place, Any]) -> None:
        changed[place] = now
        for below in self._children.get(place, ()):
            self._move(below, STEPS[below.kind](now, below.key), changed)

    def _repin_some(
        self, differing: Sequence[tuple[Unit, Any]], changed: dict[Place, Any]
    ) -> Row | None:
        at = self._rows_by_place()
        rows = [row for place in changed for row in at.get(place, ())]
        rows += [row for unit, _ in differing for row in self._about.get(unit, ())]

        def read(place: Place) -> Any:
            value = changed.get(place, _NEW)
            return (
                self._found[place]
                if value is _NEW and place in self._found
                else self._reading({}, place, value)
            )

        failed = next((row for row in rows if not row.holds_of(read)), None)
        if failed is not None:
            return failed
        for (name, k), given in differing:
            self.batches[name].pin(k, given)
        self._found.update(changed)
        moved = [place for place in changed if self._is_moved(place, changed, at)]
        if any(row.kind in _FACTS for place in moved for row in at.get(place, ())):
            self._bind({})
            return None
        for place in moved:
            self._release(place)
        count = len(self._facts)
        for place in moved:
            assert place.parent is not None
            self._tell(place, self._found[place.parent])
            for row in at.get(place, ()):
                if row.place is place:
                    self._pin_row(row)
            self._users.update(self._units_of[place])
        self._all_compared = self._all_compared and not moved
        if len(self._facts) > count:
            self._bind({})
        self.empty[:] = self._empty.values()
        if not changed.keys().isdisjoint(self.places):
            self.things[:] = [self._found[place] for place in self.places]
        return None

    def _is_moved(
        self, place: Place, changed: dict[Place, Any], at: dict[Place, list[Row]]
    ) -> bool:
        """Is something compared of the object at a place, or below it?"""
        pinned = any(row.place is place and row.kind in _PINNED for row in at.get(place, ()))
        return pinned or place in self._children or place.parent in changed

    def _rows_by_place(self) -> dict[Place, list[Row]]:
        if self._rows_at is None:
            self._rows_at = {}
            for row in self.rows:
                for place in (row.place, *others_of(row)):
                    self._rows_at.setdefault(place, []).append(row)
            self._users = collections.Counter(
                unit for units in self._units_of.values() for unit in units
            )
        return self._rows_at

    def _release(self, place: Place) -> None:
        """What tells of a place is compared no more, unless it tells of others."""
        units = self._units_of.pop(place, [])
        self._users.subtract(units)
        for unit in {*units}:
            name, k = unit
            if place in self._told.get(unit, ()):
                self._told[unit].remove(place)
            if unit in self._about:
                self._about[unit] = [row for row in self._about[unit] if row.place is not place]
            if not self._users[unit]:
                key = self._keys.pop(unit)
                for table in (self._once, self._told, self._about, self._versioned):
                    table.pop(unit if table is not self._once else key, None)
                if key[0] == "tables":
                    self._tables.pop(key[1], None)
                    self._dicts.pop(unit, None)
                    self._empty.pop(key[1], None)
                self.batches[name].drop(k)

    def _reading(self, read: dict[Place, Any], place: Place, value: Any = _NEW) -> Any:
        """What stands at a place, read once."""
        if value is not _NEW:
            return value
        value = read.get(place, _NEW)
        if value is _NEW:
            parent = place.parent
            of = None if parent is None else self._reading(read, parent)
            value = read[place] = (
                place.read(self.call) if parent is None else STEPS[place.kind](of, place.key)
            )
        return value

    def conditions(self, s: Source) -> list[str]:
        """Expressions that tell whether something differs."""
        self._compared = {name for name, batch in self.batches.items() if batch.columns[0]}
        if self.facts:
            self._compared.add("facts")
        parts = (
            [f"any({s.held(self.empty)})"]
            if self.empty or not all(map(words.dict_word, [{}]))
            else []
        )
        parts += [batch.code(s) for name, batch in self.batches.items() if name in self._compared]
        return parts + ([f"not {s.held(self.hold)}()"] if self.facts else [])

    # ---- what calls write
    def written_by_calls(self, effects: Sequence[Any]) -> list[Any]:
        """The dicts that a call writes where no row compares what it writes: see `pin_written`."""
        compared: dict[int, set[Any]] = {}
        for row in self.rows:
            place = row.place
            if place.parent is None or row.kind in ("number", "tensor"):
                continue
            with contextlib.suppress(*GONE):
                of = place.parent.read(self.call)
                space = (
                    of
                    if place.kind == "item"
                    else instance_dict(of)
                    if place.kind == "attr"
                    else None
                )
                if space is not None:
                    compared.setdefault(id(space), set()).add(
                        place.key if type(place.key) in ATOMS else None
                    )
        found: dict[int, list[Any]] = {}
        for effect in effects:
            if (
                effect.table in (NAMES, MAPPING)
                and isinstance(effect.place, Place)
                and not effect.place.moves
            ):
                found.setdefault(id(effect.place.read(self.call)), []).append(effect)
        free = (
            rows
            for rows in found.values()
            if all(self._is_free(effect, compared) for effect in rows)
        )
        return [effect for rows in free for effect in rows]

    def _is_free(self, effect: Any, compared: dict[int, set[Any]]) -> bool:
        thing = effect.place.read(self.call)
        if effect.how != "put" or not effect.values or effect.keys[0] not in thing:
            return False
        return effect.keys[0] not in compared.get(id(thing), ())

    def pin_written(self, things: Sequence[Any]) -> None:
        """After a call has written these itself: the next one need not compare what is named
        there."""
        changed: dict[Place, Any] = {}
        for thing in things:
            unit = self._tables.get(id(thing))
            if unit is not None:
                batch = self.batches[unit[0]]
                batch.pin(unit[1], batch.getter(*(column[unit[1]] for column in batch.columns)))
                found = self._changed([unit])
                if found is None:
                    return self._bind({})
                if any(self._is_moved(place, found, self._rows_by_place()) for place in found):
                    return self._bind({})
                changed.update(found)
        if changed:
            self._found.update(changed)
            self.things[:] = [self._found[place] for place in self.places]


def _holds(value: Any, kind: Any) -> None:
    """Stands for a row among facts."""
