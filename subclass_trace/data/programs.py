"""The parts of a description -> a program with its compiled graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends import Backend
from ..backends.eager import compile_eager, graph_code
from ..capture.graphs import primal_number
from ..capture.tape import Tape
from ..plan import Plan
from ..plan.descriptors import Size, gradients_of, tangents_of
from ..runtime.backward import Backwards, Circumstances, CompiledBackward, OnFirstUse
from ..runtime.program import Program
from ..runtime.specialize import Graphs, backward_compiler, compile_half
from ..runtime.state_code import state_holds
from .describe import BackwardParts, Parts


def program_of(
    parts: Parts, backend: Backend, again: Callable[[Any], Tape]
) -> tuple[Program, Graphs]:
    """A program whose graphs a back end compiles: the forward now, a backward when it first runs.

    Args:
        again: traces a call once more, for a backward of other tangents than those that are
            described.
    """
    plan, half, known = parts.plan, parts.first, parts.backwards
    second = known.compiled[0].half if known is not None and known.compiled else None
    taken = [plan.inputs.described[primal_number(n)] for n in half.inputs]
    half.describe(taken, [*plan.results.leaves_described, *plan.gradients.saved])
    if plan.gradients.by_autograd:
        call: Any = graph_code.compile_half(half, name="forward", by_autograd=True).function
    else:
        call = compile_half(backend, backend.inference if parts.alone else backend.forward, half)
    backwards = None
    if known is not None:
        saved = {row.name: row for row in plan.gradients.saved}
        rest = (backward_compiler(backend), known.output_paths, known.symbols, again)
        backwards = Backwards(None, saved, *rest)
        backwards.inputs, backwards.takes_batches, backwards.trace = (
            known.inputs,
            known.takes_batches,
            known.trace,
        )
        for backward in known.compiled:
            _describe_backward(backward, plan)
            backwards.add(_compiled(backward, backend))
    by_eager = backend.forward is compile_eager
    return Program(plan, call, backwards, by_eager, parts.templates), Graphs(None, half, second)


def _describe_backward(b: BackwardParts, plan: Plan) -> None:
    values = [plan.results.described[k] for k in plan.gradients.differentiable]
    inputs = [plan.inputs.descriptor(k) for k in plan.gradients.differentiated]
    saved: dict[Any, Any] = {row.name: row for row in plan.gradients.saved}
    saved |= {f"primals_{k + 1}": d for k, d in enumerate(plan.inputs.described)}
    tangents = tangents_of(values, b.tangents)
    known: dict[str, Any] = {"saved": saved, "tangent": tangents}
    taken = [Size(str(key)) if kind == "size" else known[kind][key] for kind, key in b.inputs]
    b.half.describe(taken, gradients_of(inputs, b.grads))


def _compiled(b: BackwardParts, backend: Backend) -> CompiledBackward:
    state = None if b.reads is None else state_holds(b.reads)
    when = Circumstances(False, b.conditions, state, b.autocast, b.dtensor)
    call = OnFirstUse(lambda: compile_half(backend, backend.backward, b.half, is_backward=True))
    return CompiledBackward(
        b.tangents, b.tangent_names, b.inputs, call, b.grads, b.passed, when, None, b.reads, b.half
    )
