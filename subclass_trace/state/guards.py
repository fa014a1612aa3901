"""Guards: the rows of what a run has read, and where each call finds the inputs of the region.

Plain records: rows, places, literals. What of it stands still between calls is bound to the objects
of this process by `runtime.state_code.Pins`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..subclass.values import is_a, same
from .place import GONE, Place, Roots
from .recorder import StateRecorder
from .rows import Row


class StateGuards:
    """The guards of a specialization, or of a backward, on Python state.

    Attributes:
        rows: in the order in which they were read.
        flat: where each flat argument of the region is found: tensors and numbers that are symbols.
        tensors: the tensors among them.
        positional, keywords: how many arguments, and which keywords, a call has.
        function: the root "self".
    """

    def __init__(
        self,
        recorder: StateRecorder,
        call: Roots,
        flat: Sequence[Place] = (),
        numbers: frozenset[Place] = frozenset(),
    ) -> None:
        self.rows: tuple[Row, ...] = (*recorder.rows, *_others(recorder))
        self.flat = tuple(flat)
        self.tensors = tuple(place for place in flat if place not in numbers)
        self.positional, self.keywords = len(call.args), tuple(call.kwargs)
        self.function = call.function

    @classmethod
    def of(
        cls,
        rows: tuple[Row, ...],
        flat: tuple[Place, ...],
        tensors: tuple[Place, ...],
        positional: int,
        keywords: tuple[str, ...],
        function: Any,
    ) -> StateGuards:
        """Guards of rows that are known."""
        made = object.__new__(cls)
        made.rows, made.flat, made.tensors = rows, flat, tensors
        made.positional, made.keywords, made.function = positional, keywords, function
        return made

    @property
    def moves(self) -> bool:
        """Does anything stand among the arguments of a call?"""
        return any(_moves(row) for row in self.rows)

    @property
    def of_function_alone(self) -> bool:
        """Is anything reached from the region's function, which another one would not share?"""
        places = (p for row in self.rows for p in (row.place, *others_of(row)))
        return any(place.root.kind == "self" for place in places)

    @property
    def moving(self) -> list[Row]:
        """The rows about the arguments of a call, and then those about what caches give, which are
        asked when all else holds; `fixed`: the others."""
        arguments = [row for row in self.rows if _moves(row) and not _is_late(row)]
        return arguments + [row for row in self.rows if _is_late(row)]

    @property
    def fixed(self) -> list[Row]:
        """The rows about what stands still between calls."""
        return [row for row in self.rows if not _moves(row) and not _is_late(row)]

    def and_of_backward(self, other: StateGuards | None) -> StateGuards:
        """With what a backward reads of the arguments of its call."""
        if other is None or not other.moves:
            return self
        made = self.of_function(self.function)
        made.rows = (*self.rows, *(row for row in other.moving if not _is_late(row)))
        return made

    def of_function(self, function: Any) -> StateGuards:
        """The same rows for another function."""
        return StateGuards.of(
            self.rows, self.flat, self.tensors, self.positional, self.keywords, function
        )

    def failing(self, call: Roots) -> Iterator[Row]:
        """The rows that do not hold in a call."""
        for row in sorted(self.rows, key=_is_late):
            try:
                if row.holds(call):
                    continue
            except GONE:
                pass
            yield row


def _moves(row: Row) -> bool:
    return row.place.moves or any(place.moves for place in others_of(row))


def _is_late(row: Row) -> bool:
    return row.place.late or any(place.late for place in others_of(row))


def others_of(row: Row) -> tuple[Place, ...]:
    """The places that a row names besides its own."""
    if type(row.known) is Place:
        return (row.known,)
    return row.known if row.kind == "distinct" else ()


def _others(recorder: StateRecorder) -> Iterator[Row]:
    """What is written is another object than those of its class that the arguments hold: what a
    write to it would change."""
    written = {}
    for row in recorder.written.values():
        owner = recorder.owners.get(id(row.thing), row.thing)
        place = recorder.place_of(owner)
        if place is not None and not is_a(owner, (type, torch.Tensor)):
            written[id(owner)] = owner, place
    groups: dict[type, dict[int, Place]] = {
        type(owner): {id(owner): place} for owner, place in written.values()
    }
    for thing, place in list(recorder.known.values()) if written else ():
        if type(thing) in groups:
            groups[type(thing)].setdefault(id(thing), place)
    for places in groups.values():
        if len(places) > 1:
            first, *others = places.values()
            yield Row("distinct", first, tuple(others))


def changed_since(guards: StateGuards, call: Roots) -> set[str]:
    """The paths of numbers that changed since the trace and kept their types: they may become
    symbols."""
    found: set[str] = set()
    for row in guards.rows:
        if row.kind == "value" and type(row.known) in (int, float) and not row.place.late:
            with contextlib.suppress(*GONE):
                now = row.place.read(call)
                if type(now) is type(row.known) and not same(now, row.known):
                    found.add(str(row.place))
    return found
