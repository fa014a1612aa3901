"""The guards of a region of one module for another module of the class, as if that one had been traced.

The same code would find the same places in it: each thing that only the first module leads to has a twin, which stands at the
same place of the other one. What both lead to is its own twin.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from ..subclass.attributes import namespace_of
from .guards import GONE, At, Contents, Guard, NoNewNames, StateGuards, alike, changed_since
from .source import Call, Holder, Names, Source
from .walk import Walk


class Twins:
    """The other module's things in place of the first one's.

    Attributes:
        own: id of a thing of the first module -> what the other has there.
    """

    def __init__(self, known: StateGuards, other: Any, call: Call) -> None:
        self.known, self.own, self._holders = known, dict[int, Any](), dict[Holder, Any]()
        for was in (known.walk.arguments, *known.walk.holders.values()):
            now = self._holders[was] = copy.copy(was)
            now.place, now.origin = (None if at is None else self._place(at) for at in (was.place, was.origin))
            if was.fixed and (was.path == "self" or was.origin is not None):
                value = other if now.origin is None else now.origin.read(call)
                first = was.thing if was.owner is None else was.owner
                if value is not first:
                    now.thing, now.owner = value, None if was.owner is None else value
                    self.own[id(first)] = value
                    if isinstance(was, Names):
                        self.own[id(was.thing)] = now.thing = namespace_of(value)

    def _place(self, was: Source) -> Source:
        return Source(self._holders[was.holder], was.key, was.items)

    def _value(self, was: Any) -> Any:
        return self.own.get(id(was), was)

    def _guard(self, was: Guard) -> Guard:
        if isinstance(was, At):
            return At(self._place(was.source), self._value(was.was))
        if isinstance(was, Contents):
            return replace(was, holder=self._holders[was.holder], items=tuple(map(self._value, was.items)))
        return replace(was, holder=self._holders[was.holder])

    def guards(self) -> StateGuards:
        """Those of the other module."""
        known, made, holders = self.known, copy.copy(self.known), self._holders
        made.walk = Walk()  # which leads to nothing of the first one's
        made.walk.arguments, *rest = holders.values()
        made.walk.holders = {id(h.thing if h.fixed else h): h for h in rest}
        made.flat, made.tensors = (tuple(map(self._place, places)) for places in (known.flat, known.tensors))
        made.each = [*map(self._guard, known.each)]
        made.by_holder = {holders[h]: [*map(self._guard, rows)] for h, rows in known.by_holder.items()}
        made.facts = [(text, self._value(a), self._value(b), path) for text, a, b, path in known.facts]
        made.aliases = [(self._place(a), self._place(b)) for a, b in known.aliases]
        made.moving = [*map(holders.__getitem__, known.moving)]
        made.same_tensors = {self._place(s): [*map(self._place, rest)] for s, rest in known.same_tensors.items()}
        return made

    def differ(self, guards: StateGuards, call: Call) -> set[str] | None:
        """The paths of numbers that are others; None where more is."""
        known, things = self.known, [id(h.thing) for h in self._holders.values() if h.fixed]
        try:
            others = [guard for guard in guards.all if not _holds(guard, call)]
            numbers = changed_since(guards, call)[0] if others else set()
            rows = zip(known.tensors, guards.tensors, strict=True)
            same = (
                len({*things}) == len(things)
                and len(others) == len(numbers)
                and all(a.read(call).shape == b.read(call).shape for a, b in rows)
                and all(a.read(call) is b.read(call) for a, rest in guards.same_tensors.items() for b in rest)
            )
            return numbers if same else None
        except GONE:
            return None


def _holds(guard: Guard, call: Call) -> bool:
    if isinstance(guard, At):
        return alike(guard.source.read(call), guard.was)
    now = guard.holder.now(call)
    return guard.absent.isdisjoint(now) if isinstance(guard, NoNewNames) else guard.holds(now)
