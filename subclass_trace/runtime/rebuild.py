"""Views are replayed on their real base; what is saved or arrives has the strides that a graph was traced for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..plan import SymbolicView, ViewOutput
from .sizes import Env

Tensor = torch.Tensor


def replay_view(plan: ViewOutput, base: Tensor, env: Env | None = None) -> Tensor:
    """Replay the recorded view operations on ``base``. They are those that the user issued, never ``as_strided``."""
    replay = plan.replay.at(env or {}) if isinstance(plan.replay, SymbolicView) else plan.replay
    # Under no_grad of the caller too: the region may have enabled gradients itself.
    with torch.set_grad_enabled(plan.requires_grad if base.requires_grad else torch.is_grad_enabled()):
        return replay(base)


def fit_strides(t: Tensor, stride: Sequence[int]) -> Tensor:
    """``t`` itself, or a copy with the strides that a graph was traced for."""
    if t.layout is not torch.strided or tuple(t.stride()) == tuple(stride):
        return t
    return t.new_empty_strided(t.shape, stride).copy_(t)  # of a batch: room for all of it, whichever dimension that is
