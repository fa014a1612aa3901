"""Which kernels ``scaled_dot_product_attention`` may take: ``torch.nn.attention.sdpa_kernel`` sets it for a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

_KERNELS = ("flash", "fa3", "mem_efficient", "math", "cudnn", "overrideable")
_ASK = {name: getattr(torch._C, f"_get_{name}_sdp_enabled", None) for name in _KERNELS}


class AttentionKernels(NamedTuple):
    """The kernels that are allowed, and in which order they are tried."""

    allowed: tuple[str, ...]
    order: tuple[int, ...]

    def __repr__(self) -> str:
        """Short, for messages of guards."""
        return " or ".join(self.allowed) or "none"


def attention_kernels() -> AttentionKernels:
    """What holds now, for all threads."""
    allowed = tuple(name for name, ask in _ASK.items() if ask is not None and ask())
    return AttentionKernels(allowed, tuple(torch._C._get_sdp_priority_order()))


def other_attention_code(kernels: AttentionKernels, bind: Callable[[str, Any], str]) -> str:
    """Python that asks whether others are allowed now. ``bind`` gives what the code calls a name."""
    parts = [
        f"{bind(f'attention_by_{name}', ask)}() is not {name in kernels.allowed}"
        for name, ask in _ASK.items()
        if ask is not None
    ]
    order = bind("attention_order", torch._C._get_sdp_priority_order)
    return " or ".join((*parts, f"{order}() != {list(kernels.order)}"))
