"""What there is to compare of a tensor in a context: its metadata, and its bytes or the tensors that it is made of.

No operation runs on a wrapper here, and none on a tensor whose numbers are out of reach.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import torch_api
from .protocol import Kind, kind_of

_COMPRESSED = {
    torch.sparse_csr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_bsr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_csc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
    torch.sparse_bsc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
}


def why_not_comparable(t: torch.Tensor) -> str | None:
    """What is in the way of comparing a tensor with another one; None where nothing is."""
    cls = type(t)
    if kind_of(cls) is Kind.WRAPPER:
        return None
    if torch_api.overrides_torch_dispatch(cls):
        return f"a {cls.__qualname__}, which is no wrapper with __tensor_flatten__"
    if t.is_quantized:
        return "a quantized tensor"
    if t.is_nested:
        return "a nested tensor of strided layout"
    if t.layout not in (torch.strided, torch.sparse_coo, *_COMPRESSED):
        return f"a tensor of layout {t.layout}"
    return None


def facts_of(t: torch.Tensor) -> tuple[Any, ...]:
    """The metadata of a tensor."""
    facts: tuple[Any, ...] = (type(t), t.dtype, t.device, t.layout, t.requires_grad)
    if t.is_nested:  # a jagged tensor: its inner tensors tell its sizes
        return facts
    if t.layout is torch.strided:
        return (*facts, tuple(t.shape), tuple(t.stride()))
    with torch_api.no_modes():
        return (*facts, tuple(t.shape), t.layout is torch.sparse_coo and t.is_coalesced())


def parts_of_tensor(t: torch.Tensor) -> list[Any] | None:
    """What tells the numbers of a tensor that is made of others, or has none; None of a dense one."""
    if kind_of(type(t)) is Kind.WRAPPER:
        names, context = t.__tensor_flatten__()  # type: ignore[attr-defined]
        return [*names, *(getattr(t, name) for name in names), context]
    if t.is_meta:
        return []
    if t.layout is torch.strided:
        return None
    with torch_api.no_modes(), torch.no_grad():
        if t.layout is torch.sparse_coo:
            return [t._indices(), t._values()]
        return [*(read(t) for read in _COMPRESSED[t.layout]), t.values()]


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do two dense tensors hold the same?"""
    with torch_api.no_modes():
        x, y = (t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
        return bool(torch.equal(x, y))
