"""Flatten contexts: their parts, what guards keep of them, and when two are the same.

A context is whatever an author returns from ``__tensor_flatten__``: often unhashable, sometimes mutable, sometimes with an
array whose ``==`` is an array. A guard keeps `guarded` of it: copies of what can be changed in place, and beside an object of
the user's what it held (`ObjectState`). See docs/notes/contexts.md.

>>> import types
>>> scale = types.SimpleNamespace(value=2)
>>> known = guarded((scale, 1))
>>> same_context(known, (scale, 1))
True
>>> scale.value = 3
>>> same_context(known, (scale, 1))
False
"""

from __future__ import annotations

import array
import copy
import dataclasses
import enum
import functools
import math
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import NeedsEager
from .attributes import attributes_inside, is_foreign, namespace_of

_ATOMS = (
    int,
    str,
    bytes,
    bool,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    type,
    enum.Enum,
)
_MAX_DEPTH = 60
#: what changes in place in ways that no attribute tells
_REFUSED = (
    *(list, dict, set, frozenset, types.MappingProxyType, types.MethodType, types.CellType),
    *(functools.partial, torch.nn.Module, torch.Tensor),
)


# ---------------------------------------------------------------------------------------------- numbers of a call
class SizeValue:
    """A number that is computed from the sizes of a call; see `SizeExpr`."""

    __slots__ = ()


#: what stands for a number that differs between calls
_SIZES = (SizeValue, torch.SymInt, torch.SymFloat)


class Sizes(tuple[Any, ...]):
    """Stands in a context for a ``torch.Size`` of which some numbers are computed from the sizes of a call."""

    __slots__ = ()


def has_sizes(context: Any) -> bool:
    """Does a context hold numbers that are computed from sizes?"""
    return isinstance(context, _SIZES) or any(has_sizes(v) for _, v in parts_of(context))


def numbers_in(context: Any) -> list[Any]:
    """What differs between calls in a context."""
    return [context] if isinstance(context, _SIZES) else [n for _, v in parts_of(context) for n in numbers_in(v)]


def map_sizes(context: Any, function: Callable[[Any], Any]) -> Any:
    """A context with each number that is computed from sizes replaced."""
    if isinstance(context, _SIZES):
        return function(context)
    if isinstance(context, (torch.Size, Sizes)):
        items = [map_sizes(v, function) for v in context]
        return (Sizes if any(isinstance(n, SizeValue) for n in items) else torch.Size)(items)
    return map_parts(context, lambda v: map_sizes(v, function))


# ---------------------------------------------------------------------------------------------- parts
def is_atom(value: Any) -> bool:
    """Is it a value that nothing can change: a number, a string, a type, a size?"""
    return isinstance(value, (*_ATOMS, float, complex, *_SIZES))


def parts_of(context: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a container or dataclass, each with the code that leads to it, where ``{}`` is the whole."""
    if isinstance(context, tuple):
        names = getattr(context, "_fields", None)
        steps = [f"{{}}[{k}]" for k in range(len(context))] if names is None else [f"{{}}.{n}" for n in names]
        yield from zip(steps, context, strict=True)
    elif type(context) is list:
        yield from ((f"{{}}[{k}]", v) for k, v in enumerate(context))
    elif type(context) is dict:
        yield from ((f"(*{{}}.values(),)[{k}]", v) for k, v in enumerate(context.values()))
    elif has_generated_equality(context):
        yield from ((f"{{}}.{f.name}", getattr(context, f.name)) for f in dataclasses.fields(context))


def map_parts(context: Any, function: Callable[[Any], Any]) -> Any:
    """A context with ``function`` applied to each of its parts: the same one where that changes none of them."""
    rows = [] if isinstance(context, Sizes) else list(parts_of(context))
    found = [function(v) for _, v in rows]
    if all(map(operator.is_, found, (v for _, v in rows))):
        return context
    if isinstance(context, tuple):
        return type(context)(*found) if hasattr(context, "_fields") else type(context)(found)
    if isinstance(context, list):
        return found
    if isinstance(context, dict):
        return dict(zip(context, found, strict=True))
    twin = copy.copy(context)
    for field, v in zip(dataclasses.fields(context), found, strict=True):
        object.__setattr__(twin, field.name, v)
    return twin


def has_generated_equality(value: Any) -> bool:
    """Is it an instance of a dataclass whose ``==`` compares the fields?"""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    return bool(type(value).__dataclass_params__.eq and "__eq__" in vars(type(value)))  # type: ignore[attr-defined]


def is_copied(value: Any) -> bool:
    """Can it be changed in place, so that wrappers are given copies: a container, a dataclass, an array?"""
    if type(value) in (list, dict, set, bytearray, array.array):
        return True
    if type(value).__module__ == "numpy":  # a number of numpy's cannot be written, and an iterator of it has no bytes
        return hasattr(value, "__setitem__") and hasattr(value, "tobytes")
    return has_generated_equality(value) and not type(value).__dataclass_params__.frozen


# ---------------------------------------------------------------------------------------------- what stands for others
class OfInput:
    """Stands in the context of a result for an object that is in that of an input: each call hands on its own.

    Attributes:
        number: of the input.
        code: what leads to the object, where ``{}`` is the input.
        value: a copy of the one that was traced, which stands for it where no call is at hand.
    """

    def __init__(self, number: int, code: str, value: Any) -> None:
        self.number, self.code, self.value = number, code, fresh(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OfInput) and (other.number, other.code) == (self.number, self.code)

    def __hash__(self) -> int:
        return hash((self.number, self.code))


def has_marks(context: Any) -> bool:
    """Is an object of an input handed on in a context?"""
    return isinstance(context, OfInput) or any(has_marks(v) for _, v in parts_of(context))


class ObjectState:
    """Stands in what a guard keeps for an object of the user's: the object, and what it and its class held.

    Another one that holds the same may be in its place if its class says that they are equal. Of dataclasses with generated
    equality, of which wrappers have copies, any other one may.
    """

    def __init__(self, value: Any, state: dict[Any, Any]) -> None:
        self.copied = has_generated_equality(value)
        self.value, self.state = fresh(value) if self.copied else value, state

    def __repr__(self) -> str:
        return repr(self.value)

    def holds(self, now: Any) -> bool:
        """May ``now`` be in the place of that object? Never raises and never dispatches."""
        if type(now) is not type(self.value):
            return False
        try:
            held = dict(_holdings(now))
        except Exception:  # a class's own code
            return False
        another = self.copied or now is self.value or (has_own_equality(type(now)) and _equal(self.value, now))
        return another and same_context(self.state, held)


def guarded(value: Any, path: object = "value", depth: int = 0) -> Any:
    """What a guard keeps of the context of the wrapper at ``path``; `same_context` compares it with that of a call.

    Raises:
        NeedsEager: it holds what cannot be compared, or itself.
    """
    if is_atom(value) or isinstance(value, (ObjectState, OfInput)):
        return value
    closure = isinstance(value, types.FunctionType) and value.__closure__ is not None
    plain = isinstance(value, tuple) or type(value) in (list, dict)
    plain = plain or (type(value) in (set, frozenset) and all(map(is_atom, value)))
    odd = closure or isinstance(value, (*_REFUSED, Iterator)) or _of_collections(type(value))
    if depth > _MAX_DEPTH or (odd and not plain):
        raise NeedsEager(
            "a flatten context holds what guards cannot compare",
            path=f"context of {path}",
            expected="numbers, strings, and objects with attributes that are made of such",
            got="itself" if depth > _MAX_DEPTH else f"a {'closure' if closure else type(value).__qualname__}",
            fix="let __tensor_flatten__ return the values that the operations of the class read; tensors are inner tensors",
        )
    if plain:
        found = map_parts(value, lambda v: guarded(v, path, depth + 1))
        return copy.copy(found) if found is value and is_copied(value) else found
    if has_sizes(value) or not is_object(value):
        return fresh(value)
    rows = dict(_holdings(value))
    state = {k: guarded(v, path, depth + 1) for k, v in rows.items()}
    constant = has_generated_equality(value) and not is_copied(value) and all(state[k] is v for k, v in rows.items())
    if constant and rows.keys() == {f.name for f in dataclasses.fields(value) if f.compare}:
        return value  # nothing in it can be changed
    return ObjectState(value, state)


def _holdings(value: Any) -> Iterator[tuple[Any, Any]]:
    """The attributes of an object, and those of its class: pairs of a key and a value. What a class computes of others when
    it is first read is none."""
    cls: Any = type(value)
    own = [k for k in cls.__mro__ if not is_foreign(k)]
    names = {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set[str]()
    if not own and has_generated_equality(value):
        yield from ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare)
    else:
        derived = {k for c in cls.__mro__ for k, v in vars(c).items() if isinstance(v, functools.cached_property)}
        yield from (row for row in attributes_inside(value) if row[0] not in derived)
    if isinstance(value, types.FunctionType):
        yield from (("__code__", value.__code__), ("__defaults__", value.__defaults__))
    for k in reversed(own):
        for name, held in vars(k).items():
            if not name.startswith("__") and not hasattr(type(held), "__get__") and name not in names:
                yield ("class", k.__qualname__, name), held


def is_object(value: Any) -> bool:
    """Is it an object of the user's that is what its attributes are?"""
    cls = type(value)
    if isinstance(value, (types.FunctionType, type)):
        return isinstance(value, types.FunctionType) and not is_foreign(value)
    if cls.__name__ in ("SimpleNamespace", "Namespace") or has_generated_equality(value):
        return True
    slots = any("__slots__" in vars(k) for k in cls.__mro__[:-1])
    return (slots or namespace_of(value) is not None) and not is_foreign(cls)


def has_own_equality(cls: type) -> bool:
    """Does a class say itself which of its objects are equal?"""
    return any("__eq__" in vars(k) for k in cls.__mro__[:-1])


def _of_collections(cls: type) -> bool:
    """Is it a container of the standard library, or made of one?"""
    return any(k.__module__ in ("collections", "weakref") for k in cls.__mro__)


def fresh(context: Any, mark: Callable[[Any], Any] | None = None) -> Any:
    """A context of its own for a wrapper: what is copied (`is_copied`) is; everything else by reference.

    ``mark`` gives what marks stand for.
    """
    if isinstance(context, (OfInput, _Outer)) and mark is not None:
        return mark(context)
    if isinstance(context, OfInput):
        return fresh(context.value)
    if isinstance(context, ObjectState):
        return fresh(context.value) if context.copied else context.value
    found = map_parts(context, lambda v: fresh(v, mark))
    return copy.copy(found) if found is context and is_copied(found) else found


def put_back(kept: Any) -> None:
    """Undo what a trace that is given up has changed in place in the objects that a guard keeps something of. (Of containers
    and dataclasses, wrappers had copies.)
    """
    if not isinstance(kept, ObjectState):
        for _, part in parts_of(kept):
            put_back(part)
        return
    held = {} if kept.copied else {k: v for k, v in _holdings(kept.value) if isinstance(k, str) and k[:2] != "__"}
    for name, now in held.items():
        if name not in kept.state:
            object.__delattr__(kept.value, name)
            continue
        was = kept.state[name]
        put_back(was)
        if same_context(was, now):
            continue
        if type(now) in (list, dict, set) and type(was) is type(now):
            now.clear()
            (now.extend if type(now) is list else now.update)(fresh(was))
        else:
            object.__setattr__(kept.value, name, fresh(was))


def may_change(kept: Any) -> bool:
    """Is there something in what a guard keeps of a context that can be changed in place?"""
    return isinstance(kept, ObjectState) or is_copied(kept) or any(may_change(part) for _, part in parts_of(kept))


# ---------------------------------------------------------------------------------------------- comparing
def same_context(a: Any, b: Any, _depth: int = 0) -> bool:
    """Are two contexts the same for a guard? Never raises and never dispatches.

    Order: identity; what a guard keeps in place of an object (``a`` alone: see `guarded`); type; numbers with NaN equal to NaN
    and the sign of zero; containers elementwise; arrays by shape, dtype and bytes; generated dataclass equality fieldwise; else
    the author's ``==``, where anything but ``True`` is "different".
    """
    if a is b:
        return True
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(size_key(a) == size_key(b))
    if isinstance(a, ObjectState):
        return a.holds(b)
    if type(a) is not type(b) or _depth > _MAX_DEPTH or isinstance(a, torch.Tensor):
        return False
    if isinstance(a, (float, complex)):
        return _same_number(a, b)
    if isinstance(a, _ATOMS):
        return bool(a == b)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same_context(x, y, _depth + 1) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_context(v, b[k], _depth + 1) for k, v in a.items())
    if type(a).__module__ == "numpy" and hasattr(a, "tobytes"):
        kinds = [(getattr(x, "dtype", None), getattr(x, "shape", None)) for x in (a, b)]
        return kinds[0] == kinds[1] and bool(a.tobytes() == b.tobytes())
    if has_generated_equality(a):
        pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a) if f.compare]
        return all(same_context(x, y, _depth + 1) for x, y in pairs)
    return _equal(a, b)


def same_metadata(cls: Any, known: Any, now: Any) -> bool:
    """Are two contexts of one class the same? It may say so itself (``__metadata_guard__``)."""
    if not has_metadata_guard(cls) or has_sizes(known):
        return same_context(known, now)
    try:
        return cls.__metadata_guard__(known, now) is True
    except Exception:  # a class's own code
        return False


def has_metadata_guard(cls: type) -> bool:
    """Does a class of the user's say itself which contexts are the same?"""
    return hasattr(cls, "__metadata_guard__") and not is_foreign(cls)


def _equal(a: Any, b: Any) -> bool:
    """Does the author's ``==`` say so? It may raise anything; a guard then says "different"."""
    try:
        return (a == b) is True
    except Exception:
        return False


def _same_number(a: complex, b: complex) -> bool:
    if isinstance(a, complex):
        return _same_number(a.real, b.real) and _same_number(a.imag, b.imag)
    return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)


# ---------------------------------------------------------------------------------------------- outer sizes in contexts
class _Outer(enum.Enum):
    """Stands in a context for the outer size or stride of its wrapper, when that is dynamic."""

    SIZE = "outer size"
    NUMBERS = "outer size, as a tuple"
    STRIDE = "outer stride"


def without_outer(context: Any, size: tuple[Any, ...], stride: tuple[Any, ...]) -> Any:
    """The context with each copy of the outer size or stride in it replaced by a marker (DTensor's has both).

    A copy may also be in a field of a dataclass: until torch 2.11, DTensor's context holds its whole ``DTensorSpec``.
    """
    if isinstance(context, tuple) and context:
        if _same_sizes(context, size):
            return _Outer.NUMBERS if type(context) is tuple else _Outer.SIZE
        if _same_sizes(context, stride):
            return _Outer.STRIDE
    if isinstance(context, ObjectState) and context.copied:
        found = without_outer(context.value, size, stride)
        return context if found is context.value else found
    return map_parts(context, lambda v: without_outer(v, size, stride))


def with_outer(
    context: Any, size: tuple[Any, ...], stride: tuple[Any, ...], of_call: Callable[[Any], Any] = fresh
) -> Any:
    """The inverse of `without_outer`, with the sizes of this call; what `fresh` copies is copied.

    ``of_call`` gives the objects that come from inputs.
    """
    values = {_Outer.SIZE: torch.Size, _Outer.NUMBERS: tuple}

    def given(mark: Any) -> Any:
        if isinstance(mark, OfInput):
            return of_call(mark)
        return tuple(stride) if mark is _Outer.STRIDE else values[mark](size)

    return fresh(context, given)


def _same_sizes(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    if len(a) != len(b) or not all(type(x) is int or isinstance(x, torch.SymInt) for x in a):
        return False
    return all(size_key(x) == size_key(y) for x, y in zip(a, b, strict=True))


def size_key(n: Any) -> Any:
    """A size as something that compares without becoming a fact of the trace: its expression, or the number."""
    return n.node.expr if isinstance(n, torch.SymInt) and not n.node.is_nested_int() else n
