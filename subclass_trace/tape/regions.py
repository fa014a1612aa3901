"""The backward of a region of this package on a tape: its dense graph is pasted in.

Gradients of dense results always arrive with the size, dtype and device of the result (the engine sees to that), so only
their strides are fitted. Where a result is a wrapper, or sizes are symbols, the kind of tangent that arrives is known in
the run alone: then the backward stays one call.

Activations that the region keeps on the autograd node are taken from it in one step; those that were saved under
``saved_tensors_hooks`` are unpacked next to the operations that read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import _torch
from .._torch import tape as _door
from ..errors import SubclassTraceError
from ..runtime.backward import CompiledBackward, canonical
from ..runtime.function import changed_since_forward
from ..runtime.rebuild import fit_strides
from ..runtime.reference import Program
from ..subclass.spec import LeafSpec, Spec, WrapperSpec, leaf_count
from ..subclass.visit import rebuild
from .steps import Step

if TYPE_CHECKING:
    from .capture import TapeCapture


def program_of(cls: Any) -> Program | None:
    """The program of the region whose Function this class is; None for another Function."""
    program = getattr(cls, "program", None)
    return program if isinstance(program, Program) else None


def paste_region(
    capture: TapeCapture,
    program: Program,
    ctx: Any,
    ctx_step: Step,
    saved: list[Step],
    grads: list[Step | None],
    count: int,
) -> list[Step | None] | None:
    """Write the backward graph of a region; returns a step for each gradient, or None where it must stay a call."""
    from .functions import paste

    plan = program.plan
    tangents = [grads[k] for k in plan.differentiable]
    entry = _entry(program, tangents)
    if entry is None or any(n is not None for n in getattr(ctx, "numbers", None) or ()):
        return None
    kept = getattr(ctx, "kept", None)
    if kept is not None:
        step = capture.write("backward", take_kept, (ctx_step,), note="kept_activations")
        saved = [capture.part(step, k) for k in range(len(kept))]
    elif plan.compared_inputs:
        capture.write("backward", check_compared, (ctx_step, tuple(plan.compared_inputs)), note="check_versions")
    place = {row.name: k for k, row in enumerate(r for r in plan.saved if r.is_tensor)}
    leaves = [
        capture.write("op", fit_strides, (t, tuple(spec.stride)), note="fit_strides")
        for t, spec in zip(tangents, entry.tangents, strict=True)
        if t is not None and isinstance(spec, LeafSpec)
    ]
    args = [leaves[key] if kind == "tangent" else saved[place[key]] for kind, key in entry.inputs]
    graph = entry.graph if isinstance(entry.graph, torch.fx.GraphModule) else entry.graph.module
    flat = iter(paste(capture, graph, args))
    results = [_gradient(capture, spec, flat) for spec in entry.grads]
    return [*[None] * (count - len(results)), *results]


def _entry(program: Program, tangents: Sequence[Step | None]) -> CompiledBackward | None:
    """The backward for these tangents (all dense), traced now if there is none yet."""
    plan, backwards = program.plan, program.backwards
    if plan.symbols or backwards is None or torch.is_grad_enabled():
        return None
    values = [plan.values[k] for k in plan.differentiable]
    if not all(isinstance(v, LeafSpec) for v, t in zip(values, tangents, strict=True) if t is not None):
        return None
    if all(t is None for t in tangents):
        return None
    specs = [None if t is None else canonical(v) for v, t in zip(values, tangents, strict=True)]
    try:
        with _torch.no_modes():
            entry = backwards.find(specs, False, {})
    except SubclassTraceError:  # it says why when it is called
        return None
    return None if entry.graph is None else entry


def _gradient(capture: TapeCapture, spec: Spec | None, flat: Any) -> Step | None:
    if spec is None:
        return None
    if isinstance(spec, LeafSpec):
        found: Step = next(flat)
        return found
    leaves = [next(flat) for _ in range(leaf_count(spec))]
    return capture.write("op", rebuild_gradient, (spec, leaves), note="rebuild")


def rebuild_gradient(spec: WrapperSpec, leaves: list[Any]) -> Any:
    """The gradient of a wrapper from its dense leaves."""
    return rebuild(spec, iter(leaves))


def take_kept(ctx: Any) -> list[Any]:
    """The activations that a region keeps on its node, checked and released as its own backward does it."""
    kept: list[Any] | None = ctx.kept
    if kept is None:
        return list(_door.saved_values(ctx))  # raises what a second backward through a freed graph raises
    if tuple([t._version for t in kept]) != ctx.versions:
        changed_since_forward()
    if not _torch.keeps_graph():
        ctx.kept, ctx.inputs = None, ()
    return kept


def check_compared(ctx: Any, places: tuple[int, ...]) -> None:
    """Were inputs whose inner tensors are saved written since the forward?"""
    if ctx.inputs and tuple([ctx.inputs[k]._version for k in places]) != ctx.versions:
        changed_since_forward()
