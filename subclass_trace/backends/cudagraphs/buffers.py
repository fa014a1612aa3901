"""Memory that a recording reads, laid out as the inputs of a call are."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from ...torch_api.kinds import is_dense
from ...torch_api.memory import with_bits_of

Tensor = torch.Tensor
_ALIGNED = 64


def is_whole(t: Tensor) -> bool:
    """Does it lie in its memory without gaps, each element at a place of its own, as it is?"""
    return not (t.is_conj() or t.is_neg()) and (t.is_contiguous() or is_dense(t))


def span_of(t: Tensor) -> int:
    """From its first element to its last one, in elements."""
    if 0 in t.shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))


def as_span(t: Tensor) -> Tensor:
    """All memory between its first and its last element, as it is: what is expanded, or overlaps
    itself, is copied once."""
    return with_bits_of(t, t.detach()).as_strided((span_of(t),), (1,))


def fresh(t: Tensor) -> Tensor:
    """A copy with the very strides."""
    if is_whole(t):
        return t.clone()
    return with_bits_of(t, as_span(t).clone().as_strided(t.shape, t.stride(), 0)).detach()


def fresh_memory(t: Tensor) -> Tensor:
    """A copy in a copy of all its memory, of which others have parts, too."""
    count = t.untyped_storage().nbytes() // t.element_size()
    memory = with_bits_of(t, t.detach()).as_strided((count,), (1,), 0).clone()
    return with_bits_of(t, memory.as_strided(t.shape, t.stride(), t.storage_offset())).detach()


def is_computed_with(t: Tensor) -> bool:
    """Has it numbers that are differentiated? What is saved of others may be an object that counts
    as itself: the offsets of a jagged tensor."""
    return t.is_floating_point() or t.is_complex()


def make_buffers(values: Mapping[int, Tensor], written: Collection[int]) -> dict[int, Tensor]:
    """A buffer for each of these inputs.

    Inputs that overlap have one memory, if one of them is ``written``.
    """
    made: dict[int, Tensor] = {}
    for group in _overlapping(values):
        if len(group) == 1 or not any(k in written for k in group):
            for k in group:
                t = values[k]
                empty = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
                made[k] = with_bits_of(t, empty)
            continue
        start = min(values[k].data_ptr() for k in group) // _ALIGNED * _ALIGNED
        end = max(_end(values[k]) for k in group)
        memory = torch.empty(end - start, dtype=torch.uint8, device=values[group[0]].device)
        for k in group:
            t = values[k]
            offset = (t.data_ptr() - start) // t.element_size()
            empty = torch.empty(0, dtype=t.dtype, device=t.device)
            empty.set_(memory.untyped_storage(), offset, t.shape, t.stride())
            made[k] = with_bits_of(t, empty)
    return made


def overlaps(a: Tensor, b: Tensor) -> bool:
    """Have they memory in common?"""
    return a.data_ptr() < _end(b) and b.data_ptr() < _end(a)


def _end(t: Tensor) -> int:
    return t.data_ptr() + span_of(t) * t.element_size()


def _overlapping(values: Mapping[int, Tensor]) -> list[list[int]]:
    groups: list[list[int]] = []
    end = -1
    for k in sorted(values, key=lambda k: values[k].data_ptr()):
        if groups and values[k].data_ptr() < end:
            groups[-1].append(k)
        else:
            groups.append([k])
        end = max(end, _end(values[k]))
    return groups
