"""Who holds the memory of tensors, and whose version counter they have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch

_uses: Callable[[torch.Tensor], int] = torch.Tensor._use_count  # type: ignore[attr-defined]


def holders(tensors: Sequence[torch.Tensor]) -> list[int]:
    """How many hold each of these tensors, or its memory. Only to be compared with the same for the
    same sequence: a difference is somebody else."""
    count, uses = torch._C._storage_Use_Count, _uses
    return [sys.getrefcount(t) + uses(t) + count(t.untyped_storage()._cdata) for t in tensors]


def with_version_of(memory: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    """The memory of the one with the version counter of the other: what writes to ``owner`` shows
    in it."""
    made = owner.detach()
    made.data = memory
    return made


def storage_of(t: torch.Tensor) -> torch.UntypedStorage:
    """The object that lives as long as the memory does, of which weak references are kept."""
    return t.untyped_storage()


def cloned_storage(t: torch.Tensor) -> torch.UntypedStorage:
    """A copy of all its memory."""
    made: torch.UntypedStorage = t.untyped_storage().clone()  # type: ignore[no-untyped-call]
    return made
