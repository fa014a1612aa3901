"""Emitters for the guards on Python state: straight lines that find the inputs of a call, or miss.

What stands still between calls (`Pins`) is compared in one go: the versions of all dicts that decided the trace, the classes of
the objects, and what no version tells, each by identity. Only when one of them differs are the rows themselves compared, and
what stands there is pinned anew. What stands among the arguments is compared in each call.
"""

from __future__ import annotations

import collections
import contextlib
import operator
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .. import torch_api
from ..state.guards import StateGuards, others_of
from ..state.place import GONE, STEPS, Call, Place
from ..state.recorder import instance_dict
from ..state.rows import HOOKS, KINDS, Row
from ..state.values import ATOMS, MISSING, dict_of_class, is_a, lookup, same
from ..state.writes import MAPPING, NAMES
from ..torch_api import words
from .source import Source

_LITERAL = (int, str, bytes)
_ONE = (bool, type(None), type(Ellipsis), type(NotImplemented))
_of_instance = object.__getattribute__


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


class RowEmitter:
    """Writes places as local names, and rows as checks.

    Args:
        function: an expression for the root "self".
        bound: places that have names already.
    """

    def __init__(self, source: Source, function: str, bound: dict[Place, str] | None = None) -> None:
        self.source, self.function = source, function
        self.names: dict[Any, str] = dict(bound or {})
        source.bind("MISSING", MISSING)
        source.bind("Tensor", torch.Tensor)
        source.bind("namespace", _of_instance)

    def check(self, rows: Sequence[Row]) -> None:
        """Each of these rows."""
        for row in rows:
            why = f"{self.source.held(row.why)}({self.source.bind('Roots', Call)}(args, kwargs, {self.function}))"
            self.source.check(f"if not ({self.condition(row)})", why, row.code)

    def check_pins(self, pins: Pins) -> None:
        """What stands still: versions of dicts and classes, and what no version tells. Names of what is found there."""
        s = self.source
        if parts := pins.conditions(s):
            why = f"{s.held(pins.why)}()"
            head = f"if ({' or '.join(parts)}) and {why} is not None"
            s.check(head, why, "what the region reads of Python state is what it was")
        if pins.places:
            names = [s.name("x") for _ in pins.places]
            s.line(f"{', '.join(names)}, = {s.held(pins.things)}")
            self.names.update(zip(pins.places, names, strict=True))

    # ------------------------------------------------------------------------------------------ places
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
            return f"args[{key}]" if type(key) is int else f"kwargs[{key!r}]"
        if place.kind == "attr":
            return f"{self._space(place.parent)}.get({key!r}, MISSING)"
        parent = self.read(place.parent)
        if place.kind == "inner":
            return f"{parent}.{key}"
        if place.kind == "contents":
            return f"{parent}.cell_contents"
        if place.kind == "cell":
            return f"{parent}.__closure__[{key}]"
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

    # ------------------------------------------------------------------------------------------ rows
    def condition(self, row: Row) -> str:
        """An expression that tells whether a row holds."""
        s, known, kind = self.source, row.known, row.kind
        if kind == "value" and known is MISSING and row.place.kind == "attr" and row.place not in self.names:
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
        if kind in _LITERAL:
            return f"type({value}) is {kind.__name__} and {value} == {known!r}"
        held = "MISSING" if known is MISSING else self.source.held(known)
        if kind in _ONE or known is MISSING:
            return f"{value} is {held}"
        return f"({value} is {held} or {self.source.bind('same', same)}({value}, {held}))"


# ---------------------------------------------------------------------------------------------- what stands still
class Batch:
    """Many reads of one kind that have to give the same again, done by C code in one go: `getter` mapped over columns.

    ``by_id``: what they give is compared by identity; else by ``==`` (classes, lengths).
    """

    def __init__(self, getter: Callable[..., Any], *, by_id: bool) -> None:
        self.getter, self.by_id = getter, by_id
        self.columns: tuple[list[Any], ...] = ([],)
        self.known: list[Any] = []
        self.kept: list[Any] = []

    def add(self, *row: Any) -> None:
        """One read more."""
        if len(row) > len(self.columns):
            self.columns = tuple([] for _ in row)
        for column, part in zip(self.columns, row, strict=True):
            column.append(part)

    def pin(self) -> None:
        """What they give now; it is kept alive, so that no other object gets its id."""
        given = [*map(self.getter, *self.columns)]
        self.kept = given if self.by_id else []
        self.known[:] = map(id, given) if self.by_id else given

    def now(self) -> list[Any]:
        """What they give."""
        given = map(self.getter, *self.columns)
        return [*map(id, given)] if self.by_id else [*given]

    def code(self, s: Source) -> str:
        """An expression that tells whether they give something else."""
        given = f"map({s.held(self.getter)}, {', '.join(map(s.held, self.columns))})"
        return f"[*{f'map(id, {given})' if self.by_id else given}] != {s.held(self.known)}"


_SPACE, _MRO, _CODE = map(operator.attrgetter, ("__dict__", "__mro__", "__code__"))
_DEFAULTS, _NAMED_DEFAULTS = map(operator.attrgetter, ("__defaults__", "__kwdefaults__"))
_CONTENTS = operator.attrgetter("cell_contents")


class Pins:
    """What of some guards stands still between calls, as the last call has found it. Generated code has these very lists.

    Attributes:
        tables: versions of dicts that are not empty; ``empty``: the others. `batches`: all else that C code compares.
        facts: what it cannot.
        things: what stands at the places `places`: the tensors, and what is written or compared in each call.
    """

    def __init__(self, guards: StateGuards, written: Sequence[Place] = ()) -> None:
        self.guards, self.rows = guards, guards.fixed
        fixed = [p for row in guards.moving for p in (row.place, *others_of(row)) if not p.moves]
        wanted = [*(p for p in guards.flat if not p.moves), *(p for p in written if not p.moves), *fixed]
        self.places: tuple[Place, ...] = tuple(dict.fromkeys(wanted))
        self.empty: list[Any] = []
        self.facts: list[tuple[Callable[..., Any], Any, Any, Any]] = []  # reader, of what, key, what it gives
        self.things: list[Any] = []
        self.batches = {
            "words": Batch(words.value_of, by_id=False),
            "tables": Batch(torch_api.dict_version, by_id=False),
            "types": Batch(type, by_id=False),
            "spaces": Batch(_SPACE, by_id=True),
            "mros": Batch(_MRO, by_id=True),
            "codes": Batch(_CODE, by_id=True),
            "defaults": Batch(_DEFAULTS, by_id=True),
            "named": Batch(_NAMED_DEFAULTS, by_id=True),
            "cells": Batch(_CONTENTS, by_id=True),
            "slots": Batch(_of_instance, by_id=True),
            "lists": Batch(list.__getitem__, by_id=True),
            "lengths": Batch(len, by_id=False),
        }
        self._compared: set[str] = set()
        self._exact: Callable[..., Any] | None = None
        self._sees_writes = torch_api.versions_see_writes()
        self.bind()

    @property
    def call(self) -> Call:
        """The roots."""
        return Call((), {}, self.guards.function)

    def bind(self) -> None:
        """Pin what stands there now, which meets the rows."""
        self._found: dict[Place, Any] = {}
        self._empty: dict[int, Any] = {}
        self._once: dict[tuple[Any, ...], Any] = {}
        self._words: dict[int, Any] = {}  # id of a dict -> its word
        self.facts.clear()
        for batch in self.batches.values():
            for column in batch.columns:
                column.clear()
        for place in dict.fromkeys([*(row.place for row in self.rows), *self.places]):
            self._pin(place)
        for row in self.rows:
            self._pin_row(row)
        self.empty[:] = self._empty.values()
        for batch in self.batches.values():
            batch.pin()
        self._kept = [*self._found.values(), self._words]
        self.things[:] = [self._found[place] for place in self.places]
        self._read_from = {id(self._table(place)) for place in self.places}
        self._found, self._once = {}, {}

    def _table(self, place: Place) -> Any:
        """The dict that a place is read from, if it is one."""
        of = None if place.parent is None else self._found[place.parent]
        return instance_dict(of) if place.kind == "attr" else of

    def _add(self, batch: str, *row: Any) -> None:
        """Compare this from now on: by a word of memory where there is one for this kind."""
        key = (batch, *map(id, row))
        if key not in self._once:
            self._once[key] = row
            of_kind = _WORDS.get(batch)
            word = None if of_kind is None else of_kind(*row)
            if word is None:
                self.batches[batch].add(*row)
            else:
                self.batches["words"].add(word)
            if batch == "tables":
                self._words[id(row[0])] = (row[0], word)
                if not row[0]:
                    self._empty[id(row[0])] = row[0]

    def _pin(self, place: Place) -> Any:
        found = self._found
        if place in found:
            return found[place]
        parent = None if place.parent is None else self._pin(place.parent)
        if place.parent is None:
            found[place] = value = place.read(self.call)
            return value
        found[place] = value = STEPS[place.kind](parent, place.key)
        if not self._is_told(place.kind, place.key, parent):
            self.facts.append((STEPS[place.kind], parent, place.key, value))
        return value

    def _is_told(self, kind: str, key: Any, of: Any) -> bool:
        """Does something that C code compares tell that the step gives the same again? It is compared from now on."""
        sees = self._sees_writes
        if kind == "attr":
            return self._namespace(of)
        if kind == "getattr" and key == "__dict__" and not is_a(of, type):
            return self._namespace(of)
        if kind == "item":
            if is_a(of, dict) and sees:
                self._add("tables", of)
            elif is_a(of, list) and type(key) is int and -len(of) <= key < len(of):
                self._add("lists", of, key)
            else:
                return is_a(of, tuple)
            return True
        if kind in ("lookup", "own", "super") and sees:
            self._class(of if kind != "super" else key[0])
            return True
        if kind == "getattr" and type(key) is str and not is_a(of, (type, threading.local)):
            member = lookup(type(of), key)
            if type(member) is types.MemberDescriptorType and STEPS[kind](of, key) is not MISSING:
                self._class(type(of))
                self._add("types", of)
                self._add("slots", of, key)
                return True
            return False
        if kind == "contents" and STEPS[kind](of, key) is not MISSING:
            self._add("cells", of)
            return True
        if kind == "inner" and type(of) is types.FunctionType and key in ("__defaults__", "__kwdefaults__"):
            self._add("defaults" if key == "__defaults__" else "named", of)
            return True
        return kind == "cell" or (kind == "inner" and type(of) in _FROZEN)

    def _class(self, cls: type) -> None:
        """All that a class and its bases define."""
        if ("class", id(cls)) in self._once:
            return
        word = self._once["class", id(cls)] = words.class_version(cls)
        if word is not None:
            self.batches["words"].add(word)
            return
        for base in cls.__mro__:
            if base.__flags__ & 1 << 9:
                self._add("tables", _dict_of_class(base))
        self._add("mros", cls)

    def _namespace(self, of: Any) -> bool:
        space = instance_dict(of)
        if space is None or not self._sees_writes:
            return False
        if type(lookup(type(of), "__getattribute__")) is types.FunctionType:
            return False
        if (id(space),) not in self._once:
            self._once[(id(space),)] = ()
            torch_api.own_table(space)
        self._add("tables", space)
        self._add("types", of)
        self._add("spaces", of)
        return True

    def _pin_row(self, row: Row) -> None:
        """What of a thing is compared besides what it is."""
        value = self._found[row.place]
        if row.kind == "func" and type(value) is types.FunctionType:
            self._add("codes", value)
        elif row.kind == "hooks":
            for name in HOOKS:
                held = (instance_dict(value) or {}).get(name)
                if held is not None:
                    self._empty[id(held)] = held
            if not self._namespace(value):
                self.facts.append((_holds, value, row.kind, row.known))
        elif row.kind in ("len", "keys", "truth", "set"):
            if is_a(value, dict) and self._sees_writes and not is_a(value, collections.OrderedDict):
                self._add("tables", value)
            elif row.kind in ("len", "truth") and is_a(value, (list, set)):
                self._add("lengths", value)
            elif not is_a(value, tuple):
                self.facts.append((_holds, value, row.kind, row.known))
        elif row.kind in ("raw", "bare", "exact", "based"):
            self.facts.append((_holds, value, row.kind, row.known))
        elif row.kind == "type" and not _is_plain(value):
            self._add("types", value)

    # ------------------------------------------------------------------------------------------ checking
    def hold(self) -> bool:
        """Do the facts, which C code cannot compare?"""
        for read, of, key, value in self.facts:
            if read is _holds:
                if not KINDS[key][0](of, value):
                    return False
                continue
            now = read(of, key)
            if now is not value and not ((type(value) in ATOMS or type(value) is tuple) and same(now, value)):
                return False
        return True

    def why(self) -> str | None:
        """Something was written: which row does not hold any more; else all is pinned to what it is now."""
        if self._exact is None:
            self._exact = exact(self.rows)
        try:
            why = self._exact((), {}, self.guards.function)
        except GONE as error:
            return f"something is gone that the region reads ({error!r})"
        if why is None:
            self.bind()
            others = {name for name, batch in self.batches.items() if batch.columns[0]} - self._compared
            if others or (self.facts and "facts" not in self._compared):
                return "what the region reads of Python state is of other kinds than before"
        return why  # type: ignore[no-any-return]

    def conditions(self, s: Source) -> list[str]:
        """Expressions that tell whether something differs."""
        self._compared = {name for name, batch in self.batches.items() if batch.columns[0]}
        if self.facts:
            self._compared.add("facts")
        parts = [f"any({s.held(self.empty)})"] if self.empty or "tables" in self._compared else []
        parts += [batch.code(s) for name, batch in self.batches.items() if name in self._compared]
        return parts + ([f"not {s.held(self.hold)}()"] if self.facts else [])

    # ------------------------------------------------------------------------------------------ what calls write
    def written_by_calls(self, effects: Sequence[Any]) -> list[Any]:
        """The dicts that a call writes where no row compares what it writes: see `pin_written`."""
        compared: dict[int, set[Any]] = {}
        for row in self.rows:
            place = row.place
            if place.parent is None or row.kind in ("number", "tensor"):
                continue
            with contextlib.suppress(*GONE):
                of = place.parent.read(self.call)
                space = of if place.kind == "item" else instance_dict(of) if place.kind == "attr" else None
                if space is not None:
                    compared.setdefault(id(space), set()).add(place.key if type(place.key) in ATOMS else None)
        found: dict[int, list[Any]] = {}
        for effect in effects:
            if effect.table in (NAMES, MAPPING) and isinstance(effect.place, Place) and not effect.place.moves:
                found.setdefault(id(effect.place.read(self.call)), []).append(effect)
        free = (rows for rows in found.values() if all(self._is_free(effect, compared) for effect in rows))
        return [effect for rows in free for effect in rows]

    def _is_free(self, effect: Any, compared: dict[int, set[Any]]) -> bool:
        thing = effect.place.read(self.call)
        if effect.how != "put" or not effect.values or effect.keys[0] not in thing:
            return False
        return effect.keys[0] not in compared.get(id(thing), ())

    def pin_written(self, things: Sequence[Any]) -> None:
        """After a call has written these itself: the next one need not compare what is named there."""
        tables, cells = self.batches["tables"], self.batches["words"]
        for thing in things:
            _, word = self._words.get(id(thing), (None, None))
            batch, what = (tables, thing) if word is None else (cells, word)
            for k, known in enumerate(batch.columns[0]):
                if known is what:
                    batch.known[k] = batch.getter(what)
        if not self._read_from.isdisjoint(map(id, things)):
            self.things[:] = [place.read(self.call) for place in self.places]


#: the words of memory that tell what a batch does
_WORDS = {"tables": words.dict_word, "types": words.type_word, "codes": words.code_word, "cells": words.cell_word}
_WORDS["spaces"] = words.space_word
_FROZEN = (types.MethodType, property, staticmethod, classmethod, types.BuiltinFunctionType, types.MethodWrapperType)
_classes: dict[int, tuple[type, dict[str, Any]]] = {}


def _dict_of_class(cls: type) -> dict[str, Any]:
    found = _classes.get(id(cls))
    if found is None or found[0] is not cls:
        found = _classes[id(cls)] = cls, dict_of_class(cls)
    return found[1]


def _holds(value: Any, kind: Any) -> None:
    """Stands for a row among facts."""


def _is_plain(value: Any) -> bool:
    """Is it of a class whose objects keep it?"""
    kind = type(value)
    return kind in (dict, list, tuple, set, frozenset, types.MethodType) or not kind.__flags__ & 1 << 9


def exact(rows: Sequence[Row]) -> Callable[..., Any]:
    """``(args, kwargs, function) -> None``, or the reason why a row does not hold."""
    with tried(s := Source(), "def check(args, kwargs, function):"):
        RowEmitter(s, "function").check(rows)
    return s.why("check")


def state_holds(guards: StateGuards) -> Callable[[Any], bool]:
    """A function that tells of the (args, kwargs) of a call whether the state is as it was, for code that runs later."""
    with tried(s := Source("False"), "def holds(call):"):
        s.line("args, kwargs = call")
        rows = RowEmitter(s, s.held(guards.function, "function"))
        rows.check_pins(Pins(guards))
        rows.check(guards.moving)
    s.line("return True")
    return s.build("holds", "guards")


class StateEmitter:
    """Writes the checks of an entry, and the names of the flat arguments."""

    def __init__(self, source: Source, guards: StateGuards, pins: Pins) -> None:
        self.source, self.guards, self.pins = source, guards, pins
        self.rows = RowEmitter(source, source.held(guards.function, "function"))

    def read(self, place: Place) -> str:
        """An expression of what stands at a place."""
        return self.rows.read(place)

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
        self.rows.check_pins(self.pins)
        flat = {*guards.tensors}  # of these the class is compared with all else
        self.rows.check([row for row in guards.moving if row.kind != "tensor" or row.place not in flat])
        return [self.read(place) for place in guards.flat]
