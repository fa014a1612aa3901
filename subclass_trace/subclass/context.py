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
import gc
import marshal
import math
import operator
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .. import _torch
from .noted_dict import ROWS, NotedDict, like, plain
from .noting import follow, note_all, unnoted
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
_MAX_DEPTH = 20
_MOST_LOOKED_AT = 2000
_LEADS_NOWHERE = (torch.Tensor, torch.nn.Module, types.ModuleType)


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
        kind: "input" or "tangent" (or "made", see `Made`); ``number``: which.
        names: the attributes that lead from it to the wrapper.
        steps: the parts of the context that lead to the object; see `components`.
    """

    __slots__ = ("place",)

    def __init__(self, kind: str, number: int, names: tuple[str, ...], steps: tuple[Any, ...], value: Any) -> None:
        self.place, self.value = (kind, number, names, steps), snapshot(plain(value))

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
class Unread(StandIn):
    """Stands in the context of an input for a value that the trace never read: a guard asks for its type alone.

    Attributes:
        kind: the type of the value.
        input: the number of the input; ``names``: the attributes that lead from it to the wrapper.
        steps: the parts of the context that lead to the value; see `components`.
        held: the attributes of the wrapper that hold the value, none of which was read.
    """

    kind: type
    input: int
    names: tuple[str, ...]
    steps: tuple[tuple[str, Any], ...]
    held: tuple[str, ...]

    def holds(self, now: Any) -> bool:
        """Is it of that type?"""
        return type(now) is self.kind

    def __repr__(self) -> str:
        return f"<any {self.kind.__name__}>"


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
        return any(map(has_sizes, dict.values(context)))
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
        return like(context, {k: map_sizes(v, function) for k, v in dict.items(context)})
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
        if type(b) is NotedDict:
            return same_context(a, plain(b), _depth)
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
        with unnoted():
            pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a) if f.compare]
        return all(same_context(x, y, _depth + 1) for x, y in pairs)
    try:
        return (a == b) is True
    except Exception:  # an author's __eq__ may raise anything; a guard then says "different"
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
    if type(context) in ROWS:
        return like(context, {k: snapshot(v) for k, v in dict.items(context)})
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
    return type(value) in (list, *ROWS, set) or _is_mutable_dataclass(value)


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
    twin = copied(context) if twin is context and _is_mutable_dataclass(context) else twin
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


def copied(value: Any) -> Any:
    """A copy of an object. The trace has read nothing of it, and what it reads of the copy it reads of the object."""
    with unnoted():
        return follow(value, copy.copy(value))


def map_parts(context: Any, function: Callable[[Any], Any]) -> Any:
    """A context with ``function`` applied to each of its parts: the same one where that changes none of them."""
    if isinstance(context, (tuple, list)) and not isinstance(context, Sizes):
        items = list(map(function, context))
        if all(map(operator.is_, items, context)):
            return context
        return items if isinstance(context, list) else _like(context, items)
    if type(context) in ROWS:
        rows = {k: function(v) for k, v in dict.items(context)}
        return context if all(rows[k] is v for k, v in dict.items(context)) else like(context, rows)
    return _with_fields(context, function) if has_generated_equality(context) else context


def note_inside(value: Any, objects: bool = False) -> None:
    """An object, a closure or another container keeps the noted dicts that it leads to: all of these is read.
    ``objects``: and all of the objects that it leads to."""
    seen, todo = set[int](), [(value, 0)]
    while todo and len(seen) < _MOST_LOOKED_AT:
        held, depth = todo.pop()
        if objects:
            note_all(held)
        if type(held) is NotedDict:
            held.read()
        elif id(held) not in seen and depth < _MAX_DEPTH and not isinstance(held, _LEADS_NOWHERE) and not is_atom(held):
            seen.add(id(held))
            todo += ((v, depth + 1) for v in _kept_by(held))


def _kept_by(value: Any) -> Sequence[Any]:
    if isinstance(value, types.FunctionType):
        return value.__closure__, value.__defaults__, value.__kwdefaults__
    return () if type(value).__module__.startswith("torch") else gc.get_referents(value)


def told(value: Any, depth: int = 4) -> Any:
    """What outlives the trace, with dicts in the place of noted ones, all of which is read then."""
    if type(value) is NotedDict:
        value.read()
    found = map_parts(plain(value), lambda v: told(v, depth - 1)) if depth else plain(value)
    if found is value:
        note_inside(value)
    return found


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
    if type(context) in ROWS:
        return like(context, {k: without_outer(v, size, stride) for k, v in dict.items(context)})
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
    if type(context) in ROWS:
        return like(context, {k: with_outer(v, size, stride, lend) for k, v in dict.items(context)})
    if has_generated_equality(context):
        return map_fields(context, lambda v: v if isinstance(v, torch.Tensor) else with_outer(v, size, stride, lend))
    return snapshot(context)


def has_generated_equality(value: Any) -> bool:
    """Is it an instance of a dataclass whose ``==`` compares the fields?"""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    return bool(type(value).__dataclass_params__.eq and "__eq__" in vars(type(value)))  # type: ignore[attr-defined]


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass. Nobody is told of it: see `noting`."""
    with unnoted():
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def _with_fields(value: Any, function: Callable[[Any], Any]) -> Any:
    """A dataclass with ``function`` applied to each field: the same object where that changes none of them."""
    before = _fields(value)
    after = {name: function(v) for name, v in before.items()}
    if all(after[name] is v for name, v in before.items()):
        return value
    with unnoted():
        twin = copy.copy(value)
        write = object.__setattr__ if type(value).__dataclass_params__.frozen else setattr
        for name, v in after.items():
            write(twin, name, v)
    return follow(value, twin)


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
