"""Emitters for the guards on Python state: straight lines that find the inputs of a call, or miss.

What stands still between calls (`Pins`) is compared in one go: the versions of all dicts that
decided the trace, the classes of the objects, and what no version tells, each by identity. Only
when one of them differs are the rows themselves compared, and what stands there is pinned anew.
What stands among the arguments is compared in each call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..state.guards import StateGuards
from ..state.place import EXPRESSIONS, GONE, STEPS, Place, Roots, argument_text
from ..state.rows import KINDS, Row
from ..state.values import MISSING
from ..subclass.values import LITERALS, SINGLETONS, same
from .pins import Pins
from .source import Code

_of_instance = object.__getattribute__


@contextlib.contextmanager
def tried(source: Code, head: str) -> Iterator[None]:
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


class RowEmitter:
    """Writes places as local names, and rows as checks.

    Args:
        function: an expression for the root "self".
        bound: places that have names already.
    """

    def __init__(self, source: Code, function: str, bound: dict[Place, str] | None = None) -> None:
        self.source, self.function = source, function
        self.names: dict[Any, str] = dict(bound or {})
        source.bind("MISSING", MISSING)
        source.bind("Tensor", torch.Tensor)
        source.bind("namespace", _of_instance)

    def check(self, rows: Sequence[Row]) -> None:
        """Each of these rows."""
        for row in rows:
            of = self.source.bind("Roots", Roots)
            why = f"{self.source.held(row.why, 'why')}({of}(args, kwargs, {self.function}))"
            self.source.check(f"if not ({self.condition(row)})", why, row.code)

    def check_pins(self, pins: Pins) -> None:
        """What stands still: versions of dicts and classes, and what no version tells. Names of
        what is found there."""
        s = self.source
        if parts := pins.conditions(s):
            why = f"{s.held(pins.why, 'why_state')}()"
            head = f"if ({' or '.join(parts)}) and {s.held(pins.differs, 'state_differs')}()"
            s.check(head, why, "what the region reads of Python state is what it was")
        if pins.places:
            names = [s.name("x") for _ in pins.places]
            s.line(f"{', '.join(names)}, = {s.held(pins.things, 'still')}")
            self.names.update(zip(pins.places, names, strict=True))

    # ---- places
    def read(self, place: Place) -> str:
        """A local name of what stands at a place; it raises where there is nothing to step from."""
        name = self.names.get(place)
        if name is None:
            code = self._code(place)
            if place.parent is None and place.kind != "arg":
                name = code
            else:
                name = self.source.name("x" if place.kind == "arg" else "h")
                self.source.line(f"{name} = {code}")
            self.names[place] = name
        return name

    def _code(self, place: Place) -> str:
        s, key = self.source, place.key
        if place.parent is None:
            if place.kind == "self":
                return self.function
            if place.kind == "const":
                return s.held(key)
            return argument_text(key)
        if place.kind == "attr":
            return f"{self._space(place.parent)}.get({key!r}, MISSING)"
        parent = self.read(place.parent)
        if place.kind in EXPRESSIONS:
            return EXPRESSIONS[place.kind].format(parent, key)
        if place.kind == "call":
            return f"{parent}(*{s.held(key)})"
        known = repr(key) if type(key) in (int, str) else s.held(key)
        return f"{s.bind('step_' + place.kind, STEPS[place.kind])}({parent}, {known})"

    def _space(self, owner: Place) -> str:
        """The dict of the object at a place."""
        known = (owner, "dict")
        if known not in self.names:
            name = self.names[known] = self.source.name("d")
            self.source.line(f"{name} = namespace({self.read(owner)}, '__dict__')")
        return self.names[known]

    # ---- rows
    def condition(self, row: Row) -> str:
        """An expression that tells whether a row holds."""
        s, known, kind = self.source, row.known, row.kind
        if (
            kind == "value"
            and known is MISSING
            and row.place.kind == "attr"
            and row.place not in self.names
        ):
            assert row.place.parent is not None
            return f"{row.place.key!r} not in {self._space(row.place.parent)}"
        value = self.read(row.place)
        if kind == "value":
            return self._value(value, known)
        if kind in ("alias", "other"):
            return f"{value} is {'not ' * (kind == 'other')}{self.read(known)}"
        if kind == "distinct":
            ids = "".join(f", id({self.read(place)})" for place in known)
            return f"len({{id({value}){ids}}}) == {1 + len(known)}"
        if kind == "is":
            return f"{value} is {s.held(known)}"
        if kind == "type" or (kind == "number" and known is int):
            return f"type({value}) is {s.held(known)}"
        if kind == "tensor":
            return f"isinstance({value}, Tensor)"
        if kind == "len":
            return f"len({value}) == {known}"
        if kind == "truth":
            return value if known else f"not {value}"
        compare = s.bind(f"holds_{kind}", KINDS[kind][0])
        return f"{compare}({value}, {s.held(known)})"

    def _value(self, value: str, known: Any) -> str:
        kind = type(known)
        if kind in LITERALS and kind not in SINGLETONS:
            return f"type({value}) is {kind.__name__} and {value} == {known!r}"
        held = "MISSING" if known is MISSING else self.source.held(known)
        if kind in SINGLETONS or known is MISSING:
            return f"{value} is {held}"
        return f"({value} is {held} or {self.source.bind('same', same)}({value}, {held}))"


def state_holds(guards: StateGuards) -> Callable[[Any], bool]:
    """A function that tells of the (args, kwargs) of a call whether the state is as it was, for
    code that runs later."""
    with tried(s := Code("False"), "def holds(call):"):
        s.line("args, kwargs = call")
        rows = RowEmitter(s, s.held(guards.function, "function"))
        try:
            rows.check_pins(Pins(guards, sure=False))
            rows.check(guards.moving)
        # what stands there by now is of another kind: a later call may find what it was
        except GONE:
            rows.check(guards.rows)
    s.line("return True")
    return s.build("holds", "guards")


class StateEmitter:
    """Writes the checks of an entry, and the names of the flat arguments."""

    def __init__(self, source: Code, guards: StateGuards, pins: Pins) -> None:
        self.source, self.guards, self.pins = source, guards, pins
        self.rows = RowEmitter(source, source.held(guards.function, "function"))

    def read(self, place: Place) -> str:
        """An expression of what stands at a place."""
        return self.rows.read(place)

    def emit(self) -> list[str]:
        """All checks, inside of a ``try``; names of the flat arguments."""
        s, guards = self.source, self.guards
        keywords = f"(*kwargs,) != {s.constant(guards.keywords)}" if guards.keywords else "kwargs"
        expected = s.constant(
            f"arguments: expected {guards.positional} and the keywords {list(guards.keywords)}, "
            "got "
        )
        s.check(
            f"if len(args) != {guards.positional} or {keywords}",
            f"{expected} + f'{{len(args)}} and {{[*kwargs]}}'",
            f"len(args) == {guards.positional} and [*kwargs] == {list(guards.keywords)}",
        )
        self.rows.check_pins(self.pins)
        flat = {*guards.tensors}  # of these the class is compared with all else
        self.rows.check(
            [row for row in guards.moving if row.kind != "tensor" or row.place not in flat]
        )
        return [self.read(place) for place in guards.flat]
