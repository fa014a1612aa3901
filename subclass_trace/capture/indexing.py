"""Places that are symbols: ``x[i]`` of a number from inside a tensor, or of a size, is a ``select``.

Torch's indexing reads a tensor that stands for a number, and takes a size (``x[n - 1]``) for a number of this trace. ``select``
does not, and DTensor knows where its result lies.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from .. import torch_api
from ..errors import DataDependentError
from ..subclass.protocol import Kind, kind_of

Tensor = torch.Tensor
_INDEX = (Tensor.__getitem__, Tensor.__setitem__)
_DECOMPOSE = torch_api.OpOverload.decompose.__code__
_NARROW = (torch.narrow, Tensor.narrow)
_PLAIN_FUNCTION: Any = Tensor.__torch_function__.__func__  # type: ignore[attr-defined]


def with_places(recorder: Any, func: Any, args: Any) -> tuple[Any, Any]:
    """A call (function, arguments) without symbols for places in its index."""
    if func in _NARROW and len(args) == 4 and _is_unknown(args[2]):
        return func, (*args[:2], _start(recorder, *args), args[3])
    if func not in _INDEX or not isinstance(args[0], Tensor) or _sees_functions(type(args[0])):
        return func, args
    items = list(args[1]) if type(args[1]) is tuple else [args[1]]
    if not all(map(_has_dims, items)) or sum(i is ... for i in items) > 1:
        return func, args
    x, taken = args[0], False
    for k in reversed(range(len(items))):  # torch, too, takes numbers and slices before the tensors of an index
        if _is_place(items[k]):
            x, taken = _select(recorder, x, _dim_of(x, items, k), items[k]), True
            del items[k]
        elif isinstance(items[k], slice) and any(map(_is_unknown, _bounds(items[k]))):
            items[k], taken = _part(recorder, x, items[k]), True
    if type(args[1]) is tuple and _has_symbolic_sizes(x):
        items, taken = [_whole(x, items, k) for k in range(len(items))], True
    if not taken:
        return func, args
    if items or func is Tensor.__setitem__:
        return func, (x, tuple(items) if items else ..., *args[2:])
    return _itself, (x,)


def _part(recorder: Any, x: Tensor, item: slice) -> slice:
    """A slice with bounds from inside tensors, as numbers.

    Raises:
        DataDependentError: of a wrapper, whose inner tensors would get a length each.
    """
    if kind_of(type(x)) is Kind.WRAPPER:
        raise DataDependentError(
            "the region takes a slice of a wrapper at bounds from inside a tensor",
            path=recorder.user_line(),
            expected="bounds that follow from Python values and sizes",
            fix="use x.narrow(dim, start.item(), length)",
        )
    return slice(*(b.item() if isinstance(b, Tensor) else b for b in _bounds(item)))


def _start(recorder: Any, x: Tensor, dim: int, start: Any, length: Any) -> Any:
    """The start of ``narrow``: a negative one counts from the end, and DTensor would ask which it is."""
    at, size = _as_tensor(start), x.shape[dim]
    known: Any = torch.where(at < 0, at + size, at).item()
    text = f"start out of range for dimension {dim} with size {size}"
    for condition in (known >= 0, known <= size, known + length <= size):
        recorder.symbols.require(condition, text)
    return known


def _as_tensor(place: Any) -> Tensor:
    return place.reshape(()).long() if isinstance(place, Tensor) else torch.scalar_tensor(place, dtype=torch.int64)


def _whole(x: Tensor, items: list[Any], k: int) -> Any:
    """An item of an index; a slice of all there is as one that torch leaves out as eager does, which a class would see."""
    item = items[k]
    if not isinstance(item, slice) or item.step not in (None, 1) or item.start:
        return item
    size = x.shape[_dim_of(x, items, k)]
    return slice(0, size, 1) if item.stop is None or (item.stop >= 0 and item.stop >= size) else item


class PlacesInside(torch_api.TorchFunctionMode):
    """The same for the calls of a wrapper class's own code."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if sys._getframe(1).f_code is _DECOMPOSE:  # whose call names the operation, not that it is to be taken apart
            return func.decompose(*args, **(kwargs or {}))
        func, args = with_places(self.recorder, func, args)
        return func(*args, **(kwargs or {}))


def _bounds(item: slice) -> tuple[Any, Any, Any]:
    return item.start, item.stop, item.step


def _is_unknown(bound: Any) -> bool:
    return isinstance(bound, Tensor) or (isinstance(bound, torch.SymInt) and torch_api.is_data_dependent(bound))


def _has_symbolic_sizes(x: Tensor) -> bool:
    """Is it a wrapper whose sizes are symbols?"""
    return kind_of(type(x)) is Kind.WRAPPER and any(isinstance(n, torch.SymInt) for n in x.shape)


def _itself(x: Tensor) -> Tensor:
    return x


def _select(recorder: Any, x: Tensor, dim: int, place: Any) -> Tensor:
    if isinstance(place, Tensor):
        place = place.item()
    size, text = x.shape[dim], f"index out of range for dimension {dim} with size {x.shape[dim]}"
    inside = isinstance(place, torch.SymInt) and torch_api.is_data_dependent(place)
    if not inside:
        if not -size <= place < size:
            raise IndexError(text)
        return x.select(dim, place)
    recorder.symbols.require(place < size, text)
    recorder.symbols.require(place >= -size, text)
    try:
        with torch_api.unbound_symbols_set_aside(recorder.mode.shape_env):
            return x.select(dim, place)
    except (RuntimeError, *torch_api.DATA_DEPENDENT_ERRORS) as error:
        if not depends_on_data(error):
            raise  # else: DTensor knows a part of a dimension, but not a place in it
    return x.narrow(dim, _start(recorder, x, dim, place, 1), 1).select(dim, 0)


def depends_on_data(error: BaseException) -> bool:
    """Does torch say that a trace would have to know a value? DTensor raises another error from that one."""
    return isinstance(error, torch_api.DATA_DEPENDENT_ERRORS) or isinstance(
        error.__cause__, torch_api.DATA_DEPENDENT_ERRORS
    )


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
    return own is not torch_api.disabled_torch_function and getattr(own, "__func__", None) is not _PLAIN_FUNCTION
