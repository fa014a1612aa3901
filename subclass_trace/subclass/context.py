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

from .. import torch_api

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
#: what is written by value; bytes are written as an array of them is
_WRITTEN = frozenset({int, float, complex, str, bool, type(None)})
#: the version of the format that does not tell one object twice from two equal ones
_BY_VALUE = 2
_MAX_DEPTH = 60


class Kept:
    """Stands in what a guard keeps for a value that is not simply compared with another one.

    Attributes:
        value: what a wrapper that is built again is given.
        copied: does it have a copy of what a call has?
    """

    value: Any
    copied = False

    def holds(self, now: Any) -> bool:
        """May ``now`` be in the place of that value? Never raises and never dispatches."""
        raise NotImplementedError

    def fresh(self) -> Any:
        """What a wrapper is given."""
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)


class Lent(Kept):
    """Stands in the context of a result for an object that is in that of an input: a call hands on its own object.

    Where no call is at hand, it stands for a copy of the one that was traced.

    Attributes:
        place: "input" (or what `made` has), the number of the input, the attributes that lead from it to the wrapper, and
            the parts of the context that lead to the object (None: the attributes lead to it); see `parts`.
    """

    def __init__(self, number: int, names: tuple[str, ...], steps: tuple[Any, ...] | None, value: Any) -> None:
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


class KeptPlain(Kept):
    """A list, tuple or dict of numbers and strings: compared as a whole, by the bytes that Python writes for it.

    These tell types and signs of zero apart, and one NaN is like another; other values may have the same ones as bytes alone.
    """

    copied = True

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


def _is_plain(value: Any, depth: int) -> bool:
    if type(value) is dict:
        parts = [*value, *value.values()]
    elif type(value) in (list, tuple):
        parts = value
    else:
        return False
    others = [v for v in parts if type(v) not in _WRITTEN]
    return depth < _MAX_DEPTH and all(_is_plain(v, depth + 1) for v in others)


class SizeValue:
    """A number that is computed from the sizes of a call; see `SizeExpr`."""

    __slots__ = ()


#: ("item", key or index), or ("field", name) of a dataclass or named tuple
Part = tuple[str, Any]
#: what stands for a number that differs between calls
_SIZES = (SizeValue, torch.SymInt, torch.SymFloat)


class Sizes(tuple[Any, ...]):
    """Stands in a context for a ``torch.Size`` of which some numbers are computed from the sizes of a call."""

    __slots__ = ()


def is_atom(value: Any) -> bool:
    """Is it a value that nothing can change: a number, a string, a type, a size?"""
    return isinstance(value, (*_ATOMS, float, complex, *_SIZES))


def parts_of(context: Any) -> Iterator[tuple[Part, Any]]:
    """The parts of a container or dataclass."""
    if isinstance(context, tuple):
        names = getattr(context, "_fields", None)
        steps = [("item", k) for k in range(len(context))] if names is None else [("field", n) for n in names]
        yield from zip(steps, context, strict=True)
    elif type(context) is list:
        yield from ((("item", k), v) for k, v in enumerate(context))
    elif type(context) is dict:
        yield from ((("item", k), v) for k, v in context.items())
    elif has_generated_equality(context):
        yield from ((("field", f.name), getattr(context, f.name)) for f in dataclasses.fields(context))


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
    write = object.__setattr__ if type(context).__dataclass_params__.frozen else setattr
    for ((_, name), _), v in zip(rows, found, strict=True):
        write(twin, name, v)
    return twin


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
        return isinstance(a, Kept) and a.holds(b)
    if isinstance(a, (float, complex)):
        return _same_number(a, b)
    if isinstance(a, _ATOMS):
        return bool(a == b)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same_context(x, y, _depth + 1) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_context(v, b[k], _depth + 1) for k, v in a.items())
    if isinstance(a, torch.Tensor):
        return _same_tensor(a, b)
    if type(a).__module__ == "numpy" and hasattr(a, "tobytes"):
        return (getattr(a, "dtype", None), getattr(a, "shape", None)) == (
            getattr(b, "dtype", None),
            getattr(b, "shape", None),
        ) and bool(a.tobytes() == b.tobytes())
    if has_generated_equality(a):  # raw ones: what a guard keeps of those of the user is `KeptObject`
        pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a) if f.compare]
        return all(same_context(x, y, _depth + 1) for x, y in pairs)
    return equal(a, b)


def equal(a: Any, b: Any) -> bool:
    """Does the author's ``==`` say so? It may raise anything; a guard then says "different"."""
    try:
        return (a == b) is True
    except Exception:
        return False


def snapshot(context: Any, mark: Callable[[Any], Any] | None = None) -> Any:
    """A context of its own for a wrapper: mutable containers and arrays copied, everything else by reference.

    What a guard keeps is `kept`, which can stand in the place of a context here. ``mark`` gives what marks stand for.
    """
    if mark is not None and isinstance(context, (Lent, _Outer)):
        return mark(context)
    if isinstance(context, Kept):
        return context.fresh()
    if is_buffer(context):
        return copy.copy(context)
    if type(context) is torch.Tensor:
        return _twin(context)
    if not has_generated_equality(context):
        found = map_parts(context, lambda v: snapshot(v, mark))
        return copy.copy(found) if found is context and is_copied(found) else found
    made = _copies.made
    if made is not None and id(context) in made:
        return made[id(context)][1]
    # A dataclass keeps the very tensors.
    twin = map_parts(context, lambda v: v if isinstance(v, torch.Tensor) else snapshot(v, mark))
    twin = copy.copy(context) if twin is context and is_copied(context) else twin
    if made is not None:
        made[id(context)] = (context, twin)
    return twin


def _twin(t: torch.Tensor) -> torch.Tensor:
    """A copy of a plain tensor."""
    with torch_api.no_modes(), torch.no_grad():
        return t.detach().clone().requires_grad_(t.requires_grad)


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


class _Outer(enum.Enum):
    """Stands in a context for the outer size or stride of its wrapper, when that is dynamic."""

    SIZE = "outer size"
    NUMBERS = "outer size, as a tuple"
    STRIDE = "outer stride"


def without_outer(context: Any, size: tuple[Any, ...], stride: tuple[Any, ...]) -> Any:
    """The context with each copy of the outer size or stride in it replaced by a marker (DTensor's has both).

    A copy may also be in a field of a dataclass: until torch 2.11, DTensor's context holds its whole ``DTensorSpec``.
    """
    if isinstance(context, Kept) and getattr(context, "copied", False):
        context = context.value
    if isinstance(context, tuple) and context:
        if _same_sizes(context, size):
            return _Outer.NUMBERS if type(context) is tuple else _Outer.SIZE
        if _same_sizes(context, stride):
            return _Outer.STRIDE
    return map_parts(context, lambda v: without_outer(v, size, stride))


def with_outer(
    context: Any, size: tuple[Any, ...], stride: tuple[Any, ...], lend: Callable[[Any], Any] = snapshot
) -> Any:
    """The inverse of `without_outer`, with the sizes of this call; also what `snapshot` copies is fresh.

    ``lend`` gives the objects that come from inputs.
    """
    values = {_Outer.SIZE: torch.Size, _Outer.NUMBERS: tuple}
    return snapshot(
        context,
        lambda m: lend(m) if isinstance(m, Lent) else tuple(stride) if m is _Outer.STRIDE else values[m](size),
    )


def has_generated_equality(value: Any) -> bool:
    """Is it an instance of a dataclass whose ``==`` compares the fields?"""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    return bool(type(value).__dataclass_params__.eq and "__eq__" in vars(type(value)))  # type: ignore[attr-defined]


def _is_mutable_dataclass(value: Any) -> bool:
    """An instance of a dataclass with generated equality that is not frozen."""
    return has_generated_equality(value) and not type(value).__dataclass_params__.frozen


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


def facts_of(t: torch.Tensor) -> tuple[Any, ...]:
    """The metadata of a strided tensor."""
    return t.dtype, t.device, tuple(t.shape), t.stride(), t.requires_grad, t.is_conj(), t.is_neg()


def _same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do two plain dense tensors hold the same?"""
    if a is b and torch_api.is_fake(a):
        return True
    plain = all(type(t) is torch.Tensor and t.layout is torch.strided and not t.is_quantized for t in (a, b))
    if not plain or torch_api.is_functorch_wrapped(a) or facts_of(a) != facts_of(b):
        return False
    with torch_api.no_modes():
        x, y = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
        return bool(torch.equal(x, y))
