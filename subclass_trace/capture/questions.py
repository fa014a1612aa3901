"""Questions about a tensor beside its values that a region may ask of its inputs, and that guards ask again.

A traced stand-in would answer some of them for itself. Each has a name, under which guards keep its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Tensor = torch.Tensor


def storage_bytes(t: Tensor) -> Any:
    """The bytes of the memory that a tensor is in; None where it has none of its own."""
    return t.untyped_storage().nbytes() if t.layout is torch.strided else None


def storage_offset(t: Tensor) -> Any:
    """Where in its memory a tensor starts, in elements."""
    return t.storage_offset() if t.layout is torch.strided else None


QUESTIONS: Mapping[str, Callable[[Tensor], Any]] = {
    "is_view": Tensor._is_view,
    "is_inference": Tensor.is_inference,
    "output_nr": lambda t: t.output_nr,
    "retains_grad": lambda t: t.retains_grad,
    "storage_bytes": storage_bytes,
    "storage_offset": storage_offset,
}


def answers_of(t: Tensor) -> dict[str, Any]:
    """The answers of one tensor."""
    return {name: ask(t) for name, ask in QUESTIONS.items()}
