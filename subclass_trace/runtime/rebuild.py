"""Making the results: views are replayed on their real base, values that lie in an input's memory become views of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import _torch
from ..plan import ValueOutput, ViewOutput
from ..subclass.flatten import leaves_of
from ..subclass.spec import LeafSpec, spec_leaves
from ..subclass.visit import rebuild
from .sizes import Env, concrete, evaluate

Tensor = torch.Tensor


def replay_view(plan: ViewOutput, base: Tensor) -> Tensor:
    """Replay the recorded view operations on ``base``. They are those that the user issued, never ``as_strided``."""
    enabled = torch.is_grad_enabled()
    with torch.set_grad_enabled(enabled and (plan.requires_grad or not base.requires_grad)):
        view = plan.replay(base)
    if plan.one_of_several:
        _torch.mark_multi_output_view(view)
    return view


def alias_of_leaves(plan: ValueOutput, value: Tensor, leaves: Sequence[Tensor], env: Env) -> Tensor:
    """``value`` with each leaf that lies in an input's memory replaced by a view of that input's leaf."""
    parts = leaves_of(value)
    spec = concrete(plan.spec, env)
    for k, (alias, leaf_spec) in enumerate(zip(plan.aliases, spec_leaves(spec), strict=True)):
        if alias is not None:
            place, delta = alias
            parts[k] = _view_like(leaves[place].detach(), leaf_spec, evaluate(delta, env))
    return rebuild(spec, iter(parts))  # type: ignore[no-any-return]


def _view_like(source: Tensor, spec: LeafSpec, delta: int) -> Tensor:
    if source.dtype == spec.dtype:
        return source.as_strided(spec.size, spec.stride, source.storage_offset() + delta)
    flat = torch.empty(0, dtype=spec.dtype, device=source.device)
    flat.set_(source.untyped_storage(), 0, (0,), (1,))
    return flat.as_strided(spec.size, spec.stride, spec.storage_offset)


def fit_strides(t: Tensor, stride: Sequence[int]) -> Tensor:
    """``t`` itself, or a copy with the strides that a graph was traced for."""
    if t.layout is not torch.strided or tuple(t.stride()) == tuple(stride):
        return t
    return torch.empty_strided(t.shape, stride, dtype=t.dtype, device=t.device).copy_(t)
