"""Layouts of tangents: each is copied to the strides that the backward was traced for, as AOTAutograd does it.

The first backward is traced for tangents that are laid out as the results are, others for what came: where those are dense
for their own strides, else for contiguous ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..subclass.spec import LeafSpec, Spec, WrapperSpec


def contiguous(spec: Spec) -> Spec:
    """The spec with leaves of overlapping or sparse strides contiguous."""
    if isinstance(spec, LeafSpec):
        return spec if is_dense(spec) else replace(spec, stride=_contiguous(spec.size), storage_offset=0)
    return replace(spec, inners=tuple(map(contiguous, spec.inners))) if isinstance(spec, WrapperSpec) else spec


def is_dense(spec: LeafSpec) -> bool:
    """Does it fill its memory, each place once?"""
    expected = 1
    for stride, size in sorted(zip(spec.stride, spec.size, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _contiguous(size: Sequence[Any]) -> tuple[Any, ...]:
    out, step = [], 1
    for n in reversed(size):
        out.append(step)
        step *= max(n, 1)
    return tuple(reversed(out))
