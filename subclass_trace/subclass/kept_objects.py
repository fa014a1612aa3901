"""What stands for objects of contexts in what guards keep: see `kept`."""

from __future__ import annotations

import contextlib
import dis
import functools
import types
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .. import _torch
from .arguments import (
    ABSENT,
    FOREIGN,
    NAMESPACES,
    Absent,
    attribute_inside,
    attributes_inside,
    has_attributes,
    has_own_equality,
)
from .context import (
    PLAIN,
    Kept,
    KeptPlain,
    is_atom,
    same_context,
    snapshot,
)
from .tensors import facts_of, parts_of_tensor, same_bytes, why_not_comparable

_ATOMIC = PLAIN | {Absent}


class KeptObject(Kept):
    """An object by reference, and what it held.

    It is itself, or one that is equal to it, as long as it still holds that: wrappers that a region builds are given the
    object itself. Where its class says what is equal, attributes may change that do not count (a hash that it remembers).
    """

    __slots__ = ("cls", "keys", "names", "parts", "path", "twin")

    def __init__(self, value: Any, path: str = "", names: list[str] | None = None) -> None:
        """``names``: the attributes that count; None: all that it holds. ``path``: where it was met."""
        self.value, self.cls, self.path, self.names = value, type(value), path, names
        self.keys: tuple[Any, ...] = ()
        self.parts: tuple[Any, ...] = ()
        self.twin = _twin(value) if names is None else None  # what was read counts, whatever the class calls equal

    def rows(self) -> list[tuple[Any, Any]]:
        """What it holds now, of what counts."""
        if self.names is None:
            return list(holdings(self.value))
        return [(name, attribute_inside(self.value, name)) for name in self.names]

    def holds(self, now: Any) -> bool:
        """Is ``now`` the same for a guard, and does the object hold what it held?"""
        return (now is self.value or same_context(self.value, now)) and self.is_as_it_was()

    def reads_alike(self, now: Any) -> bool:
        """Does another object hold the same, of what was read? Its class's ``==`` may leave some of that out."""
        rows = zip(self.keys, self.parts, strict=True) if self.names is not None else ()
        return all(same_context(part, attribute_inside(now, name)) for name, part in rows)

    def is_as_it_was(self) -> bool:
        """Does the object hold what it held?"""
        try:
            rows = self.rows()
            same = self._held(rows) or (self.twin is not None and self._still_equal(dict(rows)))
            return same and type(self.value) is self.cls
        except Exception:  # code of the object's class
            return False

    def changed(self) -> str:
        """What it holds no more, as a sentence."""
        now = dict(self.rows())
        for key, part in zip(self.keys, self.parts, strict=True):
            if key not in now or not same_context(part, now[key]):
                return f"{self.path}: expected {key}={part!r:.200}, got {now.get(key, ABSENT)!r:.200}"
        return f"{self.path}: an object was changed"

    def remembers_more(self, now: Any) -> bool:
        """Is it the object, which holds what it held, and besides what it has remembered since: see `remembers_more`."""
        if now is not self.value or isinstance(now, (*_SEQUENCES, set, frozenset)):
            return False
        rows = dict(holdings(now))
        return all(k in rows and remembers_more(v, rows[k], True) for k, v in zip(self.keys, self.parts, strict=True))

    def _held(self, rows: list[tuple[Any, Any]]) -> bool:
        if len(rows) != len(self.keys):
            return False
        for key, part, (k, v) in zip(self.keys, self.parts, rows, strict=True):
            if key is not k and key != k:
                return False
            if (v is not part or type(v) not in _ATOMIC) and not same_context(part, v):
                return False
        return True

    def _still_equal(self, now: dict[str, Any]) -> bool:
        """Are those that differ bound anew, and the object equal to what it was?"""
        known = zip(self.keys, self.parts, strict=True)
        inside = all(k in now and same_context(v, now[k]) for k, v in known if not is_atom(v))
        return inside and (self.twin == self.value) is True

    def __repr__(self) -> str:
        return f"{self.value!r}, as it was"


def _twin(value: Any) -> Any:
    """Another object with the attributes that ``value`` has now, where its class has an equality of its own."""
    cls = type(value)
    plain = all(k is object or ("__slots__" not in vars(k) and k.__module__ != "builtins") for k in cls.__mro__)
    if not plain or any("__new__" in vars(k) for k in cls.__mro__[:-1]) or not has_own_equality(cls):
        return None
    twin = object.__new__(cls)
    twin.__dict__.update(attributes_inside(value))
    return twin


class HeldObject(Kept):
    """An object by reference: itself, or one that is equal to it. What it holds is compared once in a call: see `Held`."""

    __slots__ = ("cls", "row")

    def __init__(self, row: KeptObject) -> None:
        self.value, self.cls, self.row = row.value, type(row.value), row

    def holds(self, now: Any) -> bool:
        """Is ``now`` the same for a guard?"""
        if type(now) is not self.cls:
            return False
        return now is self.value or (same_context(self.value, now) and self.row.reads_alike(now))

    def __repr__(self) -> str:
        return repr(self.value)


class KeptFields(Kept):
    """A dataclass with generated equality, of which each wrapper is given a copy: what the trace has read of it.

    Attributes:
        rows: attribute -> what is kept of it. ``path``: where it was met.
    """

    __slots__ = ("cls", "path", "rows", "slotted")

    def __init__(self, value: Any, rows: Mapping[str, Any], path: str) -> None:
        self.value, self.cls, self.rows, self.path = snapshot(value), type(value), dict(rows), path
        self.slotted = any("__slots__" in vars(k) for k in self.cls.__mro__[:-1])

    @property
    def names(self) -> list[str]:
        """The attributes that count."""
        return list(self.rows)

    def holds(self, now: Any) -> bool:
        """Does another one hold the same, of what was read?"""
        if type(now) is not self.cls:
            return False
        held = None if self.slotted else object.__getattribute__(now, "__dict__")
        for name, part in self.rows.items():
            found = attribute_inside(now, name) if held is None else held.get(name, ABSENT)
            if (found is not part or type(found) not in _ATOMIC) and not same_context(part, found):
                return False
        return True

    def fresh(self) -> Any:
        """A copy of its own."""
        return snapshot(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


class KeptReference(Kept):
    """A tensor that a region takes as an input of its own: what it holds may change, its metadata may not."""

    __slots__ = ("facts",)

    def __init__(self, value: torch.Tensor) -> None:
        self.value, self.facts = value, facts_of(value)

    def holds(self, now: Any) -> bool:
        """Is ``now`` that tensor, or one that is the same as it is now?"""
        if now is not self.value:
            return same_context(self.value, now)
        try:
            return facts_of(now) == self.facts
        except Exception:  # a class's own code
            return False

    def __repr__(self) -> str:
        return repr(self.value)


class KeptTensor(Kept):
    """A plain tensor: its metadata, and a copy of its numbers. ``value``: what a wrapper is given, a copy too."""

    __slots__ = ("facts", "parts")

    def __init__(self, value: torch.Tensor, parts: Any) -> None:
        self.value, self.facts = snapshot(value), facts_of(value)
        with _torch.no_modes(), torch.no_grad():
            self.parts = value.detach().clone() if parts is None else parts

    def holds(self, now: Any) -> bool:
        """Is ``now`` a tensor with these numbers?"""
        try:
            if not isinstance(now, torch.Tensor) or why_not_comparable(now) or facts_of(now) != self.facts:
                return False
            inside = parts_of_tensor(now)
            return same_bytes(self.parts, now) if inside is None else same_context(self.parts, inside)
        except Exception:  # a class's own code, or a kernel that a backend lacks
            return False

    def fresh(self) -> torch.Tensor:
        """A copy that nobody else has."""
        made: torch.Tensor = snapshot(self.value)
        return made

    def __repr__(self) -> str:
        return repr(self.value)


def holdings(value: Any) -> Iterator[tuple[Any, Any]]:
    """What an object holds that can be exchanged in place: pairs of a key and a value."""
    cls: Any = type(value)
    derived = _derived(cls)
    yield from (row for row in attributes_inside(value) if row[0] not in derived)
    if isinstance(value, types.FunctionType):
        yield "__code__", value.__code__
        yield from enumerate(value.__defaults__ or ())
        yield from (value.__kwdefaults__ or {}).items()
        yield from zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        yield from _globals_of(value)
    elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        yield "__self__", value.__self__
    elif isinstance(value, types.CellType):
        with contextlib.suppress(ValueError):  # it is empty
            yield "cell_contents", value.cell_contents
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, (dict, types.MappingProxyType)):
        yield from value.items()
    elif isinstance(value, (set, frozenset)):
        yield from ((id(v), v) for v in sorted(value, key=id))
    elif isinstance(value, _SEQUENCES):
        yield from enumerate(value)


def _globals_of(function: types.FunctionType) -> Iterator[tuple[Any, Any]]:
    """The numbers and strings that a function finds in globals."""
    names = function.__globals__
    for name in _names_of_globals(function.__code__):
        if name in names and (type(names[name]) in PLAIN or KeptPlain.of(names[name]) is not None):
            yield ("global", name), names[name]


@functools.cache
def _names_of_globals(code: types.CodeType) -> tuple[str, ...]:
    """The globals that code names, and code inside of it."""
    inside = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    own = (step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    return tuple(dict.fromkeys([*own, *(name for c in inside for name in _names_of_globals(c))]))


@functools.cache
def _derived(cls: type) -> frozenset[str]:
    """The attributes that a class computes of others when they are first read."""
    return frozenset(k for c in cls.__mro__ for k, v in vars(c).items() if isinstance(v, functools.cached_property))


def is_looked_inside(value: Any) -> bool:
    """Is it an object whose `holdings` are all that can change in it, as far as Python tells?"""
    cls = type(value)
    if isinstance(value, types.BuiltinMethodType):
        return not isinstance(value.__self__, (types.ModuleType, type, type(None)))
    if isinstance(value, types.FunctionType):
        return not is_foreign(value)
    if isinstance(value, _HOLDERS) or cls in NAMESPACES:
        return True
    return has_attributes(value) and not is_foreign(cls)


def is_foreign(value: Any) -> bool:
    """Is it a class or function of Python's, of torch or numpy?"""
    return str(value.__module__).partition(".")[0] in FOREIGN


_SEQUENCES = (list, tuple, deque)
_HOLDERS = (
    *(*_SEQUENCES, dict, set, frozenset, types.MappingProxyType),
    *(UserDict, UserList, ChainMap),
    *(types.MethodType, types.CellType, functools.partial, torch.nn.Module),
)


def remembers_more(known: Any, now: Any, in_object: bool = False) -> bool:
    """Is a context as it was, but for what objects in it remember: in attributes that are new or were None, in dicts?

    That is computed once, while a region is traced, as in the first call in eager.
    """
    if same_context(known, now) or (in_object and known is None):
        return True
    if isinstance(known, KeptObject):
        return known.remembers_more(now)
    if in_object and type(known) is dict and type(now) is dict:
        return all(k in now and remembers_more(v, now[k], True) for k, v in known.items())
    if type(known) in (tuple, list) and type(now) is type(known) and len(now) == len(known):
        return all(remembers_more(a, b, in_object) for a, b in zip(known, now, strict=True))
    return False
