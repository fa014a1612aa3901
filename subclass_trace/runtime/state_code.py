"""Emitters for the guards on Python state: straight lines that find the inputs of a call, or miss.

The versions of all dicts that decided a trace are compared in one go (60 us for 1,024). Only when one of them was written since
are its named keys compared, and its version is pinned to what it is now. Empty tables of hooks are compared by one ``any()``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .. import torch_api
from ..state.guards import GONE, At, Guard, Like, NoNewNames, StateGuards, alike, is_input
from ..state.source import Arguments, Cell, Holder, Mapping, Names, Variable
from ..state.source import Sequence as ListLike
from ..state.source import Source as Place
from ..state.values import ATOMS, MISSING, factory_of, is_a
from .source import Source

_NO_CALL: Any = ((), {})
_LITERAL = (int, str, bytes)
_ONE = (bool, type(None), type(Ellipsis), type(NotImplemented))


class Pins:
    """The fixed places of some guards, as the last call has found them. Generated code has these very lists.

    Attributes:
        tables, versions: dicts that are not empty, and their versions; ``empty``: the others.
        fixed: the tensors at places in them.
    """

    def __init__(self, guards: StateGuards) -> None:
        self.guards = guards
        self.holders = list(guards.by_holder) if torch_api.versions_see_writes() else []
        for holder in self.holders:
            if type(holder) is Names and holder.owner is not None:
                torch_api.own_table(holder.thing)
        pairs = [(first, other) for first, others in guards.same_tensors.items() for other in others]
        pinned = set(self.holders)
        self.places = frozenset(s for s in {*guards.tensors, *itertools.chain(*pairs)} if s.holder in pinned)
        self._first = [s for s in guards.tensors if s in self.places]
        self._same = [pair for pair in pairs if self.places.issuperset(pair)]
        self._with_tensors = frozenset(s.holder for s in self.places)
        self._checks: dict[Holder, Callable[..., str | None]] = {}
        self.tables: list[dict[Any, Any]] = []
        self.versions: list[int] = []
        self.empty: list[dict[Any, Any]] = []
        self.fixed: list[Any] = []
        self._pin()
        self._fetch()

    def _pin(self) -> None:
        self._full = {h: k for k, h in enumerate(h for h in self.holders if h.thing)}
        self.empty[:] = [h.thing for h in self.holders if not h.thing]
        self.tables[:] = [h.thing for h in self._full]
        self.versions[:] = map(torch_api.dict_version, self.tables)

    def _fetch(self) -> None:
        self.fixed[:] = [s.read(_NO_CALL) for s in self._first]

    def why(self) -> str | None:
        """Dicts were written: what of it does not hold any more; else their versions are pinned to what they are now."""
        now = [*map(torch_api.dict_version, self.tables)]
        written = [h for h, a, b in zip(self._full, now, self.versions, strict=True) if a != b]
        filled = [h for h in self.holders if h.thing and h not in self._full] if any(self.empty) else []
        for holder in (*filled, *written):
            if holder not in self._checks:
                with tried(s := Source(), "def check(args, kwargs):"):
                    StateEmitter(s, self.guards, self).check_all(self.guards.by_holder[holder])
                self._checks[holder] = s.why("check")
            if (why := self._checks[holder]((), {})) is not None:
                return why
        if not self._with_tensors.isdisjoint((*written, *filled)):
            if not all(a.read(_NO_CALL) is b.read(_NO_CALL) for a, b in self._same):
                return "other tensors that code names are one and the same"
            self._fetch()
        if filled:
            self._pin()
        else:
            self.versions[:] = now
        return None

    def written_by_calls(self, effects: Sequence[Any]) -> list[Holder]:
        """The dicts that a call writes where no guard compares what it writes: see `pin_written`."""
        found: dict[Holder, bool] = {}
        for effect in effects:
            holder, key = effect.holder, effect.keys[:1]
            if holder in self.guards.by_holder:
                rows = [g for g in self.guards.by_holder[holder] if isinstance(g, At) and not is_input(g.was)]
                free = effect.how == "put" and effect.values and key[0] in holder.thing
                found[holder] = bool(free and all(g.source.key != key[0] for g in rows)) and found.get(holder, True)
        return [holder for holder, free in found.items() if free]

    def pin_written(self, holders: Sequence[Holder]) -> None:
        """After a call has written these itself: the next one need not compare what is named there."""
        for holder in holders:
            if (place := self._full.get(holder)) is not None:
                self.versions[place] = torch_api.dict_version(holder.thing)
        if not self._with_tensors.isdisjoint(holders):
            self._fetch()


@contextlib.contextmanager
def tried(source: Source, head: str) -> Iterator[None]:
    """Write a function that misses where something is gone."""
    source.line(head)
    source.depth = 1
    source.line("try:")
    source.depth = 2
    yield
    source.line("pass")
    source.depth = 1
    names = ", ".join(error.__name__ for error in GONE)
    gone = "f'something is gone that the region reads ({error!r})'"
    source.check(f"except ({names}) as error", gone, "what the region reads is there")


def state_holds(guards: StateGuards) -> Callable[[], bool]:
    """A function that tells whether the state is as it was, for code that has no arguments."""
    with tried(s := Source("False"), "def holds(args=(), kwargs={}):"):
        StateEmitter(s, guards, Pins(guards)).emit()
    s.line("return True")
    return s.build("holds", "guards")


class StateEmitter:
    """Writes the checks: moving holders get local names, fixed ones are bound."""

    def __init__(self, source: Source, guards: StateGuards, pins: Pins) -> None:
        self.source, self.guards, self.pins = source, guards, pins
        self.names: dict[Holder, str] = {}
        source.bind("MISSING", MISSING)
        source.bind("alike", alike)
        source.bind("Tensor", torch.Tensor)
        source.bind("namespace", object.__getattribute__)
        source.bind("factory_of", factory_of)

    def emit(self) -> list[str]:
        """All checks, inside of a ``try``; names of the flat arguments."""
        s, guards = self.source, self.guards
        keywords = f"(*kwargs,) != {s.constant(guards.keywords)}" if guards.keywords else "kwargs"
        expected = s.constant(f"arguments: expected {guards.positional} and the keywords {list(guards.keywords)}, got ")
        s.check(
            f"if len(args) != {guards.positional} or {keywords}",
            f"{expected} + f'{{len(args)}} and {{[*kwargs]}}'",
            f"len(args) == {guards.positional} and [*kwargs] == {list(guards.keywords)}",
        )
        self._fixed()
        self.check_all(guards.each if self.pins.holders else guards.all)
        for first, second in guards.aliases:
            self._same(first, second, "object")
        self._objects()
        return self._tensors()

    def check_all(self, guards: Any) -> None:
        """Each of these guards."""
        for guard in guards:
            why = f"{self.source.held(guard.why)}((args, kwargs))"
            self.source.check(f"if not ({self._condition(guard)})", why, guard.code)

    def _same(self, first: Place, other: Place, what: str) -> None:
        head = f"if {self.read(other)} is not {self.read(first)}"
        self.source.check(head, repr(f"{first} and {other} were one {what}"), f"{other} is {first}")

    def _fixed(self) -> None:
        """The versions of dicts, and what no version tells."""
        s, pins = self.source, self.pins
        if pins.holders:
            tables, versions, empty = s.held(pins.tables), s.held(pins.versions), s.held(pins.empty)
            now = f"[*map({s.bind('version', torch_api.dict_version)}, {tables})]"
            why = f"{s.held(pins.why)}()"
            failed = f"if (any({empty}) or {now} != {versions}) and {why} is not None"
            s.check(failed, why, "the dicts that code names hold what they held")
        for expression, thing, known, path in self.guards.facts:
            head = f"if {expression.format(s.held(thing))} is not {s.held(known)}"
            s.check(head, repr(f"{path} changed"), f"{path} is the same")

    # ------------------------------------------------------------------------------------------ places
    def _name(self, holder: Holder) -> str:
        """A name that has the thing of a holder."""
        if holder not in self.names:
            if holder.fixed:
                self.names[holder] = self.source.held(holder.thing)
            elif isinstance(holder, Arguments):
                self.names[holder] = "(args, kwargs)"
            else:
                assert holder.place is not None
                value = self.read(holder.place)
                name = self.names[holder] = self.source.name("h")
                space = f"namespace({value}, '__dict__')"
                self.source.line(f"{name} = {space if isinstance(holder, Names) else value}")
        return self.names[holder]

    def read(self, place: Place) -> str:
        """An expression for the value at a place; it raises where there is none."""
        s, holder, key = self.source, place.holder, place.key
        known = repr(key) if type(key) in (int, str) else s.held(key)
        if isinstance(holder, Arguments):
            text = f"args[{key}]" if type(key) is int else f"kwargs[{key!r}]"
        elif isinstance(holder, Cell) and not isinstance(holder, Variable):
            text = f"{self._name(holder)}.cell_contents"
        elif isinstance(holder, (Mapping, ListLike)):
            plain, name = type(holder.thing) in (dict, list), self._name(holder)
            text = f"{name}[{known}]" if plain else f"{s.held(holder.base.__getitem__)}({name}, {known})"
        else:
            text = f"{s.held(holder.get)}({self._name(holder)}, {known})"
        return text + "".join(f"[{k}]" for k in place.items)

    # ------------------------------------------------------------------------------------------ conditions
    def _condition(self, guard: Guard) -> str:
        s = self.source
        if isinstance(guard, NoNewNames):
            return f"{s.held(guard.absent)}.isdisjoint({self._name(guard.holder)})"
        if isinstance(guard, At):
            if guard.was is MISSING:
                return f"{s.held(guard.source.read)}((args, kwargs)) is MISSING"
            return self._value(self.read(guard.source), guard.was)
        name = self._name(guard.holder)
        if guard.kind is list and guard.holder.guarded is not None:
            items = [self._value(f"{name}[{k}]", v) for k, v in enumerate(guard.items)]
            return " and ".join([f"type({name}) is list and len({name}) == {len(items)}", *items])
        return f"{s.held(guard.holds)}({name})"

    def _value(self, value: str, was: Any) -> str:
        kind = type(was)
        if kind is Like:
            if was.kind is torch.Tensor:
                return f"isinstance({value}, Tensor)"
            held = self.source.held
            return f"{held(was.holds)}({value})" if was.kind is float else f"type({value}) is {held(was.kind)}"
        if kind in _LITERAL:
            return f"type(v := {value}) is {kind.__name__} and v == {was!r}"
        known = self.source.held(was)
        by_identity = kind in _ONE or (kind not in ATOMS and not is_a(was, (tuple, frozenset)))
        return f"{value} is {known}" if by_identity else f"((v := {value}) is {known} or alike(v, {known}))"

    def _objects(self) -> None:
        """No two objects of the arguments are one, and none is an object that the region names."""
        if moving := [self._name(h) for h in self.guards.moving]:
            fixed = frozenset(number for number, h in self.guards.walk.holders.items() if h.fixed)
            self.source.line(f"ids = {{{', '.join(f'id({name})' for name in moving)}}}")
            condition = f"len(ids) == {len(moving)} and {self.source.held(fixed)}.isdisjoint(ids)"
            why = "two objects of the arguments are one, or one that the region names"
            self.source.check(f"if not ({condition})", repr(why), "the objects of the arguments are distinct")

    def _tensors(self) -> list[str]:
        """Local names of the flat arguments. (That each tensor is another one the check of all tensors sees.)"""
        s, pinned = self.source, self.pins.places
        names = {place: s.name("x") for place in self.guards.flat}
        tensors = {place: names[place] for place in self.guards.tensors}
        if fixed := [name for place, name in tensors.items() if place in pinned]:
            s.line(f"{', '.join(fixed)}, = {s.held(self.pins.fixed)}")
        for place, name in names.items():
            if place not in pinned:
                s.line(f"{name} = {self.read(place)}")
        for first, others in self.guards.same_tensors.items():
            for other in others:
                if not {first, other} <= pinned:
                    self._same(first, other, "tensor")
        return list(names.values())
