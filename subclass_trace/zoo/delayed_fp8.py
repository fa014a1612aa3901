"""Delayed scaling for `ScaledFP8`: the scale of a tensor comes from the largest magnitudes of the
steps before.

Dynamic scaling reads each tensor twice, first for its amax and then to quantise it. Delayed scaling
(Micikevicius et al., "FP8 Formats for Deep Learning", 2022; NVIDIA's Transformer Engine) knows the
scale beforehand, notes the amax on the way, and saturates what is larger than anything in its
history. The history is a buffer: a region gives it back changed.

    >>> _ = torch.manual_seed(0)
    >>> layer = DelayedFP8Linear(16, 4, history=3)
    >>> x = torch.randn(8, 16)
    >>> y = layer(x)
    >>> bool(layer.input_scale.history[0] == x.abs().amax())
    True
    >>> bool((y - torch.nn.functional.linear(x, layer.weight, layer.bias)).norm() < 0.05 * y.norm())
    True

A gradient is known in the backward, which should change nothing. So the history that follows comes
out as the gradient of the history, and replaces it after the backward (as in Flax, "overwrite with
gradient"):

    >>> y.backward(torch.full_like(y, 2.0))
    >>> advance_gradient_scales(layer)
    >>> layer.gradient_scale.history.tolist()
    [2.0, 0.0, 0.0]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ..torch_api.autograd import apply_function
from .scaled_fp8 import _TINY, E4M3, E5M2, FP8Linear, ScaledFP8, fp8_linear, to_fp8


def _amax(x: torch.Tensor) -> torch.Tensor:
    return x.abs().amax().float()


def _scale(history: torch.Tensor, largest: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    """From the history; the first step has none, and takes the tensor's own amax."""
    past = history.amax()
    return torch.where(past > 0, past, largest).clamp(min=_TINY) / torch.finfo(target).max


def _advanced(history: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    return torch.cat([largest.reshape(1).to(history), history[:-1]])


class DelayedScale(nn.Module):
    """Quantises one tensor of each step, with a scale from the last ``steps`` ones. In eval mode
    the history stays."""

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
            largest = _amax(x)
            scale = _scale(self.history, largest, self.target)
            if self.training:
                self.history.copy_(_advanced(self.history, largest))
        return to_fp8(x, self.target, scale)


class _QuantiseGradient(torch.autograd.Function):
    """The same value; its gradient comes back in FP8, and the gradient of the history is the
    history that follows."""

    @staticmethod
    def forward(
        ctx: Any, y: torch.Tensor, history: torch.Tensor, target: torch.dtype
    ) -> torch.Tensor:
        ctx.save_for_backward(history)
        ctx.target = target
        return y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (history,) = ctx.saved_tensors
        largest = _amax(grad)
        return (
            to_fp8(grad, ctx.target, _scale(history, largest, ctx.target)),
            _advanced(history, largest),
            None,
        )


class DelayedGradientScale(DelayedScale):
    """Quantises the gradient of a tensor, with a scale from the last ``steps`` backwards.

    `advance_gradient_scales` moves the history on. Without it each gradient keeps its own scale,
    and with several
    backwards before it their histories are added up: too large a scale saturates nothing.
    """

    def __init__(self, steps: int = 16, target: torch.dtype = E5M2) -> None:
        super().__init__(steps, target)
        self.history.requires_grad_()

    def forward(self, y: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """``y`` itself."""
        same: torch.Tensor = apply_function(_QuantiseGradient, y, self.history, self.target)
        return same

    def _apply(self, fn: Any, recurse: bool = True) -> DelayedGradientScale:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # what `to` makes of a buffer has a history in autograd
        self.history = self.history.detach().requires_grad_()
        return self


def advance_gradient_scales(module: nn.Module) -> None:
    """After a backward: the histories of gradients below ``module`` become what their gradients
    say."""
    for scale in module.modules():
        if isinstance(scale, DelayedGradientScale) and scale.history.grad is not None:
            with torch.no_grad():
                scale.history.copy_(scale.history.grad)
            scale.history.grad = None


class DelayedFP8Linear(FP8Linear):
    """`FP8Linear` whose activations, weight and gradients have delayed scales.

    Args:
        history: how many steps a scale looks back.
        fp8_weight: as in `FP8Linear`; such a weight has a scale of its own, and no history.
    """

    def __init__(self, *args: Any, history: int = 16, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.input_scale, self.weight_scale = DelayedScale(history), DelayedScale(history)
        self.gradient_scale = DelayedGradientScale(history)

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, fp8_weight: bool = False) -> FP8Linear:
        """As in `FP8Linear`; the histories are where the weight is."""
        new = super().from_linear(linear, fp8_weight=fp8_weight)
        for name in ("input_scale", "weight_scale", "gradient_scale"):
            getattr(new, name).to(linear.weight.device)
        return new

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The linear map; all results and gradients are in the dtype of ``x``."""
        rows = self.input_scale(x.reshape(-1, x.shape[-1]))
        y: torch.Tensor = self.gradient_scale(fp8_linear(rows, self.weight_scale(self.weight)))
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(y.dtype)
