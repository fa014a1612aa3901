"""The backward of a region of this package on a tape: its dense graph is pasted in.

Gradients of dense results always arrive with the size, dtype and device of the result (the engine sees to that), so only
their strides are fitted. Where a result is a wrapper, or sizes are symbols, or a Python backward may give no gradient,
what arrives is known in the run alone. Then two calls stand around the graph: `Begin` takes the tangents apart and reads
the sizes, `End` puts the gradients together. See Note [Tangents of another kind].

Activations that the region keeps on the autograd node are taken from it in one step; those that were saved under
``saved_tensors_hooks`` are unpacked next to the operations that read them.

Note [Tangents of another kind]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A tape cannot be left in the middle, and hooks have run before it. So when the tangents are not those that the pasted
graph is for, `Begin` calls the region's backward, which finds or traces the right one, and `End` gives its results. The
graph between them runs on zeros, for nothing, and on saved tensors that `Begin` has unpacked: no hook runs twice. Correct
but slow, and rare: the graph is for tangents like the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .. import _torch
from .._torch import tape as _door
from ..errors import SubclassTraceError
from ..runtime.backward import Backwards, CompiledBackward
from ..runtime.function import check_watched, release, written_since
from ..runtime.rebuild import fit_strides
from ..runtime.reference import Program
from ..runtime.sizes import Env, concrete, evaluator
from ..runtime.tangent_layouts import contiguous
from ..runtime.tangent_sizes import known_value, with_unbacked
from ..subclass.flatten import flatten
from ..subclass.spec import LeafSpec, Spec, WrapperSpec, leaf_count, sizes_in, spec_leaves
from ..subclass.visit import rebuild
from . import operations
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
    plan = program.plan
    tangents = [grads[k] for k in plan.differentiable]
    entry = _entry(program, ctx, tangents)
    if entry is None:
        return None
    if plan.symbols or not _is_settled(entry, ctx) or any(map(_is_uncertain, tangents)):
        return _between_calls(capture, program, entry, ctx, ctx_step, saved, grads, count)
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
    flat = iter(_graph(capture, program, entry, leaves, saved, []))
    results = [_gradient(capture, spec, flat) for spec in entry.grads]
    for k, source in enumerate(entry.passed):  # autograd accumulates by reference what nobody else holds
        if source is not None:
            results[k] = tangents[source[1]] if source[0] == "tangent" else results[source[1]]
    return [*[None] * (count - len(results)), *results]


def _graph(
    capture: TapeCapture, program: Program, entry: CompiledBackward, leaves: Any, saved: Any, numbers: Any
) -> list[Any]:
    """Write the operations of the backward graph; returns what stands for its outputs."""
    from .functions import paste

    rows = iter(saved), iter(numbers)
    values: dict[Any, Any] = {row.name: next(rows[0] if row.is_tensor else rows[1]) for row in program.plan.saved}
    values |= zip(_own_sizes(entry), rows[1], strict=False)
    args = [leaves[key] if kind == "tangent" else values[key] for kind, key in entry.inputs]
    return paste(capture, entry.graph if isinstance(entry.graph, torch.fx.GraphModule) else entry.graph.module, args)


def _entry(program: Program, ctx: Any, tangents: Sequence[Step | None]) -> CompiledBackward | None:
    """The backward for tangents like the results, traced now if there is none yet."""
    plan, backwards, env = program.plan, program.backwards, _env(ctx)
    if backwards is None or all(t is None for t in tangents):
        return None
    values = [plan.values[k] for k in plan.differentiable]
    if not all(_is_known(v, env) for v in values):
        return _for_any_size(backwards, tangents, env)
    specs = [None if t is None else contiguous(concrete(v, env)) for v, t in zip(values, tangents, strict=True)]
    try:
        with _torch.no_modes(), torch.no_grad():  # a capture with create_graph has gradients on
            entry = backwards.find(specs, False, env)
    except SubclassTraceError:  # it says why when it is called
        return None
    return entry if _may_be_pasted(entry) else None


def _may_be_pasted(entry: CompiledBackward) -> bool:
    """A graph that calls user code runs for its own backward alone: never on zeros, nor with another back end."""
    return entry.graph is not None


def _is_known(spec: Spec, env: Env) -> bool:
    """Are all sizes of a value computed from those of the call? Some depend on values inside tensors."""
    return all(known_value(n, env) is not None for n in sizes_in(spec))


def _for_any_size(backwards: Backwards, tangents: Sequence[Step | None], env: Env) -> CompiledBackward | None:
    """The backward that was made with the forward, where the tangents alone can tell sizes: dense ones that all arrive."""
    entry = backwards.compiled[0] if backwards.compiled else None
    if entry is None or not _may_be_pasted(entry) or entry.create_graph or not entry.holds(env):
        return None
    arrive = all(known is not None and t is not None for known, t in zip(entry.tangents, tangents, strict=True))
    return entry if arrive and _are_dense(entry.tangents) and not any(map(_is_uncertain, tangents)) else None


def _env(ctx: Any) -> Env:
    return getattr(ctx, "env", None) or {}


def _numbers(ctx: Any) -> list[Any]:
    """Saved sizes."""
    return [n for n in getattr(ctx, "numbers", None) or () if n is not None]


def _own_sizes(entry: CompiledBackward) -> list[Any]:
    """Size symbols that the backward takes and nobody saved."""
    return [key for kind, key in entry.inputs if kind == "size"]


def _is_settled(entry: CompiledBackward, ctx: Any) -> bool:
    """Does it serve each run: are tangents dense, sizes numbers, and is nothing left for a run to compare?"""
    if _numbers(ctx) or _own_sizes(entry) or entry.conditions or entry.guards is not None:
        return False
    if not _are_dense(entry.tangents):
        return False
    return all(_is_known(s, {}) for s in (*entry.tangents, *entry.grads) if s is not None)


def _are_dense(specs: Sequence[Spec | None]) -> bool:
    return all(s is None or isinstance(s, LeafSpec) for s in specs)


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


# ---------------------------------------------------------------------------------------------- around the graph
def _between_calls(
    capture: TapeCapture,
    program: Program,
    entry: CompiledBackward,
    ctx: Any,
    ctx_step: Step,
    saved: list[Step],
    grads: list[Step | None],
    count: int,
) -> list[Step | None]:
    plain = [None if s.kind == "unpack" else s for s in saved]
    hooked = {k: s for k, s in enumerate(saved) if s.kind == "unpack"}
    packed = [(k, *s.args) for k, s in hooked.items()]
    kept, numbers = ctx.saved or None, _numbers(ctx)
    begin = Begin(program, entry, kept is not None)
    args = (ctx_step, plain, packed, count, *grads)
    meta = {"deferred": list(hooked.values())}  # by steps that know what `Begin` has unpacked
    step = capture.write("backward", begin, args, note="region_tangents", meta=meta)
    counts = (1, begin.leaves, len(numbers) + len(_own_sizes(entry)), 0 if kept is None else len(kept))
    parts = [capture.part(step, k) for k in range(sum(counts))]
    (found,), leaves, sizes, activations = (parts[sum(counts[:k]) : sum(counts[: k + 1])] for k in range(len(counts)))
    for size in sizes:
        size.note = "size"
    saved = [
        capture.write("unpack", unpack_once, (*s.args, found, k)) if k in hooked else s for k, s in enumerate(saved)
    ]
    flat = _graph(capture, program, entry, leaves, saved if kept is None else activations, sizes)
    end = capture.write("backward", End(entry), (found, flat), note="region_gradients")
    leading = count - len(entry.grads)
    return [None] * leading + [None if g is None else capture.part(end, k) for k, g in enumerate(entry.grads)]


@dataclass(frozen=True, eq=False)
class Found:
    """What `Begin` found: the values of symbols.

    When the tangents are of another kind, also the gradients, and saved tensors that were unpacked for them.
    ``tangents``: where a gradient is one of them.
    """

    env: Env
    grads: tuple[Any, ...] | None = None
    unpacked: dict[int, Any] = field(default_factory=dict)
    tangents: Sequence[Any] = ()


def unpack_once(hook: Any, data: Any, found: Found, place: int) -> Any:
    """A saved tensor of a region, next to its use; or what `Begin` has unpacked already: each hook runs once."""
    return found.unpacked.pop(place) if place in found.unpacked else operations.run_unpack(hook, data)


class Begin:
    """Tangents to dense leaves; gives [`Found`, *leaves, *sizes, *activations that the node keeps]."""

    __name__ = "region_tangents"

    def __init__(self, program: Program, entry: CompiledBackward, kept: bool) -> None:
        self.plan, self.entry, self.kept = program.plan, entry, kept
        self.leaves = sum(leaf_count(t) for t in entry.tangents if t is not None)

    def __call__(self, ctx: Any, saved: Any, packed: Any, count: int, *grads: Any) -> list[Any]:
        """``saved``, ``packed`` and ``count`` as in `operations.run_backward`."""
        entry, env = self.entry, _env(ctx)
        tangents = [grads[k] for k in self.plan.differentiable] if any(entry.passed) else ()
        rows = [None if grads[k] is None else flatten(grads[k]) for k in self.plan.differentiable]
        arrived = [
            (t, grads[k])
            for k, t in zip(self.plan.differentiable, entry.tangents, strict=True)
            if t is not None and grads[k] is not None
        ]
        env = with_unbacked([t for t, _ in arrived], [g.shape for _, g in arrived], env)
        numbers = [*_numbers(ctx), *(env[symbol] for symbol in _own_sizes(entry))]
        wanted = [s for t in entry.tangents if t is not None for s in spec_leaves(concrete(t, env))]
        kept = take_kept(ctx) if self.kept else None
        if entry.serves([None if r is None else r[1] for r in rows], False, env):
            given = [leaf for r in rows if r is not None for leaf in r[0]]
            leaves = [fit_strides(t, s.stride) for t, s in zip(given, wanted, strict=True)]
            if not self.kept:
                check_watched(ctx)
            return [Found(env, tangents=tangents), *leaves, *numbers, *(kept or ())]
        if self.kept:
            ctx.saved = [*(kept or ())]  # its reader uses the list up
        unpacked = {place: operations.run_unpack(hook, data) for place, hook, data in packed}
        values = [unpacked.get(k, t) for k, t in enumerate(saved)]
        found = operations.run_backward(ctx, values, (), count, False, *grads)
        leaves = [torch.zeros(s.size, dtype=s.dtype, device=s.device) for s in wanted]
        return [Found(env, tuple(found)[count - len(entry.grads) :], unpacked), *leaves, *numbers, *(kept or ())]


class End:
    """Dense gradients to one for each argument of the region."""

    __name__ = "region_gradients"

    def __init__(self, entry: CompiledBackward) -> None:
        self.entry = entry

    def __call__(self, found: Found, flat: list[Any]) -> Sequence[Any]:
        """``flat``: the outputs of the pasted graph."""
        if found.grads is not None:
            return found.grads
        leaves, sizes = iter(flat), evaluator(found.env)
        made = [None if g is None else rebuild(g, leaves, sizes) for g in self.entry.grads]
        return self.entry.pass_on(made, found.tangents)


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
    if ctx.saved is None:
        return list(_door.saved_values(ctx))  # raises what a second backward through a freed graph raises
    if tuple([t._version for t in ctx.saved]) != ctx.versions:
        raise written_since(ctx)
    check_watched(ctx)
    kept = list(ctx.saved)
    release(ctx)
    return kept
