"""Places that are symbols: ``x[i]`` of a number from inside a tensor, or of a size, is a ``select``.

Torch's indexing reads a tensor that stands for a number, and takes a size (``x[n - 1]``) for a number of this trace. ``select``
does not, and DTensor knows where its result lies.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _torch
from ..subclass.protocol import Kind, kind_of

Tensor = torch.Tensor
_INDEX = (Tensor.__getitem__, Tensor.__setitem__)
_PLAIN_FUNCTION: Any = Tensor.__torch_function__.__func__  # type: ignore[attr-defined]


def with_places(recorder: Any, func: Any, args: Any) -> tuple[Any, Any]:
    """A call (function, arguments) without symbols for places in its index."""
    if func not in _INDEX or not isinstance(args[0], Tensor) or _sees_functions(type(args[0])):
        return func, args
    items = list(args[1]) if type(args[1]) is tuple else [args[1]]
    if not any(map(_is_place, items)) or sum(i is ... for i in items) > 1 or not all(map(_has_dims, items)):
        return func, args
    x = args[0]
    for k in reversed(range(len(items))):  # torch, too, takes numbers before the tensors of an index
        if _is_place(items[k]):
            x = _select(recorder, x, _dim_of(x, items, k), items[k])
            del items[k]
    if items or func is Tensor.__setitem__:
        return func, (x, tuple(items) if items else ..., *args[2:])
    return _itself, (x,)


def _itself(x: Tensor) -> Tensor:
    return x


def _select(recorder: Any, x: Tensor, dim: int, place: Any) -> Tensor:
    if isinstance(place, Tensor):
        place = place.item()
    size, text = x.shape[dim], f"index out of range for dimension {dim} with size {x.shape[dim]}"
    inside = isinstance(place, torch.SymInt) and _torch.is_data_dependent(place)
    if not inside:
        if not -size <= place < size:
            raise IndexError(text)
        made = x.select(dim, place)
        recorder.views.note(Tensor.select, (x, dim, place), {}, made)
        return made
    recorder.symbols.require(place < size, text)
    recorder.symbols.require(place >= -size, text)
    try:
        with _torch.unbound_symbols_set_aside(recorder.mode.shape_env):
            return x.select(dim, place)
    except (RuntimeError, *_torch.DATA_DEPENDENT_ERRORS) as error:
        if not depends_on_data(error):
            raise  # else: DTensor knows a part of a dimension, but not a place in it
    at: Any = torch.scalar_tensor(place, dtype=torch.int64)
    known: Any = torch.where(at < 0, at + size, at).item()
    for condition in (known >= 0, known + 1 <= size):
        recorder.symbols.require(condition, text)
    return x.narrow(dim, known, 1).select(dim, 0)


def depends_on_data(error: BaseException) -> bool:
    """Does torch say that a trace would have to know a value? DTensor raises another error from that one."""
    return isinstance(error, _torch.DATA_DEPENDENT_ERRORS) or isinstance(error.__cause__, _torch.DATA_DEPENDENT_ERRORS)


def _is_place(item: Any) -> bool:
    """A symbol, or a traced tensor that torch takes for a number; booleans and bytes are masks."""
    if not isinstance(item, Tensor):
        return isinstance(item, torch.SymInt)
    whole = not (item.dtype.is_floating_point or item.dtype.is_complex or item.dtype in (torch.bool, torch.uint8))
    return whole and item.dim() == 0 and kind_of(type(item)) is Kind.LEAF


def _has_dims(item: Any) -> bool:
    """Is it known how many dimensions an item takes? Not for lists, which may be masks."""
    return item is None or item is ... or isinstance(item, (int, slice, torch.SymInt, Tensor))


def _dims_of(item: Any) -> int:
    if item is None or item is ... or type(item) is bool:
        return 0
    return item.dim() if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) else 1


def _dim_of(x: Tensor, items: list[Any], k: int) -> int:
    """The dimension of ``x`` that item ``k`` of an index is for."""
    after = any(i is ... for i in items[:k])
    return x.dim() - sum(map(_dims_of, items[k:])) if after else sum(map(_dims_of, items[:k]))


def _sees_functions(cls: Any) -> bool:
    """Does a class of tensors see which functions are called with them?"""
    own = cls.__torch_function__
    return own is not _torch.disabled_torch_function and getattr(own, "__func__", None) is not _PLAIN_FUNCTION
