"""Tangents that stand for several ones at once: ``torch.autograd.grad(..., is_grads_batched=True)``.

The engine runs once, inside of a vmap of torch's older kind, whose tensors hide a dimension.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def is_batched(grad: Tensor | None) -> bool:
    """Does a gradient stand for several ones at once (``is_grads_batched``)?"""
    asks = (torch._C._functorch.is_legacy_batchedtensor, torch._C._functorch.is_functorch_wrapped_tensor)
    return grad is not None and any(ask(grad) for ask in asks)
