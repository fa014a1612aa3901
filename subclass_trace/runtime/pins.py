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
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import Reason
from ..state.guards import others_of
from ..state.place import GONE, STEPS, Place
from ..state.recorder import instance_dict
from ..state.rows import KINDS, Row
from ..state.values import MISSING
from ..state.writes import MAPPING, NAMES
from ..subclass.values import ATOMS
from ..torch_api import words
from .batches import same_read
from .pinned import FACTS, NEW, Pinned, Unit, holds
from .source import Code

_KEY = operator.attrgetter("key")
#: kinds of rows of which anything is pinned besides the object
_PINNED = frozenset((*FACTS, "func", "len", "keys", "truth", "set", "type"))


class Pins(Pinned):
    """Pins that are compared, and moved to what stands there by now."""

    # ---- checking
    def hold(self) -> bool:
        """Do the facts, which C code cannot compare?"""
        for read, of, key, value in self.facts:
            if read is holds:
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
            value = changed.get(place, NEW)
            return (
                self._found[place]
                if value is NEW and place in self._found
                else self._reading({}, place, value)
            )

        failed = next((row for row in rows if not row.holds_of(read)), None)
        if failed is not None:
            return failed
        for (name, k), given in differing:
            self.batches[name].pin(k, given)
        self._found.update(changed)
        moved = [place for place in changed if self._is_moved(place, changed, at)]
        if any(row.kind in FACTS for place in moved for row in at.get(place, ())):
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

    def _reading(self, read: dict[Place, Any], place: Place, value: Any = NEW) -> Any:
        """What stands at a place, read once."""
        if value is not NEW:
            return value
        value = read.get(place, NEW)
        if value is NEW:
            parent = place.parent
            of = None if parent is None else self._reading(read, parent)
            value = read[place] = (
                place.read(self.call) if parent is None else STEPS[place.kind](of, place.key)
            )
        return value

    def conditions(self, s: Code) -> list[str]:
        """Expressions that tell whether something differs."""
        self._compared = {name for name, batch in self.batches.items() if batch.columns[0]}
        if self.facts:
            self._compared.add("facts")
        parts = (
            [f"any({s.held(self.empty, 'empty')})"]
            if self.empty or not all(map(words.dict_word, [{}]))
            else []
        )
        parts += [batch.code(s) for name, batch in self.batches.items() if name in self._compared]
        return parts + ([f"not {s.held(self.hold, 'facts_hold')}()"] if self.facts else [])

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
