"""Comparing flatten contexts.

A context is whatever an author returns from ``__tensor_flatten__``: often unhashable, sometimes mutable, sometimes an
array whose ``==`` is an array. See docs/notes/contexts.md.
"""

from __future__ import annotations

import array
import contextlib
import copy
import dataclasses
import enum
import marshal
import math
import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import _torch
from .tensors import facts_of, parts_of_tensor, same_bytes, why_not_comparable

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
#: of these the same object is the same value
PLAIN = frozenset({int, str, bytes, bool, float, complex, type(None), torch.dtype, torch.device})
#: what is written by value; bytes are written as an array of them is
_WRITTEN = frozenset({int, float, complex, str, bool, type(None)})
#: the version of the format that does not tell one object twice from two equal ones
_BY_VALUE = 2
_MAX_DEPTH = 60


class StandIn:
    """Stands in what a guard keeps for a value that is not simply compared with another one."""

    __slots__ = ()

    def holds(self, now: Any) -> bool:
        """May ``now`` be in the place of that value? Never raises and never dispatches."""
        raise NotImplementedError


class Kept(StandIn):
    """A `StandIn` for an object, of which a wrapper that is built again is given ``value``."""

    __slots__ = ("value",)

    value: Any

    def fresh(self) -> Any:
        """What a wrapper is given."""
        return self.value


class Lent(Kept):
    """Stands in the context of a result for an object that is in that of an input: a call hands on its own object.

    Where no call is at hand, it stands for a copy of the one that was traced.

    Attributes:
        place: "input" (or what `made` has), the number of the input, the attributes that lead from it to the wrapper, and
            the parts of the context that lead to the object; see `parts`.
    """

    __slots__ = ("place",)

    def __init__(self, number: int, names: tuple[str, ...], steps: tuple[Any, ...], value: Any) -> None:
        self.place: tuple[Any, ...] = ("input", number, names, steps)
        self.value = snapshot(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lent) and other.place == self.place

    def __hash__(self) -> int:
        return hash(self.place)

    def holds(self, now: Any) -> bool:
        """Is ``now`` like the one that was traced?"""
        return same_context(self.value, now)

    def fresh(self) -> Any:
        """A copy of the one that was traced."""
        return snapshot(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


class KeptPlain(Kept):
    """A list, tuple or dict of numbers and strings: compared as a whole, by the bytes that Python writes for it.

    These tell types and signs of zero apart, and one NaN is like another; other values may have the same ones as bytes alone.
    """

    __slots__ = ("written",)

    def __init__(self, value: Any) -> None:
        self.written = marshal.dumps(value, _BY_VALUE)
        self.value = self.fresh()

    @staticmethod
    def of(value: Any) -> KeptPlain | None:
        """What stands for such a container; None for anything else."""
        return KeptPlain(value) if type(value) in (list, tuple, dict) and value and _is_plain(value, 0) else None

    def holds(self, now: Any) -> bool:
        """Is ``now`` the same container?"""
        try:
            if marshal.dumps(now, _BY_VALUE) == self.written:
                return True
        except ValueError:  # it holds something else
            return False
        return same_context(self.value, now)  # strings that are equal may be written in two ways

    def fresh(self) -> Any:
        """A copy that nobody else has."""
        return marshal.loads(self.written)

    def __repr__(self) -> str:
        return repr(self.value)


def _is_plain(value: Any, depth: int) -> bool:
    if type(value) is dict:
        parts = [*value, *value.values()]
    elif type(value) in (list, tuple):
        parts = value
    else:
        return False
    others = [v for v in parts if type(v) not in _WRITTEN]
    return depth < _MAX_DEPTH and all(_is_plain(v, depth + 1) for v in others)


@dataclasses.dataclass(frozen=True)
class AnyNumber(StandIn):
    """Stands in what a guard keeps for a number that is an input of the graph: a guard asks for its type alone.

    But a float that is zero, infinite or NaN is guarded by its value: formulas of symbols take ``a - a`` for 0, and 1 / a for a
    number.
    """

    kind: type

    def holds(self, now: Any) -> bool:
        """Is it a number of that type?"""
        return type(now) is self.kind and (self.kind is int or (now - now == 0 and now != 0))

    def failed_source(self, now: str) -> str:
        """The condition that it is none, as source."""
        other = f"type({now}) is not {self.kind.__name__}"
        return f"({other} or {now} - {now} != 0 or {now} == 0)" if self.kind is float else other

    def __repr__(self) -> str:
        return f"<any {self.kind.__name__}>"


class SizeValue:
    """A number that is computed from the sizes of a call; see `SizeExpr`."""

    __slots__ = ()


#: what stands for a number that differs between calls
_SIZES = (SizeValue, torch.SymInt, torch.SymFloat)


class Sizes(tuple[Any, ...]):
    """Stands in a context for a ``torch.Size`` of which some numbers are computed from the sizes of a call."""

    __slots__ = ()


def is_atom(value: Any) -> bool:
    """Is it a value that nothing can change: a number, a string, a type, a size?"""
    return isinstance(value, (*_ATOMS, float, complex, *_SIZES))


def has_sizes(context: Any) -> bool:
    """Does a context hold numbers that are computed from sizes?"""
    if isinstance(context, _SIZES):
        return True
    if isinstance(context, (tuple, list)):
        return any(map(has_sizes, context))
    if isinstance(context, dict):
        return any(map(has_sizes, context.values()))
    return has_generated_equality(context) and any(map(has_sizes, _fields(context).values()))


def numbers_in(context: Any) -> list[Any]:
    """What differs between calls in a context."""
    found: list[Any] = []

    def note(number: Any) -> Any:
        found.append(number)
        return number

    map_sizes(context, note)
    return found


def map_sizes(context: Any, function: Callable[[Any], Any]) -> Any:
    """A context with each number that is computed from sizes replaced."""
    if not has_sizes(context):
        return context
    if isinstance(context, _SIZES):
        return function(context)
    if isinstance(context, dict):
        return {k: map_sizes(v, function) for k, v in context.items()}
    if has_generated_equality(context):
        return _with_fields(context, lambda v: map_sizes(v, function))
    items = [map_sizes(v, function) for v in context]
    if isinstance(context, (torch.Size, Sizes)):
        return Sizes(items) if any(map(has_sizes, items)) and not _symbolic(items) else torch.Size(items)
    return _like(context, items) if isinstance(context, tuple) else items


def _symbolic(items: list[Any]) -> bool:
    return not any(isinstance(i, SizeValue) for i in items)


def same_context(a: Any, b: Any, _depth: int = 0) -> bool:
    """Are two contexts the same for a guard? Never raises and never dispatches.

    Order: identity (except for mutable containers, which are compared with a snapshot of themselves); what a guard keeps
    in place of an object (``a`` alone: see `kept`); type; numbers with NaN equal to NaN and the sign of zero; containers
    elementwise; arrays and tensors by shape, dtype, device and bytes; generated dataclass equality fieldwise; else the
    author's ``==``, where anything but ``True`` is "different".
    """
    if (
        a is b
        and not isinstance(a, (list, dict, set, bytearray, array.array, torch.Tensor))
        and not _is_mutable_dataclass(a)
    ):
        return True
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(size_key(a) == size_key(b))
    if type(a) is not type(b) or _depth > _MAX_DEPTH:
        return isinstance(a, StandIn) and a.holds(b)
    if isinstance(a, (float, complex)):
        return _same_number(a, b)
    if isinstance(a, _ATOMS):
        return bool(a == b)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same_context(x, y, _depth + 1) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_context(v, b[k], _depth + 1) for k, v in a.items())
    if isinstance(a, torch.Tensor):
        return _same_tensor(a, b, _depth)
    if type(a).__module__ == "numpy" and hasattr(a, "tobytes"):
        return (getattr(a, "dtype", None), getattr(a, "shape", None)) == (
            getattr(b, "dtype", None),
            getattr(b, "shape", None),
        ) and bool(a.tobytes() == b.tobytes())
    if has_generated_equality(a):
        pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a) if f.compare]
        return all(same_context(x, y, _depth + 1) for x, y in pairs)
    return equal(a, b)


def equal(a: Any, b: Any) -> bool:
    """Does the author's ``==`` say so? It may raise anything; a guard then says "different"."""
    try:
        return (a == b) is True
    except Exception:
        return False


def snapshot(context: Any) -> Any:
    """A context of its own for a wrapper: mutable containers and arrays copied, everything else by reference.

    What a guard keeps is `kept`, which can stand in the place of a context here.
    """
    if isinstance(context, Kept):
        return context.fresh()
    if isinstance(context, tuple):
        return map_items(context, snapshot)
    if type(context) is list:
        return list(map(snapshot, context))
    if type(context) is dict:
        return {k: snapshot(v) for k, v in context.items()}
    if type(context) is set:
        return set(context)
    if has_generated_equality(context):
        return map_fields(context, lambda v: v if isinstance(v, torch.Tensor) else snapshot(v))
    if is_buffer(context):
        return copy.copy(context)
    return _twin(context) if type(context) is torch.Tensor else context


def _twin(t: torch.Tensor) -> torch.Tensor:
    """A copy of a plain tensor with the same facts."""
    with _torch.no_modes(), torch.no_grad():
        bits = t.is_conj(), t.is_neg()
        memory = t.detach()
        if any(bits):  # which a clone resolves
            _torch.set_lazy_bits(memory, False, False)
        made = memory.clone()
        if (
            t.layout is torch.strided and made.stride() != t.stride()
        ):  # there are gaps in its memory, or it repeats itself
            extent = 1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
            all_of_it = memory.as_strided((extent,), (1,)).clone()
            made = made.new_empty(0).set_(all_of_it.untyped_storage(), 0, t.shape, t.stride())
        if any(bits):
            _torch.set_lazy_bits(made, *bits)
        if t.requires_grad:
            made.requires_grad_()
    return made


def is_copied(value: Any) -> bool:
    """Is it a container or a dataclass that can be changed in place, of which wrappers are given copies?"""
    return type(value) in (list, dict, set) or _is_mutable_dataclass(value)


def is_frozen(value: Any) -> bool:
    """Is it a frozen dataclass with generated equality?"""
    return has_generated_equality(value) and not _is_mutable_dataclass(value)


def is_buffer(value: Any) -> bool:
    """Is it an array of numbers, or of bytes, that can be written in place?"""
    if type(value) in (bytearray, array.array):
        return True  # a number of numpy's cannot be written, and an iterator of it has no bytes
    return type(value).__module__ == "numpy" and hasattr(value, "__setitem__") and hasattr(value, "tobytes")


def map_items(context: tuple[Any, ...], function: Callable[[Any], Any]) -> Any:
    """A tuple with ``function`` applied to each item: the same one where that changes none of them."""
    items = list(map(function, context))
    return context if all(map(operator.is_, items, context)) else _like(context, items)


def map_fields(context: Any, function: Callable[[Any], Any]) -> Any:
    """A dataclass with ``function`` applied to each field: the same one where it is frozen and that changes none."""
    made = _copies.made
    if made is not None and id(context) in made:
        return made[id(context)][1]
    twin = _with_fields(context, function)
    twin = copy.copy(context) if twin is context and _is_mutable_dataclass(context) else twin
    if made is not None:
        made[id(context)] = (context, twin)
    return twin


class _Copies(threading.local):
    made: dict[int, tuple[Any, Any]] | None = None


_copies = _Copies()


@contextlib.contextmanager
def one_copy_each(made: dict[int, tuple[Any, Any]]) -> Iterator[None]:
    """Inside, this thread makes one copy of each dataclass, which ``made`` holds: what is one object stays one."""
    before, _copies.made = _copies.made, made
    try:
        yield
    finally:
        _copies.made = before


def map_parts(context: Any, function: Callable[[Any], Any]) -> Any:
    """A context with ``function`` applied to each of its parts: the same one where that changes none of them."""
    if isinstance(context, (tuple, list)) and not isinstance(context, Sizes):
        items = list(map(function, context))
        if all(map(operator.is_, items, context)):
            return context
        return items if isinstance(context, list) else _like(context, items)
    if type(context) is dict:
        rows = {k: function(v) for k, v in context.items()}
        return context if all(rows[k] is v for k, v in context.items()) else rows
    return _with_fields(context, function) if has_generated_equality(context) else context


class _Outer(enum.Enum):
    """Stands in a context for the outer size or stride of its wrapper, when that is dynamic."""

    SIZE = "outer size"
    NUMBERS = "outer size, as a tuple"
    STRIDE = "outer stride"


def without_outer(context: Any, size: tuple[Any, ...], stride: tuple[Any, ...]) -> Any:
    """The context with each copy of the outer size or stride in it replaced by a marker (DTensor's has both).

    A copy may also be in a field of a dataclass: until torch 2.11, DTensor's context holds its whole ``DTensorSpec``.
    """
    if isinstance(context, tuple):
        if context and _same_sizes(context, size):
            return _Outer.NUMBERS if type(context) is tuple else _Outer.SIZE
        if context and _same_sizes(context, stride):
            return _Outer.STRIDE
        return _like(context, [without_outer(x, size, stride) for x in context])
    if type(context) is list:
        return [without_outer(x, size, stride) for x in context]
    if type(context) is dict:
        return {k: without_outer(v, size, stride) for k, v in context.items()}
    if has_generated_equality(context):
        return _with_fields(context, lambda v: without_outer(v, size, stride))
    return context


def with_outer(
    context: Any, size: tuple[Any, ...], stride: tuple[Any, ...], lend: Callable[[Any], Any] = snapshot
) -> Any:
    """The inverse of `without_outer`, with the sizes of this call; also what `snapshot` copies is fresh.

    ``lend`` gives the objects that come from inputs.
    """
    if isinstance(context, Lent):
        return lend(context)
    if context is _Outer.SIZE:
        return torch.Size(size)
    if context is _Outer.NUMBERS:
        return tuple(size)
    if context is _Outer.STRIDE:
        return tuple(stride)
    if isinstance(context, tuple):
        return _like(context, [with_outer(x, size, stride, lend) for x in context])
    if type(context) is list:
        return [with_outer(x, size, stride, lend) for x in context]
    if type(context) is dict:
        return {k: with_outer(v, size, stride, lend) for k, v in context.items()}
    if has_generated_equality(context):
        return map_fields(context, lambda v: v if isinstance(v, torch.Tensor) else with_outer(v, size, stride, lend))
    return snapshot(context)


def has_generated_equality(value: Any) -> bool:
    """Is it an instance of a dataclass whose ``==`` compares the fields?"""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    return bool(type(value).__dataclass_params__.eq and "__eq__" in vars(type(value)))  # type: ignore[attr-defined]


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def _with_fields(value: Any, function: Callable[[Any], Any]) -> Any:
    """A dataclass with ``function`` applied to each field: the same object where that changes none of them."""
    before = _fields(value)
    after = {name: function(v) for name, v in before.items()}
    if all(after[name] is v for name, v in before.items()):
        return value
    twin = copy.copy(value)
    write = object.__setattr__ if type(value).__dataclass_params__.frozen else setattr
    for name, v in after.items():
        write(twin, name, v)
    return twin


def _is_mutable_dataclass(value: Any) -> bool:
    """An instance of a dataclass with generated equality that is not frozen."""
    return has_generated_equality(value) and not type(value).__dataclass_params__.frozen


def _like(context: tuple[Any, ...], items: list[Any]) -> Any:
    return type(context)(*items) if hasattr(context, "_fields") else type(context)(items)


def _same_sizes(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    if len(a) != len(b) or not all(type(x) is int or isinstance(x, torch.SymInt) for x in a):
        return False
    return all(size_key(x) == size_key(y) for x, y in zip(a, b, strict=True))


def size_key(n: Any) -> Any:
    """A size as something that compares without becoming a fact of the trace: its expression, or the number."""
    return n.node.expr if isinstance(n, torch.SymInt) and not n.node.is_nested_int() else n


def _same_number(a: complex, b: complex) -> bool:
    if isinstance(a, complex):
        return _same_number(a.real, b.real) and _same_number(a.imag, b.imag)
    return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)


def _same_tensor(a: torch.Tensor, b: torch.Tensor, depth: int) -> bool:
    """Are two tensors of one class the same in all that can be compared?"""
    try:
        if _torch.is_fake(a) or _torch.is_fake(b) or _torch.is_functorch_wrapped(a):
            return a is b
        if why_not_comparable(a) or why_not_comparable(b) or facts_of(a) != facts_of(b):
            return False
        inside = parts_of_tensor(a)
        return same_bytes(a, b) if inside is None else same_context(inside, parts_of_tensor(b), depth + 1)
    except Exception:  # a class's own code, or a kernel that a backend lacks
        return False
