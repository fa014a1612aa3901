"""The backward of a region of this package on a tape: its dense graph is pasted in where every run has the same one.

Gradients of dense results always arrive with the size, dtype and device of the result (the engine sees to that), so only
their strides are fitted. Where a result is a wrapper, or sizes are symbols, or a Python backward may give no gradient,
what arrives is known in the run alone: then the region's backward stays one call.

Activations that the region keeps on the autograd node are taken from it in one step; those that were saved under
``saved_tensors_hooks`` are unpacked next to the operations that read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import torch_api
from ..errors import SubclassTraceError
from ..runtime.backward import CompiledBackward
from ..runtime.finish import Program
from ..runtime.function import check_watched, release, written_since
from ..runtime.rebuild import fit_strides
from ..runtime.sizes import concrete
from ..runtime.tangent_layouts import contiguous
from ..runtime.tangent_sizes import known_value
from ..subclass.spec import LeafSpec, Spec, WrapperSpec, leaf_count, sizes_in
from ..subclass.visit import rebuild
from ..torch_api import tape as _door
from .paste import paste
from .steps import Step


def program_of(cls: Any) -> Program | None:
    """The program of the region whose Function this class is; None for another Function."""
    program = getattr(cls, "program", None)
    return program if isinstance(program, Program) else None


def paste_region(
    capture: Any,
    program: Program,
    ctx: Any,
    ctx_step: Step,
    saved: list[Step],
    grads: list[Step | None],
    count: int,
) -> list[Step | None] | None:
    """Write the backward graph of a region; returns a step for each gradient, or None where it must stay a call."""
    plan = program.plan
    tangents = [grads[k] for k in plan.differentiable]
    entry = None if plan.symbols or any(map(_is_uncertain, tangents)) else _entry(program, tangents)
    if entry is None:
        return None
    kept = ctx.saved or None
    if kept is not None:
        step = capture.write("backward", take_kept, (ctx_step,), note="kept_activations")
        saved = [capture.part(step, k) for k in range(len(kept))]
    elif plan.watched_inputs or plan.watched_values:
        capture.write("backward", check_watched, (ctx_step,), note="check_versions")
    leaves = [
        capture.write("op", fit_strides, (t, tuple(spec.stride)), note="fit_strides")
        for t, spec in zip(tangents, entry.tangents, strict=True)
        if t is not None and isinstance(spec, LeafSpec)
    ]
    flat = iter(_graph(capture, program, entry, leaves, saved))
    results = [_gradient(capture, spec, flat) for spec in entry.grads]
    for k, source in enumerate(entry.passed):  # autograd accumulates by reference what nobody else holds
        if source is not None:
            results[k] = tangents[source[1]] if source[0] == "tangent" else results[source[1]]
    return [*[None] * (count - len(results)), *results]


def _graph(capture: Any, program: Program, entry: CompiledBackward, leaves: list[Step], saved: list[Step]) -> list[Any]:
    """Write the operations of the backward graph; returns what stands for its outputs."""
    values = dict(zip((row.name for row in program.plan.saved), saved, strict=True))
    args = [leaves[key] if kind == "tangent" else values[key] for kind, key in entry.inputs]
    return paste(capture, entry.graph if isinstance(entry.graph, torch.fx.GraphModule) else entry.graph.module, args)


def _entry(program: Program, tangents: Sequence[Step | None]) -> CompiledBackward | None:
    """The backward for dense tangents like the results, traced now if there is none yet; None if another run may need another.

    A graph that calls user code runs for its own backward alone.
    """
    plan, backwards = program.plan, program.backwards
    values = [plan.values[k] for k in plan.differentiable]
    dense = all(isinstance(v, LeafSpec) and _is_known(v) for v in values)
    if backwards is None or not dense or all(t is None for t in tangents):
        return None
    specs = [None if t is None else contiguous(concrete(v, {})) for v, t in zip(values, tangents, strict=True)]
    try:
        with torch_api.no_modes(), torch.no_grad():  # a capture with create_graph has gradients on
            entry = backwards.find(specs, False, {})
    except SubclassTraceError:  # it says why when it is called
        return None
    asks = entry.conditions or entry.guards is not None or any(kind == "size" for kind, _ in entry.inputs)
    known = all(_is_known(s) for s in entry.grads if s is not None)
    saved = all(row.is_tensor for row in plan.saved)
    return entry if entry.graph is not None and known and saved and not asks else None


def _is_known(spec: Spec) -> bool:
    """Are all sizes of a value numbers? Some depend on values inside tensors."""
    return all(known_value(n, {}) is not None for n in sizes_in(spec))


def _is_uncertain(tangent: Step | None) -> bool:
    """May there be no gradient in a run? A Python backward or hook may say so, and what it feeds hands that on."""
    todo, seen = [] if tangent is None else [tangent], set[Step]()
    while todo:
        step = todo.pop()
        if step.kind in ("backward", "hook"):
            return True
        if step not in seen and step.kind not in ("input", "unpack", "inlined", "aten"):
            seen.add(step)
            todo += step.reads()
    return False


def _gradient(capture: Any, spec: Spec | None, flat: Any) -> Step | None:
    if spec is None:
        return None
    if isinstance(spec, LeafSpec):
        found: Step = next(flat)
        return found
    leaves = [next(flat) for _ in range(leaf_count(spec))]
    made: Step = capture.write("op", rebuild_gradient, (spec, leaves), note="rebuild")
    return made


def rebuild_gradient(spec: WrapperSpec, leaves: list[Any]) -> Any:
    """The gradient of a wrapper from its dense leaves."""
    return rebuild(spec, iter(leaves))


def take_kept(ctx: Any) -> list[Any]:
    """The activations that a region keeps on its node, checked and released as its own backward does it."""
    if ctx.saved is None:
        return list(_door.saved_values(ctx))  # raises what a second backward through a freed graph raises
    if tuple([t._version for t in ctx.saved]) != ctx.versions:
        raise written_since(ctx)
    check_watched(ctx)
    kept = list(ctx.saved)
    release(ctx)
    return kept
