"""Bytes as a mask (``x[mask]`` of dtype uint8): a mask of booleans. Torch's fake kernels take int8 for the mask."""

from __future__ import annotations

import warnings
from typing import Any

import torch

Tensor = torch.Tensor
aten = torch.ops.aten
#: operations whose second argument is a list of indices
INDEXED = frozenset(
    {
        aten.index.Tensor,
        aten.index_put.default,
        aten.index_put_.default,
        aten._index_put_impl_.default,
        aten._unsafe_index.Tensor,
        aten._unsafe_index_put.default,
    }
)
_KINDS = (torch.int64, torch.int32, torch.uint8, torch.bool)


def has_bytes(args: Any) -> bool:
    """Is there a mask of bytes among the indices?

    Raises:
        IndexError: eager's, where one of them is of a kind that is neither an index nor a mask.
    """
    kinds = [i.dtype for i in args[1] if isinstance(i, Tensor)]
    if any(kind not in _KINDS for kind in kinds):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    return torch.uint8 in kinds


def depends_on_mask(func: Any, args: Any) -> bool:
    """Does what the operation accepts depend on the values of a mask?"""
    kinds = (torch.bool, torch.uint8)
    return func in INDEXED and any(isinstance(i, Tensor) and i.dtype in kinds for i in args[1])


def with_booleans(args: Any) -> Any:
    """The arguments with masks of booleans, made by operations of the trace.

    Raises:
        RuntimeError: eager's; it fills by one mask with another operation, which takes booleans alone.
    """
    if len(args) > 2 and len([i for i in args[1] if i is not None]) == 1 and not (len(args) > 3 and args[3]):
        if args[2].numel() == 1 and args[2].device.type == "cpu":
            raise RuntimeError("masked_fill_ only supports boolean masks, but got mask with dtype unsigned char")
    warnings.warn(
        "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.", stacklevel=2
    )
    indices = [i.ne(0) if isinstance(i, Tensor) and i.dtype is torch.uint8 else i for i in args[1]]
    return args[0], indices, *args[2:]
