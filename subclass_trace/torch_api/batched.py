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
def outside_of_vmap() -> Iterator[int]:
    """Inside, the innermost vmap around is none; that has this level."""
    nesting = torch._C._vmapmode_decrement_nesting()
    try:
        yield nesting + 1
    finally:
        torch._C._vmapmode_increment_nesting()


def without_batch(t: Tensor, level: int) -> Tensor:
    """What a tensor of the vmap of this level stands for, with the hidden dimension first."""
    return torch._remove_batch_dim(t, level, 1, 0)


def with_batch(t: Tensor, level: int) -> Tensor:
    """A tensor of the vmap of this level that hides the first dimension."""
    return torch._add_batch_dim(t, 0, level)
