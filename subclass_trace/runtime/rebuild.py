"""Making the results: views are replayed on their real base, values that lie in an input's memory become views of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from .. import torch_api
from ..plan import LeafAlias, SymbolicView, ValueAlias, ViewOutput
from ..subclass.flatten import leaves_of
from ..subclass.spec import LeafSpec, spec_leaves
from ..subclass.visit import rebuild
from .sizes import Env, concrete, evaluate, evaluator

Tensor = torch.Tensor


def replay_view(plan: ViewOutput, base: Tensor, env: Env | None = None) -> Tensor:
    """Replay the recorded view operations on ``base``. They are those that the user issued, never ``as_strided``."""
    replay = plan.replay.at(env or {}) if isinstance(plan.replay, SymbolicView) else plan.replay
    tracked = base.requires_grad  # under no_grad of the caller too: the region may have enabled gradients itself
    enabled = plan.requires_grad if tracked else torch.is_grad_enabled()
    with torch.set_grad_enabled(enabled):
        view = replay(base)
    if plan.one_of_several and view._is_view():  # of a tensor of inference mode there are none
        torch_api.mark_multi_output_view(view)
    return view


def share(
    row: ValueAlias,
    value: Tensor,
    values: Sequence[Tensor],
    leaves: Sequence[Tensor],
    env: Env,
) -> Tensor:
    """``value`` with each leaf that lies in other memory replaced by a view of that memory.

    Args:
        values: the forward values, of which ``value`` is one.
        leaves: of the inputs of the call.
    """
    parts, spec = leaves_of(value), concrete(row.spec, env)
    for k, (alias, leaf) in enumerate(zip(row.leaves, spec_leaves(spec), strict=True)):
        if alias is not None:
            source = leaves[alias.leaf] if alias.value is None else leaves_of(values[alias.value])[alias.leaf]
            parts[k] = source if alias.same else view_like(source, leaf, alias, env)
    made: Tensor = rebuild(spec, iter(parts), evaluator(env))
    return made


def view_like(source: Tensor, spec: LeafSpec, alias: LeafAlias, env: Env) -> Tensor:
    """A tensor laid out as ``spec`` says, in the memory of ``source`` where ``alias`` says, without relation to it.

    Where ``alias.counted``: but for the version counter.
    """
    start = source.storage_offset() * source.element_size() + evaluate(alias.delta, env)
    place = (start // spec.dtype.itemsize, spec.size, spec.stride)
    counted = alias.counted and not source.is_inference()
    inference = torch.is_inference_mode_enabled()
    with torch.inference_mode(not counted) if inference else contextlib.nullcontext():
        made = torch.empty(0, dtype=spec.dtype, device=source.device).set_(source.untyped_storage(), *place)
        torch_api.set_lazy_bits(made, *alias.lazy)
        if counted:
            shared = source.detach()
            shared.data = made
            return shared
    if not made.is_inference():
        torch_api.set_version(made, 0)
    return made


def _remade(leaf: Tensor, inference: bool) -> Tensor:
    with torch.inference_mode(inference), torch.no_grad():
        made = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        made.set_(leaf.untyped_storage(), leaf.storage_offset(), leaf.size(), leaf.stride())
        torch_api.set_lazy_bits(made, leaf.is_conj(), leaf.is_neg())
    if not inference:
        torch_api.set_version(made, 0)
    return made


def is_lazy(t: Tensor) -> bool:
    """Is what is in its memory still to be conjugated, or negated?"""
    return t.is_conj() or t.is_neg()


def fit_strides(t: Tensor, stride: Sequence[int]) -> Tensor:
    """``t`` itself, or a copy with the strides that a graph was traced for."""
    if t.layout is not torch.strided or tuple(t.stride()) == tuple(stride):
        return t
    if torch_api.is_batched(t) or torch_api.is_functorch_wrapped(
        t
    ):  # room for the whole batch, whichever dimension that is
        return t.new_empty_strided(t.shape, stride).copy_(t)
    return torch.empty_strided(t.shape, stride, dtype=t.dtype, device=t.device).copy_(t)
