"""Tangents that stand for several ones at once: ``torch.autograd.grad(..., is_grads_batched=True)``.

The engine runs once, inside of a vmap of torch's older kind, whose tensors hide a dimension.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

Tensor = torch.Tensor


def is_batched(grad: Tensor | None) -> bool:
    """Does a gradient stand for several ones at once (``is_grads_batched``)?"""
    return grad is not None and bool(torch._C._functorch.is_legacy_batchedtensor(grad))


@contextlib.contextmanager
def outside_of_vmap() -> Iterator[None]:
    """Inside, the innermost vmap around is none."""
    torch._C._vmapmode_decrement_nesting()
    try:
        yield
    finally:
        torch._C._vmapmode_increment_nesting()
