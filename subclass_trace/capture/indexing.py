"""Symbolic numbers where a Python number is asked for: ``x[i]``, ``x[i:j]``, ``x.narrow(0, i, 2)``.

Torch's indexing takes a tensor that stands for a number and reads it. Here it is read by ``.item()``, which is a symbol of
the trace, so that the graph reads it anew in each call. It also takes a size (``x[n - 1]``) for a number of this trace
alone; ``select`` does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _torch
from ..subclass.protocol import Kind, kind_of
from .looks import fits, is_from_inside, look_in_each_call
from .recorder import Recorder

Tensor = torch.Tensor
aten = torch.ops.aten
# torch has no annotations for these
_LEAST: Any = torch.sym_min
_MOST: Any = torch.sym_max
#: beyond all sizes; Python's whole numbers have no end
_FAR = 2**62
#: these see the elements of a tensor in another shape
_SHAPES = (torch.reshape, Tensor.reshape, Tensor.view)
_INDEX = (Tensor.__getitem__, Tensor.__setitem__)
_NARROW = (torch.narrow, Tensor.narrow)


class Indexing:
    """Replaces tensors that stand for numbers in the arguments of a call.

    Args:
        traced: gives the traced tensor for a real one that the function closes over.
    """

    def __init__(self, recorder: Recorder, traced: Callable[[Tensor], Tensor]) -> None:
        self.recorder, self.traced = recorder, traced

    def call(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """A call (function, arguments, keywords) with symbolic numbers, or one that stands for it."""
        if func in _INDEX:
            items = args[1] if type(args[1]) is tuple else (args[1],)
            if any(map(_holds_a_number, items)):
                source, rest = self._taken(args[0], list(items))
                args, items = (source, rest, *args[2:]), rest if type(rest) is tuple else (rest,)
            if any(type(i) is torch.SymInt for i in items):
                return self._of_sizes(func, args[0], items, args[2:]) or (func, args, kwargs)
            return func, (args[0], _with_whole_slices(args[0], args[1]), *args[2:]), kwargs
        if func in _NARROW:
            return (func, *self._narrow(args, kwargs))
        if func in _SHAPES:
            self._look_at_shape(args, kwargs)
        return func, args, kwargs

    # ------------------------------------------------------------------ sizes as an index
    def _of_sizes(self, func: Any, x: Tensor, items: Sequence[Any], value: Any) -> tuple[Any, Any, Any] | None:
        """The calls that torch makes of an index, of which the last one is left to the caller; None where it is left to
        torch, which takes sizes for numbers: other kinds of items, what eager refuses, and a class that would see it."""
        if sees_functions(type(x)) or not all(map(_is_basic, items)) or sum(i is ... for i in items) > 1:
            return None
        free = x.dim() - sum(_dims_of(i) or 0 for i in items)
        if free < 0:
            return None
        calls: list[tuple[Any, Any]] = []
        kept: list[Any] = []  # what is left of the index
        dim = 0  # of ``x``
        for item in items:
            if type(item) in (int, torch.SymInt):
                if not -x.shape[dim] <= item < x.shape[dim]:
                    return None
                calls.append((Tensor.select, (len(kept), item)))
            elif item is None:
                calls.append((Tensor.unsqueeze, (len(kept),)))
            elif isinstance(item, slice) and not _is_left_out(x, item, dim):
                calls.append((Tensor.__getitem__, ((*[_WHOLE] * len(kept), item),)))
            dim += free if item is ... else _dims_of(item) or 0
            kept += [_WHOLE] * free if item is ... else [item] if isinstance(item, Tensor) else []
            kept += [_WHOLE] if item is None or isinstance(item, slice) else []
        if func is Tensor.__setitem__ or any(isinstance(i, Tensor) for i in kept):
            calls.append((func, (tuple(kept) if any(isinstance(i, Tensor) for i in kept) else ..., *value)))
        *steps, (last, rest) = calls
        for step, args in steps:
            args = _whole_in_call(step, x, args)
            made = step(x, *args)
            self.recorder.views.note(step, (x, *args), {}, made)
            x = made
        return last, (x, *_whole_in_call(last, x, rest)), {}

    def _look_at_shape(self, args: Any, kwargs: Any) -> None:
        """Torch's code divides by a size that it takes to be positive."""
        given = [*args[1:], *kwargs.values()]
        wanted = given[0] if given and isinstance(given[0], (tuple, list)) else given
        if any(map(is_from_inside, wanted)):
            look_in_each_call(self.recorder, fits, (args[0].dim(), *args[0].shape, *wanted))

    def _taken(self, x: Tensor, items: list[Any]) -> tuple[Tensor, Any]:
        """Numbers that the trace does not know as ``select`` and ``narrow``; returns also what is left of the index.

        Torch takes numbers and slices before the tensors of an index, too.
        """
        for k in reversed(range(len(items))):
            item = items[k]
            if not _holds_a_number(item):
                continue
            before = [_dims_of(i) for i in items[:k]]
            if None in before:
                dim = x.dim() - sum(_dims_of(i) or 0 for i in items[k:])
            else:
                dim = sum(n or 0 for n in before)
            if isinstance(item, slice):
                if item.step in (None, 1):
                    x, items[k] = self._slice(x, dim, item), slice(None)
                else:
                    items[k] = slice(*(self._number(b) for b in (item.start, item.stop, item.step)))
            else:
                x = self._select(x, dim, self._number(item))
                del items[k]
        return x, tuple(items) if items else ...

    def _select(self, x: Tensor, dim: int, number: Any) -> Tensor:
        size = x.shape[dim]
        text = f"index out of range for dimension {dim} with size {size}"
        self.recorder.symbols.require(number < size, text)
        self.recorder.symbols.require(number >= -size, text)
        try:
            with _torch.unbound_symbols_set_aside(self.recorder.mode.shape_env):
                return x.select(dim, number)
        except (RuntimeError, *_torch.DATA_DEPENDENT_ERRORS) as error:
            if not depends_on_data(error):
                raise  # else: DTensor knows a part of a dimension, but not a place in it
            at = self._tensor(number)
            known: Any = torch.where(at < 0, at + size, at).item()
            for condition in (known >= 0, known + 1 <= size):
                self.recorder.symbols.require(condition, text)
            return x.narrow(dim, known, 1).select(dim, 0)

    def _slice(self, x: Tensor, dim: int, item: slice) -> Tensor:
        """One length for all inner tensors of a wrapper: the number is read before the class sees the slice."""
        size = x.shape[dim]
        start = self._position(0 if item.start is None else item.start, size)
        stop = self._position(size if item.stop is None else item.stop, size)
        length: Any = torch.clamp(stop - start, min=0).item()
        first: Any = 0 if item.start is None else start.item()
        for condition in (length >= 0, first >= 0, first + length <= size):
            self.recorder.symbols.require(condition, "a slice outside of its dimension")
        return x.narrow(dim, first, length)

    def _position(self, bound: Any, size: Any) -> Tensor:
        at = self._tensor(bound)
        return torch.clamp(torch.where(at < 0, at + size, at), 0, size)

    def _tensor(self, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return self.traced(value).reshape(()).to(torch.int64)
        if isinstance(value, torch.SymInt) and not _is_read(self.recorder.node_of(value)):
            value = _LEAST(_MOST(value, -_FAR), _FAR)
        return torch.scalar_tensor(value, dtype=torch.int64)

    def _number(self, value: Any) -> Any:
        return self.traced(value).item() if isinstance(value, Tensor) else value

    def _narrow(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """A negative start counts from the end; a trace would take one that it does not know for positive."""
        named = dict(zip(("input", "dim", "start", "length"), args, strict=False)) | kwargs
        x, dim, start = named.get("input"), named.get("dim"), named.get("start")
        if not _is_unknown(start) or not isinstance(x, Tensor) or type(dim) is not int:
            return args, kwargs
        at, size = self._tensor(start), x.shape[dim]
        known = torch.where(at < 0, at + size, at).item()
        text = f"start out of range for dimension {dim} with size {size}"
        self.recorder.symbols.require(known >= 0, text)
        self.recorder.symbols.require(known <= size, text)
        self.recorder.symbols.require(
            known + named["length"] <= size, f"start + length exceeds dimension size ({size})"
        )
        return (x, dim, known, named["length"]), {}


class IndexingInside(_torch.TorchFunctionMode):
    """The same for the calls of a wrapper class's own code."""

    def __init__(self, indexing: Indexing) -> None:
        super().__init__()
        self.indexing = indexing

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if sys._getframe(1).f_code is _DECOMPOSE:  # whose call names the operation, not that it is to be taken apart
            return func.decompose(*args, **(kwargs or {}))
        func, args, kwargs = self.indexing.call(func, args, kwargs or {})
        return func(*args, **kwargs)


#: a slice of all there is
_WHOLE = slice(None)
_DECOMPOSE = _torch.OpOverload.decompose.__code__


def depends_on_data(error: BaseException) -> bool:
    """Does torch say that a trace would have to know a value? DTensor raises another error from that one."""
    return isinstance(error, _torch.DATA_DEPENDENT_ERRORS) or isinstance(error.__cause__, _torch.DATA_DEPENDENT_ERRORS)


def _is_read(node: Any) -> bool:
    """Is the number read from a tensor as it is?"""
    return getattr(node, "target", None) is aten._local_scalar_dense.default


def _holds_a_number(item: Any) -> bool:
    if isinstance(item, slice):
        return any(map(_is_unknown, (item.start, item.stop, item.step)))
    # Booleans and bytes in an index are masks.
    mask = isinstance(item, Tensor) and (item.dim() > 0 or item.dtype is torch.uint8)
    return _is_unknown(item) and not mask


def _with_whole_slices(x: Tensor, index: Any) -> Any:
    """The index with each slice that eager leaves out as one that torch leaves out, too.

    Among several items eager makes no operation of a slice that takes all of its dimension. Where sizes are symbols torch
    leaves out what it can prove of all sizes, and a class would see the others, as slices that eager does not make.
    """
    if type(index) is not tuple or not _has_symbolic_sizes(x) or not all(map(_has_dims, index)):
        return index
    taken = [_dims_of(i) for i in index]
    free = x.dim() - sum(n or 0 for n in taken)
    if free < 0 or taken.count(None) > 1:
        return index
    found, dim = list(index), 0
    for k, item in enumerate(index):
        if isinstance(item, slice) and _is_left_out(x, item, dim):
            found[k] = slice(0, x.shape[dim], 1)
        n = taken[k]
        dim += free if n is None else n
    return tuple(found)


def _whole_in_call(func: Any, x: Tensor, args: Any) -> Any:
    """The arguments behind ``x`` of one of the calls that are made of an index."""
    return (_with_whole_slices(x, args[0]), *args[1:]) if func in _INDEX else args


def _has_symbolic_sizes(x: Tensor) -> bool:
    """Is it a wrapper with sizes that are symbols, whose class sees operations only?"""
    symbolic = any(isinstance(n, torch.SymInt) for n in x.shape)
    return symbolic and kind_of(type(x)) is Kind.WRAPPER and not sees_functions(type(x))


def _has_dims(item: Any) -> bool:
    """Is it known how many dimensions an item takes? Not for lists, which may be masks."""
    return item is None or item is ... or type(item) in (int, slice, torch.SymInt) or isinstance(item, Tensor)


def _is_left_out(x: Tensor, item: slice, dim: int) -> bool:
    """Does eager leave this slice out of an index? For a wrapper that is a condition of the trace."""
    if item.start is item.stop is item.step is None:
        return True
    start, stop, step = item.start or 0, item.stop, item.step
    bounds = [n for n in (start, stop, step) if n is not None]
    if not _has_symbolic_sizes(x) or not all(type(n) in (int, torch.SymInt) for n in bounds):
        return False
    size = x.shape[dim]
    if any(map(_is_unknown, (size, *bounds))) or (type(start) is int and start != 0) or step not in (None, 1):
        return False
    if type(stop) is int and size == stop:  # a number from now on: an upper bound that is met makes a trace slow
        return bool(start == 0)
    return bool((stop is None or size <= stop) and start == 0)


def sees_functions(cls: Any) -> bool:
    """Does a class of tensors see which functions are called with them?"""
    own = cls.__torch_function__
    return own is not _torch.disabled_torch_function and getattr(own, "__func__", None) is not _PLAIN_FUNCTION


_PLAIN_FUNCTION: Any = Tensor.__torch_function__.__func__  # type: ignore[attr-defined]


def _is_basic(item: Any) -> bool:
    """Is it a number, a slice, or one of the like; or places that a tensor holds, which torch takes after all these?"""
    if isinstance(item, Tensor):
        return item.dim() > 0 and item.dtype in (torch.int64, torch.int32)
    return item is None or item is ... or type(item) in (int, slice, torch.SymInt)


def _is_unknown(value: Any) -> bool:
    """A tensor that torch takes for a number, or a number that came out of one."""
    if isinstance(value, torch.SymInt):
        return _torch.is_data_dependent(value)
    if not isinstance(value, Tensor) or kind_of(type(value)) is not Kind.LEAF:
        return False
    whole = not value.dtype.is_floating_point and not value.dtype.is_complex and value.dtype is not torch.bool
    return whole and all(type(n) is int and n == 1 for n in value.shape)


def _dims_of(item: Any) -> int | None:
    """How many dimensions an item of an index takes; None for ``...``, which takes what is left."""
    if item is ...:
        return None
    if item is None or type(item) is bool:
        return 0
    masks = isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8)
    return item.dim() if masks else 1
