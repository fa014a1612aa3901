"""Places that are symbols: ``x[i]`` of a number from inside a tensor, or of one that differs
between calls, is a ``select``.

Torch's indexing reads a tensor that stands for a number, and takes a symbol (``cache[:, pos]``) for
a number of this trace.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UnsupportedError
from ..subclass.protocol import Kind, kind_of
from ..torch_api.autograd import is_of_vmap
from ..torch_api.fakes import DATA_DEPENDENT_ERRORS
from ..torch_api.symbols import is_data_dependent, unbound_symbols_set_aside
from ..torch_api.wrappers import disabled_torch_function
from .phase import Recording

Tensor = torch.Tensor
_INDEX = (Tensor.__getitem__, Tensor.__setitem__)
_PLAIN_FUNCTION: Any = Tensor.__torch_function__.__func__  # type: ignore[attr-defined]


def with_places(recorder: Recording, func: Any, args: Any) -> tuple[Any, Any]:
    """A call (function, arguments) without symbols for places in its index."""
    if func not in _INDEX or not isinstance(args[0], Tensor) or _sees_functions(type(args[0])):
        return func, args
    items = list(args[1]) if type(args[1]) is tuple else [args[1]]
    if func is Tensor.__setitem__ and len(items) == 1 and _is_choice(args[0], items[0], args[2]):
        return _write_if, (args[0], items[0], args[2])
    # no lists
    known = all(
        i is None or i is ... or isinstance(i, (int, slice, torch.SymInt, Tensor)) for i in items
    )
    sized = type(args[1]) is tuple and _has_symbolic_sizes(args[0])
    if not (sized or any(map(_is_place, items))) or not known or sum(i is ... for i in items) > 1:
        return func, args
    x = args[0]
    # torch, too, takes numbers and slices before the tensors of an index
    for k in reversed(range(len(items))):
        if _is_place(items[k]):
            dim = _dim_of(x, items, k)
            x = _select(recorder, x, dim, items.pop(k))
    items = [_whole(x, items, k) for k in range(len(items))] if sized else items
    if items or func is Tensor.__setitem__:
        return func, (x, tuple(items) if items else ..., *args[2:])
    return (lambda t: t), (x,)


def _select(recorder: Recording, x: Tensor, dim: int, place: Any) -> Tensor:
    place = place.item() if isinstance(place, Tensor) else place
    size = x.shape[dim]
    if not (isinstance(place, torch.SymInt) and is_data_dependent(place)):
        if not -size <= place < size:
            raise IndexError(f"index out of range for dimension {dim} with size {size}")
        return x.select(dim, place)
    torch._check(place < size)  # type: ignore[no-untyped-call]
    torch._check(place >= -size)  # type: ignore[no-untyped-call]
    try:
        with unbound_symbols_set_aside(recorder.mode.shape_env):
            return x.select(dim, place)
    except (RuntimeError, *DATA_DEPENDENT_ERRORS) as error:  # DTensor's
        raise UnsupportedError(
            "a wrapper is indexed by a number from inside a tensor, which its class has to know",
            code="index-from-values",
        ) from error


def _is_choice(x: Tensor, mask: Any, value: Any) -> bool:
    """Is it ``x[mask] = value`` of one bool in a tensor, which torch would ask for?"""
    if not (isinstance(mask, Tensor) and mask.dtype is torch.bool and mask.dim() == 0):
        return False
    plain = all(kind_of(type(t)) is Kind.LEAF for t in (x, mask))
    return plain and (
        isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.dtype is x.dtype)
    )


def _write_if(x: Tensor, mask: Tensor, value: Any) -> None:
    x.copy_(torch.where(mask, value, x))


def _whole(x: Tensor, items: list[Any], k: int) -> Any:
    """An item of an index; a slice of all there is as one that torch leaves out as eager does,
    which a class would see."""
    item = items[k]
    if not isinstance(item, slice) or item.step not in (None, 1) or item.start:
        return item
    size = x.shape[_dim_of(x, items, k)]
    return (
        slice(0, size, 1) if item.stop is None or (item.stop >= 0 and item.stop >= size) else item
    )


def _has_symbolic_sizes(x: Tensor) -> bool:
    """Is it a wrapper whose sizes are symbols?"""
    return kind_of(type(x)) is Kind.WRAPPER and any(isinstance(n, torch.SymInt) for n in x.shape)


def _dim_of(x: Tensor, items: list[Any], k: int) -> int:
    """The dimension of ``x`` that item ``k`` of an index is for."""
    after = any(i is ... for i in items[:k])
    return x.dim() - sum(map(_dims_of, items[k:])) if after else sum(map(_dims_of, items[:k]))


def _is_place(item: Any) -> bool:
    """A symbol, or a traced tensor that torch takes for a number; booleans and bytes are masks, and
    under ``vmap`` it takes none for a number."""
    if not isinstance(item, Tensor):
        return isinstance(item, torch.SymInt)
    whole = not (
        item.dtype.is_floating_point
        or item.dtype.is_complex
        or item.dtype in (torch.bool, torch.uint8)
    )
    return whole and item.dim() == 0 and kind_of(type(item)) is Kind.LEAF and not is_of_vmap(item)


def _dims_of(item: Any) -> int:
    if item is None or item is ... or type(item) is bool:
        return 0
    return item.dim() if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) else 1


def _sees_functions(cls: Any) -> bool:
    """Does a class of tensors see which functions are called with them?"""
    own = cls.__torch_function__
    return (
        own is not disabled_torch_function and getattr(own, "__func__", None) is not _PLAIN_FUNCTION
    )
