"""Delayed scaling for `ScaledFP8`: the scale of a tensor comes from the largest magnitudes of the steps before.

Dynamic scaling reads each tensor twice, first for its amax and then to quantise it. Delayed scaling (Micikevicius et al.,
"FP8 Formats for Deep Learning", 2022; NVIDIA's Transformer Engine) knows the scale beforehand, notes the amax on the way,
and saturates what is larger than anything in its history. The history is a buffer: a region gives it back changed.

    >>> _ = torch.manual_seed(0)
    >>> layer = DelayedFP8Linear(16, 4, history=3)
    >>> x = torch.randn(8, 16)
    >>> y = layer(x)
    >>> bool(layer.input_scale.history[0] == x.abs().amax())
    True
    >>> bool((y - torch.nn.functional.linear(x, layer.weight, layer.bias)).norm() < 0.05 * y.norm())
    True

Activations and weights are scaled so. Gradients keep dynamic scaling: their amax is known in the backward, which has no
buffers to write to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .scaled_fp8 import _TINY, E4M3, FP8Linear, ScaledFP8, fp8_linear, to_fp8


class DelayedScale(nn.Module):
    """Quantises one tensor of each step, with a scale from the last ``steps`` ones.

    The first step has no history and takes the tensor's own scale. In eval mode the history stays as it is.
    """

    history: torch.Tensor

    def __init__(self, steps: int = 16, target: torch.dtype = E4M3) -> None:
        super().__init__()
        if steps < 1:
            raise ValueError(f"a history of at least one step is needed; got {steps}")
        self.target = target
        self.register_buffer("history", torch.zeros(steps))

    def forward(self, x: torch.Tensor) -> ScaledFP8:
        """``x`` in FP8; a `ScaledFP8` stays what it is."""
        if isinstance(x, ScaledFP8):
            return x
        with torch.no_grad():
            largest = x.abs().amax().float()
            past = self.history.amax()
            scale = torch.where(past > 0, past, largest).clamp(min=_TINY) / torch.finfo(self.target).max
            if self.training:
                self.history.copy_(torch.cat([largest.reshape(1), self.history[:-1]]))
        return to_fp8(x, self.target, scale)


class DelayedFP8Linear(FP8Linear):
    """`FP8Linear` whose activations and weight have delayed scales.

    Args:
        history: how many steps a scale looks back.
        fp8_weight: as in `FP8Linear`; such a weight has a scale of its own, and no history.
    """

    def __init__(self, *args: Any, history: int = 16, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.input_scale, self.weight_scale = DelayedScale(history), DelayedScale(history)

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, fp8_weight: bool = False) -> FP8Linear:
        """As in `FP8Linear`; the histories are where the weight is."""
        new = super().from_linear(linear, fp8_weight=fp8_weight)
        for name in ("input_scale", "weight_scale"):
            getattr(new, name).to(linear.weight.device)
        return new

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The linear map; all results and gradients are in the dtype of ``x``."""
        rows = self.input_scale(x.reshape(-1, x.shape[-1]))
        y = fp8_linear(rows, self.weight_scale(self.weight), self.bias)
        return y.view(*x.shape[:-1], self.out_features)
