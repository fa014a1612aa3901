"""Flatten contexts: their parts, what guards keep of them, and when two are the same.

A context is whatever an author returns from ``__tensor_flatten__``: often unhashable, sometimes
mutable, sometimes with an array whose ``==`` is an array. A guard keeps a copy of what can be
changed in place (`guarded`), and compares by value (`same_context`). See docs/notes/contexts.md.

>>> scale = {"value": 2}
>>> known = guarded((scale, 1))
>>> same_context(known, (scale, 1))
True
>>> scale["value"] = 3
>>> same_context(known, (scale, 1))
False
"""

from __future__ import annotations

import array
import copy
import dataclasses
import enum
import functools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import UnsupportedError
from ..torch_api.kinds import is_opaque
from . import values
from .attributes import is_foreign, namespace_of

_MAX_DEPTH = 60
#: what changes in place, though a guard would hold the very object
_REFUSED = (
    *(
        list,
        dict,
        set,
        frozenset,
        types.MappingProxyType,
        types.SimpleNamespace,
        types.MethodType,
        types.CellType,
    ),
    *(functools.partial, torch.nn.Module, torch.Tensor, Iterator),
)


# ---- numbers of a call
class SizeValue:
    """A number that is computed from the sizes of a call; see `SizeExpr`."""

    __slots__ = ()


#: what stands for a number that differs between calls
_SIZES = (SizeValue, torch.SymInt, torch.SymFloat)


class Sizes(tuple[Any, ...]):
    """Stands in a context for a ``torch.Size`` of which some numbers are computed from the sizes of
    a call."""

    __slots__ = ()


def has_sizes(context: Any) -> bool:
    """Does a context hold numbers that are computed from sizes?"""
    return isinstance(context, _SIZES) or any(map(has_sizes, parts_of(context)))


def map_sizes(context: Any, function: Callable[[Any], Any]) -> Any:
    """A context with each number that is computed from sizes replaced."""
    if isinstance(context, _SIZES):
        return function(context)
    if isinstance(context, (torch.Size, Sizes)):
        items = [map_sizes(v, function) for v in context]
        return (Sizes if any(isinstance(n, SizeValue) for n in items) else torch.Size)(items)
    return map_parts(context, lambda v: map_sizes(v, function))


# ---- parts
def is_fixed(value: Any) -> bool:
    """Is it a value that nothing can change, and that holds no size: a number, a string, a type?"""
    if isinstance(value, (type, *_SIZES, int, float, complex, str, bytes)):
        return True
    return values.is_atom(value) and type(value) not in (torch.Size, slice, range)


def parts_of(context: Any) -> list[Any]:
    """The parts of a container or dataclass."""
    if isinstance(context, tuple) or type(context) is list:
        return [*context]
    if type(context) is dict:
        return [*context.values()]
    return (
        [getattr(context, name) for name in fields_of(context)]
        if has_generated_equality(context)
        else []
    )


def fields_of(value: Any) -> list[str]:
    """The fields of a dataclass of the user's, and what it holds besides them; of another one,
    those that it compares."""
    cls = type(value)
    if is_foreign(cls):
        return [f.name for f in dataclasses.fields(value) if f.compare]
    names = [f.name for f in dataclasses.fields(value)]
    rest = (
        n
        for n in namespace_of(value) or ()
        if not isinstance(getattr(cls, n, None), functools.cached_property)
    )
    return list(dict.fromkeys((*names, *rest)))


def _is_leaf(value: Any) -> bool:
    """Has it no parts? Most of a context, at the price of one look-up."""
    return type(value) in values.ATOMS and type(value) is not torch.Size


def map_parts(context: Any, function: Callable[[Any], Any]) -> Any:
    """A context with ``function`` applied to each of its parts: the same one where that changes
    none of them."""
    if _is_leaf(context):
        return context
    parts = [] if isinstance(context, Sizes) else parts_of(context)
    found = [*map(function, parts)]
    if all(map(operator.is_, found, parts)):
        return context
    if isinstance(context, tuple):
        return type(context)(*found) if hasattr(context, "_fields") else type(context)(found)
    if isinstance(context, list):
        return found
    if isinstance(context, dict):
        return dict(zip(context, found, strict=True))
    twin = copy.copy(context)
    for name, v in zip(fields_of(context), found, strict=True):
        object.__setattr__(twin, name, v)
    return twin


def has_generated_equality(value: Any) -> bool:
    """Is it an instance of a dataclass whose ``==`` compares the fields?"""
    cls = type(value)
    params: Any = getattr(cls, "__dataclass_params__", None)
    return params is not None and params.eq and "__eq__" in vars(cls)


def is_copied(value: Any) -> bool:
    """Can it be changed in place, so that wrappers are given copies: a container, a dataclass, an
    array?"""
    if type(value) in (list, dict, set, bytearray, array.array):
        return True
    # a number of numpy's cannot be written, and an iterator of it has no bytes
    if type(value).__module__ == "numpy":
        return hasattr(value, "__setitem__") and hasattr(value, "tobytes")
    return has_generated_equality(value) and not type(value).__dataclass_params__.frozen


def may_change(context: Any) -> bool:
    """Is there something in a context that can be changed in place?"""
    return is_copied(context) or any(map(may_change, parts_of(context)))


def fresh(context: Any, mark: Callable[[Any], Any] | None = None) -> Any:
    """A context of its own for a wrapper: what is copied (`is_copied`) is; everything else by
    reference.

    ``mark`` gives what marks stand for.
    """
    if isinstance(context, Outer) and mark is not None:
        return mark(context)
    found = map_parts(context, lambda v: fresh(v, mark))
    return copy.copy(found) if found is context and is_copied(found) else found


# ---- guards
def guarded(value: Any, path: object = "value", depth: int = 0) -> Any:
    """What a guard keeps of the context of the wrapper at ``path``; `same_context` compares it with
    that of a call.

    Raises:
        UnsupportedError: it holds what cannot be compared, or itself.
    """
    if _is_leaf(value):
        return value
    whole = isinstance(value, tuple) or type(value) in (list, dict) or has_generated_equality(value)
    if depth > _MAX_DEPTH or not (whole or _is_comparable(value)):
        raise UnsupportedError(
            "a flatten context holds what guards cannot compare",
            code="context-not-comparable",
            path=f"context of {path}",
            expected="numbers, strings, functions, and containers and dataclasses of such",
            got="itself" if depth > _MAX_DEPTH else f"a {type(value).__qualname__}",
            fix="let __tensor_flatten__ return the values that the operations of the class read; "
            "tensors are inner tensors",
        )
    found = map_parts(value, lambda v: guarded(v, path, depth + 1))
    return copy.copy(found) if found is value and is_copied(value) else found


def _is_comparable(value: Any) -> bool:
    """Does a copy of it, or the object itself, stay what it is? Not an object of the user's: what
    it holds may change."""
    if is_fixed(value) or isinstance(value, Outer) or is_opaque(value):
        return True
    if type(value) in (set, frozenset):
        return all(map(is_fixed, value))
    if isinstance(value, types.FunctionType):
        return value.__closure__ is None
    collection = any(k.__module__ in ("collections", "weakref") for k in type(value).__mro__)
    return is_copied(value) or (
        is_foreign(type(value)) and not collection and not isinstance(value, _REFUSED)
    )


def same_context(a: Any, b: Any, _depth: int = 0) -> bool:
    """Are two contexts the same for a guard? Never raises and never dispatches.

    Order: identity; type; numbers with NaN equal to NaN and the sign of zero; containers
    elementwise; arrays by shape, dtype and bytes; dataclasses fieldwise; else the author's ``==``,
    where anything but ``True`` is "different".
    """
    if a is b:
        return True
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(size_key(a) == size_key(b))
    if type(a) is not type(b) or _depth > _MAX_DEPTH or isinstance(a, torch.Tensor):
        return False
    if isinstance(a, (float, complex)):
        return values.same(a, b)
    if isinstance(a, (int, str, bytes, type, enum.Enum, torch.device)):
        return bool(a == b)
    if type(a).__module__ == "numpy" and hasattr(a, "tobytes"):
        kinds = [(getattr(x, "dtype", None), getattr(x, "shape", None)) for x in (a, b)]
        return kinds[0] == kinds[1] and bool(a.tobytes() == b.tobytes())
    if isinstance(a, tuple) or type(a) in (list, dict) or has_generated_equality(a):
        keys = list if type(a) is dict else len if isinstance(a, (tuple, list)) else fields_of
        alike: Any = keys(a) == keys(b)
        return alike and all(
            same_context(x, y, _depth + 1) for x, y in zip(parts_of(a), parts_of(b), strict=True)
        )
    try:
        return (a == b) is True
    except Exception:  # a class's own code
        return False


# ---- outer sizes in contexts
class Outer(enum.Enum):
    """Stands in a context for the outer size or stride of its wrapper, when that is dynamic."""

    SIZE = "outer size"
    NUMBERS = "outer size, as a tuple"
    STRIDE = "outer stride"


def without_outer(context: Any, size: tuple[Any, ...], stride: tuple[Any, ...]) -> Any:
    """The context with each copy of the outer size or stride in it replaced by a marker (DTensor's
    has both).

    A copy may also be in a field of a dataclass: until torch 2.11, DTensor's context holds its
    whole ``DTensorSpec``.
    """
    if isinstance(context, tuple) and context:
        if _same_sizes(context, size):
            return Outer.NUMBERS if type(context) is tuple else Outer.SIZE
        if _same_sizes(context, stride):
            return Outer.STRIDE
    return map_parts(context, lambda v: without_outer(v, size, stride))


def with_outer(context: Any, size: tuple[Any, ...], stride: tuple[Any, ...]) -> Any:
    """The inverse of `without_outer`, with the sizes of this call; what `fresh` copies is
    copied."""

    def at(mark: Any) -> Any:
        return (
            torch.Size(size)
            if mark is Outer.SIZE
            else tuple(size if mark is Outer.NUMBERS else stride)
        )

    return fresh(context, at)


def _same_sizes(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    if len(a) != len(b) or not all(type(x) is int or isinstance(x, torch.SymInt) for x in a):
        return False
    return all(size_key(x) == size_key(y) for x, y in zip(a, b, strict=True))


def size_key(n: Any) -> Any:
    """A size as something that compares without becoming a fact of the trace: its expression, or
    the number."""
    return n.node.expr if isinstance(n, torch.SymInt) and not n.node.is_nested_int() else n
