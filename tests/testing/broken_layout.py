"""Broken subclasses for the rules of the family layout."""

from __future__ import annotations

import torch
from broken import miscomputes

aten = torch.ops.aten


@miscomputes("ST613", aten.t.default)
def ContiguousTranspose(cls, right, func, args, kwargs):
    """A permuted wrapper says that it is contiguous."""
    out = right(func, args, kwargs)
    if out.dim() == 2:
        out = cls(out.data_, out.extra, out.tag, out.size(), (out.shape[1], 1))
    return out
