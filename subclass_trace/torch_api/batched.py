"""Tangents that stand for several ones at once: ``torch.autograd.grad(..., is_grads_batched=True)``, vmap over a gradient.

With ``is_grads_batched`` the engine runs once, inside of a vmap of torch's older kind, whose tensors hide a dimension.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

Tensor = torch.Tensor


def is_batched(grad: Tensor | None) -> bool:
    """Does a gradient stand for several ones at once (``is_grads_batched``, ``torch.vmap``)?"""
    asks = (torch._C._functorch.is_legacy_batchedtensor, torch._C._functorch.is_functorch_wrapped_tensor)
    return grad is not None and any(ask(grad) for ask in asks)


@contextlib.contextmanager
def outside_of_vmap(batched: bool) -> Iterator[None]:
    """Inside, the innermost vmap of the older kind around is none."""
    if not batched:
        yield
        return
    torch._C._vmapmode_decrement_nesting()
    try:
        yield
    finally:
        torch._C._vmapmode_increment_nesting()


def is_legacy_batched(grad: Tensor | None) -> bool:
    """Is it a tensor of the vmap of ``is_grads_batched``?"""
    return grad is not None and bool(torch._C._functorch.is_legacy_batchedtensor(grad))
