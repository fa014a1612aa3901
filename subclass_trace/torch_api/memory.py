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


def with_bits_of(like: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """The memory, to be conjugated or negated as the other one."""
    memory = memory.conj() if like.is_conj() else memory
    return torch._neg_view(memory) if like.is_neg() else memory


def part_of(part: torch.Tensor, whole: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Takes of a tensor what ``part`` is of ``whole``, in whose memory it lies; with the version
    counter of the tensor."""
    dtype, size, stride, n = part.dtype, part.shape, part.stride(), part.element_size()
    bytes_apart = part.storage_offset() * n - whole.storage_offset() * whole.element_size()
    bits = part.is_conj(), part.is_neg()
    if dtype == whole.dtype and bits == (whole.is_conj(), whole.is_neg()):

        def view(t: torch.Tensor) -> torch.Tensor:
            return t.as_strided(size, stride, t.storage_offset() + bytes_apart // n).detach()

        return view
    like = with_bits_of(part, torch.empty(0, dtype=dtype))

    def other(t: torch.Tensor) -> torch.Tensor:
        at = (t.storage_offset() * t.element_size() + bytes_apart) // n
        made = torch.empty(0, dtype=dtype, device=t.device)
        made.set_(t.untyped_storage(), at, size, stride)
        return with_version_of(with_bits_of(like, made), t)

    return other


def address(t: torch.Tensor) -> int:
    """Where its memory begins; 0 if it has none."""
    return 0 if t._is_zerotensor() else t.untyped_storage().data_ptr()


def storage_of(t: torch.Tensor) -> torch.UntypedStorage:
    """The object that lives as long as the memory does, of which weak references are kept."""
    return t.untyped_storage()


def cloned_storage(t: torch.Tensor) -> torch.UntypedStorage:
    """A copy of all its memory."""
    made: torch.UntypedStorage = t.untyped_storage().clone()  # type: ignore[no-untyped-call]
    return made
