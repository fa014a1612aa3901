"""Delivering mutations: data, metadata and Python attributes of the caller's tensors.

Nothing here issues an operation on a wrapper: data goes leaf by leaf, shapes are set below the class's dispatch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from .. import torch_api
from ..capture.aliasing import repeats
from ..capture.mutation import multi_view_error
from ..plan import InputPlan, MutationPlan
from ..subclass.flatten import leaves_of, map_leaves, tensors_inside
from ..subclass.paths import owner_of
from ..subclass.spec import LeafSpec, Spec, WrapperSpec, spec_leaves
from .sizes import Env, concrete

Tensor = torch.Tensor


class WriteBack(torch.autograd.Function):
    """``x`` gets the contents and the history of ``new``, leaf by leaf; for views autograd relates it to the base."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, new: Tensor, plan: MutationPlan) -> Tensor:
        """Copy the leaves; autograd moves the version counter."""
        _copy_leaves(plan, x, leaves_of(x), leaves_of(new))
        ctx.is_view = x._is_view()
        ctx.mark_dirty(x)
        ctx.set_materialize_grads(False)  # zeros would run the backward of what no gradient comes from
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        """The gradient belongs to the new contents. The base of a view gets zeros where it was written: for no gradient at
        all, autograd (``CopySlices``) would drop that of the rest of the base as well."""
        return map_leaves(torch.zeros_like, grad) if ctx.is_view and grad is not None else None, grad, None


def deliver(plan: MutationPlan, inp: InputPlan, x: Tensor, new: Tensor | None, old: Sequence[Tensor], env: Env) -> None:
    """Deliver one mutation to ``x``.

    Args:
        new: the forward value with the new contents.
        old: the leaves of ``x``, taken before anything was delivered.
    """
    if plan.differentiable and torch_api.creation_forbids_inplace(x):
        raise multi_view_error(inp.path)
    if plan.metadata is not None:
        inside = () if plan.leaf_bumps is None else (*old, *(t for _, t in tensors_inside(x)))
        with _same_versions(inside):
            _write_metadata(x, inp, plan, old, env)
    fresh = [] if new is None else leaves_of(new)
    if plan.differentiable and new is not None:
        with torch.enable_grad():  # the region may have enabled gradients itself
            torch_api.apply_function(WriteBack, x, new, plan)
    else:
        with torch.no_grad():
            _copy_leaves(plan, x, old, fresh)
    for name, bumps in plan.inner_bumps.items():
        inner = getattr(*owner_of(x, name))
        if not inner.is_inference():
            torch_api.set_version(inner, inner._version + bumps)
    set_attributes(x, plan.attributes)


def set_attributes(x: Tensor, attributes: Mapping[str, Any]) -> None:
    """Set Python attributes, with dots: of wrappers inside."""
    for name, value in attributes.items():
        owner, last = owner_of(x, name)
        setattr(owner, last, value)


def _copy_leaves(plan: MutationPlan, x: Tensor, old: Sequence[Tensor], fresh: Sequence[Tensor]) -> None:
    """Copy what was written. Below a wrapper's dispatch, torch does not ask whether an inner tensor is an inference tensor."""
    for k in plan.leaves:
        if k in plan.in_program and (torch.is_inference_mode_enabled() or not old[k].is_inference()):
            continue
        inference = old[k].is_inference()
        version = None if plan.leaf_bumps is None or inference else old[k]._version
        below = k in plan.below and inference and not x.is_inference()
        with torch.inference_mode() if below else contextlib.nullcontext():
            _copy(old[k], fresh[k])
        if version is not None:
            torch_api.set_version(old[k], version)
    for k, bumps in (plan.leaf_bumps or {}).items():
        if bumps and not old[k].is_inference():
            torch_api.set_version(old[k], old[k]._version + bumps)


def _copy(leaf: Tensor, new: Tensor) -> None:
    if repeats(leaf):  # it shares memory with what was written; no kernel writes one element several times
        once = tuple(slice(1) if stride == 0 else slice(None) for stride in leaf.stride())
        leaf, new = leaf[once], new[once]
    leaf.copy_(new)


def set_version(x: Tensor, version: int) -> None:
    """Let the version counter of ``x`` stand where eager would leave it."""
    if x._version != version:
        torch_api.set_version(x, version)


def _write_metadata(x: Tensor, inp: InputPlan, plan: MutationPlan, old: Sequence[Tensor], env: Env) -> None:
    assert plan.metadata is not None
    _lay_out(x, old, concrete(inp.spec, env), concrete(plan.metadata, env))


def _lay_out(x: Tensor, leaves: Sequence[Tensor], before: Spec, after: Spec) -> None:
    for leaf, a, b in zip(leaves, spec_leaves(before), spec_leaves(after), strict=True):
        if _layout(a) != _layout(b):
            with torch.no_grad():
                _make_room(leaf, leaf.storage_offset() + b.storage_offset - a.storage_offset, b)
                leaf.as_strided_(b.size, b.stride, leaf.storage_offset() + b.storage_offset - a.storage_offset)
    _write_outer(x, before, after)


@contextlib.contextmanager
def _same_versions(tensors: Sequence[Tensor]) -> Iterator[None]:
    """What is done inside does not move the version counters of these."""
    known = [(t, t._version) for t in tensors if not t.is_inference()]
    try:
        yield
    finally:
        for t, version in known:
            torch_api.set_version(t, version)


def _make_room(leaf: Tensor, offset: int, after: LeafSpec) -> None:
    """Where a result was larger than the tensor that it was written to (``out=torch.empty(0)``), its storage grows."""
    last = sum((n - 1) * s for n, s in zip(after.size, after.stride, strict=True))
    needed = 0 if 0 in after.size else (offset + last + 1) * leaf.element_size()
    if leaf.untyped_storage().nbytes() < needed:
        leaf.untyped_storage().resize_(needed)


def _write_outer(x: Any, before: Spec, after: Spec) -> None:
    """Outer sizes of the wrapper and of the wrappers inside it, set below the dispatch of their classes.

    One inside may be inside of another input as well, which has changed it already.
    """
    if not isinstance(after, WrapperSpec) or not isinstance(before, WrapperSpec):
        return
    changes = (before.size, before.stride) != (after.size, after.stride)
    if changes and (tuple(x.shape), tuple(x.stride())) != (after.size, after.stride):
        with torch_api.without_dispatch(), torch.no_grad():
            try:
                torch.ops.aten.as_strided_.default(x, after.size, after.stride, x.storage_offset())
            except RuntimeError:  # the storage that stands for its memory is smaller
                x.data = torch_api.outer_tensor(x, after.size, after.stride)
    for name, was, inner in zip(after.names, before.inners, after.inners, strict=True):
        _write_outer(getattr(x, name), was, inner)


def _layout(leaf: LeafSpec) -> tuple[Any, ...]:
    return leaf.size, leaf.stride, leaf.storage_offset
