"""Wrappers for the tests of the front end."""

from __future__ import annotations

import torch

from subclass_trace.zoo import TwoTensor


def two(*size: int, k: float = 0.0) -> TwoTensor:
    """Two ramps, one of them backwards; ``k`` moves them apart."""
    n = torch.Size(size).numel()
    ramp = torch.arange(float(n)).reshape(size) / 7
    return TwoTensor(ramp + k, ramp.flip(0).contiguous() - k)
