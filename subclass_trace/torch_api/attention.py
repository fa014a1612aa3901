"""Which kernels ``scaled_dot_product_attention`` may take: a projection of the table of flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .flag_rows import ATTENTION, GUARD_NAMES
from .flags import FLAGS

_ROWS = tuple(flag for flag in FLAGS if flag.decides == ATTENTION)


class AttentionKernels(NamedTuple):
    """The values of those flags, in the order of the table."""

    values: tuple[Any, ...]

    def __repr__(self) -> str:
        """Short, for messages of guards."""
        rows = zip(_ROWS, self.values, strict=True)
        return " or ".join(flag.name for flag, value in rows if value is True) or "none"


def attention_kernels() -> AttentionKernels:
    """What holds now, for all threads."""
    return AttentionKernels(tuple(flag.read() for flag in _ROWS))


def other_attention_code(kernels: AttentionKernels, bind: Callable[[str, Any], str]) -> str:
    """Python that asks whether others are allowed now. ``bind`` gives what the code calls a
    name."""
    bind("torch", GUARD_NAMES["torch"])
    rows = zip(_ROWS, kernels.values, strict=True)
    return " or ".join(f"{flag.code} != {value!r}" for flag, value in rows)
