"""What guards keep of flatten contexts.

A guard that held an object itself would compare it with itself, however it was changed in between. So it keeps, beside
the object, what that held: attributes, items, the cells of a function. See docs/notes/contexts.md.

>>> scale = types.SimpleNamespace(value=2)
>>> known = kept((scale, 1))
>>> same_context(known, (scale, 1))
True
>>> scale.value = 3
>>> same_context(known, (scale, 1))
False
"""

from __future__ import annotations

import contextlib
import dis
import functools
import types
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from .arguments import (
    ABSENT,
    FOREIGN,
    NAMESPACES,
    Absent,
    ObjectIdentity,
    attribute_inside,
    attributes_inside,
    has_attributes,
    has_own_equality,
    is_iterator,
)
from .classes import Classes, KeptClass
from .components import parts_of
from .context import (
    PLAIN,
    Kept,
    KeptPlain,
    Sizes,
    StandIn,
    has_generated_equality,
    has_sizes,
    is_atom,
    is_buffer,
    map_fields,
    map_items,
    same_context,
    snapshot,
)
from .noted_dict import ROWS
from .paths import Path
from .spec import LeafSpec, OpaqueSpec, Spec, WrapperSpec
from .tensors import facts_of, parts_of_tensor, same_bytes, why_not_comparable
from .visit import VALUE

_ATOMIC = PLAIN | {Absent}
#: what is more, or deeper, inside of an object is compared by itself alone
_DEEPEST, _MOST_OBJECTS, _MOST_PARTS = 20, 200, 2000


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


def kept(context: Any, path: Path = VALUE) -> Any:
    """What a guard keeps of the context of the wrapper at ``path``; `same_context` compares it with that of a call.

    Raises:
        UnsupportedError: it holds what cannot be compared, or itself.
    """
    return Keeping().context(context, path)


def _checks_fields(value: Any) -> bool:
    """Has a dataclass code that runs where a field is set? So has ``DTensorSpec``, DTensor's context until torch 2.11."""
    own = any("__setattr__" in vars(k) for k in type(value).__mro__[:-1])
    return own and not type(value).__dataclass_params__.frozen


def _of_class(value: Any) -> Any:
    """What a guard keeps of what a class holds: itself, where that cannot be compared."""
    try:
        return kept(value)
    except UnsupportedError:
        return ObjectIdentity(value)


def kept_spec(spec: Spec, path: Path = VALUE, keeping: Keeping | None = None) -> Spec:
    """A spec with what guards keep of its contexts, and of its values that are no tensors.

    Raises:
        UnsupportedError: see `kept`.
    """
    if isinstance(spec, LeafSpec):
        return spec
    keeping = keeping or Keeping()
    if isinstance(spec, OpaqueSpec):
        return OpaqueSpec(keeping.context(spec.value, path))
    inners = tuple(kept_spec(s, path.attr(n), keeping) for n, s in zip(spec.names, spec.inners, strict=True))
    return replace(spec, inners=inners, context=keeping.context(spec.context, path))


def kept_fields(spec: Spec) -> Iterator[KeptFields]:
    """The dataclasses in a spec of which guards compare what was read."""

    def look(value: Any) -> Iterator[KeptFields]:
        if isinstance(value, KeptFields):
            yield value
            value = list(value.rows.values())
        for _, part in parts_of(value):
            yield from look(part)

    if isinstance(spec, WrapperSpec):
        for inner in spec.inners:
            yield from kept_fields(inner)
        yield from look(spec.context)


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


class Keeping:
    """A walk through contexts.

    Attributes:
        objects: those that were met, by id. What it makes of them compares their state, too.
        dataclasses: those of the user's with generated equality that were met, by id.
    """

    def __init__(self) -> None:
        self.objects: dict[int, KeptObject] = {}
        self.dataclasses: dict[int, Any] = {}
        self.whole = 0
        self._start(VALUE)

    def context(self, context: Any, path: Path) -> Any:
        """See `kept`."""
        if is_atom(context):
            return context
        self._start(path)
        return self.keep(context, Path("context"), ())

    def _start(self, path: Path) -> None:
        """One context more. What it holds may be so much, beside what was met in others."""
        self.path, self.parts, self._most = path, 0, len(self.objects) + _MOST_OBJECTS

    def names(self, value: Any) -> list[str] | None:
        """The attributes of an object that count; None: all that it holds."""
        return None

    def met(self, value: Any, inside: bool) -> Any:
        """What stands for an object that is among ``objects``; ``inside``: in the place of a part of one."""
        return ObjectIdentity(value) if inside else self.objects[id(value)]

    def keep(self, value: Any, at: Path, around: tuple[int, ...]) -> Any:
        """What is kept of a value at ``at``. ``around``: the ids of what it is inside of."""
        if is_atom(value) or isinstance(value, StandIn):
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value, at, around)
        if is_iterator(value):
            return self._by_itself(
                value, around, at, f"an iterator, {type(value).__qualname__}, which gives each item once"
            )
        if is_buffer(value):
            return snapshot(value)
        if id(value) in self.objects:  # an object that leads back to itself is compared once
            return self.met(value, self._in_object(around))
        if id(value) in around:
            return self._by_itself(value, around, at, f"a {type(value).__qualname__} that contains itself")
        if len(around) > _DEEPEST:
            return self._by_itself(value, around, at, f"values that are more than {_DEEPEST} deep inside of others")
        inside = (*around, id(value))
        if type(value) in (list, dict) and self._in_object(around):
            self.parts += len(value)
            if self.parts > _MOST_PARTS:
                return ObjectIdentity(value)
        if type(value) in (tuple, torch.Size, Sizes) or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return map_items(value, lambda v: self.keep(v, at, inside))
        if type(value) is list:
            return [self.keep(v, at.item(k), inside) for k, v in enumerate(value)]
        if type(value) in ROWS:
            return {k: self.keep(v, at.item(k), inside) for k, v in dict.items(value)}
        if type(value) in (set, frozenset) and all(map(is_atom, value)):
            return type(value)(value)
        if has_generated_equality(value):
            if not is_foreign(type(value)):
                self.dataclasses[id(value)] = value
            return self.fields(value, at, inside)
        return self._object(value, at, inside) if is_looked_inside(value) else value

    def fields(self, value: Any, at: Path, inside: tuple[int, ...]) -> Any:
        """What is kept of a dataclass with generated equality."""
        with self._as_they_are() if _checks_fields(value) else contextlib.nullcontext():
            return map_fields(value, lambda v: self._field(v, at, inside))

    def _tensor(self, value: torch.Tensor, at: Path, around: tuple[int, ...]) -> Any:
        if _torch.is_fake(value) or _torch.is_functorch_wrapped(value):
            return ObjectIdentity(value)
        reason = why_not_comparable(value)
        if reason is not None and not self._in_object(around):
            raise self._refused(at, reason)
        if type(value) is not torch.Tensor or self._in_object(around):
            return KeptReference(value)
        parts = parts_of_tensor(value)
        return KeptTensor(value, None if parts is None else self.keep(parts, at, around))

    @contextlib.contextmanager
    def _as_they_are(self) -> Iterator[None]:
        """Inside, plain containers stay containers: a class looks at what its fields are set to."""
        self.whole += 1
        try:
            yield
        finally:
            self.whole -= 1

    def _field(self, value: Any, at: Path, inside: tuple[int, ...]) -> Any:
        """A field of a dataclass. A copy of it has the very tensors too: see `snapshot`."""
        return KeptReference(value) if isinstance(value, torch.Tensor) else self.keep(value, at, inside)

    def _in_object(self, around: tuple[int, ...]) -> bool:
        """Is it inside of an object, of which a wrapper is given no copy?"""
        return not self.objects.keys().isdisjoint(around)

    def _object(self, value: Any, at: Path, inside: tuple[int, ...]) -> Any:
        """What is kept of an object. A region meets the very tensors that it holds."""
        made = KeptObject(value, f"{at} of {self.path}", self.names(value))
        rows = made.rows()
        self.parts += len(rows)
        if len(self.objects) >= self._most or self.parts > _MOST_PARTS:
            return ObjectIdentity(value)
        self.objects[id(value)] = made
        made.keys = tuple(k for k, _ in rows)
        made.parts = tuple(self.keep(v, at.attr(k) if isinstance(k, str) else at.item(k), inside) for k, v in rows)
        return made

    def _by_itself(self, value: Any, around: tuple[int, ...], at: Path, what: str) -> Any:
        """Inside of an object, one that cannot be looked into is compared by what it is."""
        if self._in_object(around):
            return ObjectIdentity(value)
        raise self._refused(at, what)

    def _refused(self, at: Path, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"a flatten context holds {what}: guards cannot compare it",
            path=f"{at} of {self.path}",
            expected="numbers, strings, and objects that are made of such; dense and sparse tensors, and wrappers of them",
            got=what,
            fix="let __tensor_flatten__ return the values that the operations of the class read",
        )


class Held(Keeping):
    """A walk in which each object is met once: a guard compares what it holds once in a call, however many hold it.

    Args:
        read: the attributes of an object that a trace has read; None: nobody knows.
    """

    def __init__(self, read: Callable[[Any], list[str] | None]) -> None:
        super().__init__()
        self._read = read
        self._classes = Classes()

    def context(self, context: Any, path: Path) -> Any:
        """See `kept`. A class may be a context itself."""
        if isinstance(context, type):
            self._classes.add(context, None, f"context of {path}")
        return super().context(context, path)

    def names(self, value: Any) -> list[str] | None:
        """What the trace has read of an object."""
        return self._read(value)

    def keep(self, value: Any, at: Path, around: tuple[int, ...]) -> Any:
        """What stands for a value: `HeldObject` for one of ``objects``."""
        plain = None if self.whole else KeptPlain.of(value)
        if plain is not None:
            self.parts += len(value)
            return ObjectIdentity(value) if self._in_object(around) and self.parts > _MOST_PARTS else plain
        if isinstance(value, type):
            self._classes.add(value, None, f"{at} of {self.path}")
        elif has_attributes(value) and not is_atom(value):
            self._classes.add(value, self.names(value), f"{at} of {self.path}")
        found = super().keep(value, at, around)
        return HeldObject(found) if isinstance(found, KeptObject) else found

    def met(self, value: Any, inside: bool) -> Any:
        """What stands for an object that was met."""
        return HeldObject(self.objects[id(value)])

    def fields(self, value: Any, at: Path, inside: tuple[int, ...]) -> Any:
        """`KeptFields` where the trace tells what it has read, and sizes decide none of it."""
        names = self.names(value)
        if names is None or has_sizes(value):
            return super().fields(value, at, inside)
        marks = {key: mark for (_, key), mark in parts_of(value) if isinstance(mark, StandIn)}
        rows = {n: marks.get(n) or self._field(attribute_inside(value, n), at.attr(n), inside) for n in names}
        return KeptFields(value, {**rows, **marks}, f"{at} of {self.path}")

    def rows(self, beside: Iterable[Any] = ()) -> tuple[KeptObject | KeptClass, ...]:
        """The objects, and those of ``beside`` of which attributes were read, as far as anything in them counts; and their
        classes."""
        for value in beside:
            if id(value) not in self.objects and self.names(value) != []:
                self.context(value, VALUE)
        return (*(row for row in self.objects.values() if row.names != []), *self._classes.rows(_of_class))
