"""From a capture to a program: partition, compile the graphs, make the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch.fx as fx

from .. import torch_api, verify
from ..backends import Backend, Compiled, Compiler, compile_with
from ..backends.eager import compile_eager, graph_code
from ..capture.capture import Captured
from ..capture.graphs import output_args
from ..capture.tape import Tape, TracedBackward
from ..errors import NeedsEager, SideEffectError, SubclassTraceError
from ..partition.half import Half
from ..partition.interface import Partitioner, partition
from ..partition.min_cut import MinCut
from ..partition.saved import saved_table
from ..plan import Plan, ValueOutput
from ..stages import stage
from ..state.side_effects import Recipes
from ..subclass.spec import Spec, WrapperSpec, leaf_spans
from .backward import Backwards, Circumstances, CompiledBackward, OnFirstUse, check_of
from .by_autograd import SMALL, captured_for_autograd, leaves_same_history
from .planning import make_plan, number_symbols, with_conditions
from .program import Program


@dataclass(frozen=True, eq=False)
class Graphs:
    """The graphs of a specialization, as graph modules that are made on demand.

    ``joint`` and ``backward`` are None when there is no backward.
    """

    joint: fx.GraphModule | None
    first: Half
    second: Half | None

    @property
    def forward(self) -> fx.GraphModule:
        """The forward."""
        return self.first.module

    @property
    def backward(self) -> fx.GraphModule | None:
        """The backward."""
        return None if self.second is None else self.second.module


def build_program(
    captured: Captured, recipes: Recipes, backend: Backend, partitioner: Partitioner, keep_joint: bool = False
) -> tuple[Program, Graphs]:
    """Partition and compile a capture.

    Args:
        recipes: see `make_plan`.
        keep_joint: keep the joint graph (a copy of it, where the partitioner consumes it).
    """
    if backend.backward is compile_eager and partitioner == MinCut() and not keep_joint:
        if (made := _by_autograd(captured, recipes)) is not None:
            return made
    nodes = tuple(captured.session.recorder.graph.nodes)
    found = None if captured.tape is None else _first_backward(captured.tape)
    if captured.tape is None or found is None:
        return _forward_alone(captured, recipes, backend, nodes)
    guess, traced = found
    if verify.ENABLED:
        verify.verify_joint(traced.joint, traced.num_forward)
    ours = isinstance(partitioner, MinCut)
    kept = (traced.joint if ours else copied_module(traced.joint)) if keep_joint else None
    parts = partition(
        traced,
        partitioner=partitioner,
        serve=captured.served(traced.joint),
        written=written_inputs(captured),
        static=[captured.inputs.leaf_primals[k] for i in captured.inputs.rows if i.static for k in i.leaves],
        copied=_copied(captured, traced.joint),
        small=SMALL if backend.backward is compile_eager else 0,
    )
    saved = saved_table(parts, _copied(captured, traced.joint))
    if verify.ENABLED:
        visible = traced.num_forward - traced.draws
        verify.verify_partition(parts, visible, traced.tangents, written_inputs(captured))
    plan = make_plan(captured, recipes, parts.first, saved)  # back ends may rewrite what they get
    if verify.ENABLED:
        verify.verify_plan(parts.forward, plan)
    call = compile_half(backend, backend.forward, parts.first)
    compile_backward = backward_compiler(backend)
    second = parts.second
    compiled = OnFirstUse(lambda: compile_half(backend, backend.backward, second, is_backward=True))
    number = {name: k for k, name in enumerate(traced.tangents)}
    inputs = [("tangent", number[n]) if n in number else ("saved", n) for n in parts.backward_inputs]
    when = Circumstances(state=check_of(traced), dtensor=captured.session.dtensor_modes())
    first = CompiledBackward.of(traced, guess, inputs, compiled, when, None, second)
    plan = with_conditions(plan, captured)
    known = number_symbols(plan.inputs.symbols)
    names = frozenset(parts.saved)
    backwards = Backwards(captured.tape, names, compile_backward, _output_paths(plan), known)
    backwards.takes_batches &= backend.backward is compile_eager
    backwards.forward_nodes = nodes
    backwards.add(first)
    by_eager = backend.forward is compile_eager
    return Program(plan, call, backwards, by_eager), Graphs(kept, parts.first, parts.second)


def _by_autograd(captured: Captured, recipes: Recipes) -> tuple[Program, Graphs] | None:
    """See `by_autograd`."""
    if (alone := captured_for_autograd(captured)) is None:
        return None
    half = Half.of_module(alone.forward_graph(in_place=False)[0])
    plan = make_plan(alone, recipes, half, ())
    if plan.results.detach_values:
        return None
    if verify.ENABLED:
        verify.verify_plan(half.module, plan)
    call = graph_code.compile_half(half, name="forward", by_autograd=True).function
    if not leaves_same_history(captured, half, call):
        return None
    plan = replace(plan, gradients=replace(plan.gradients, by_autograd=True))
    return Program(with_conditions(plan, captured), call, None), Graphs(None, half, None)


def _forward_alone(
    captured: Captured, recipes: Recipes, backend: Backend, nodes: tuple[fx.Node, ...]
) -> tuple[Program, Graphs]:
    """Nothing is saved. Of a whole training step, a caller's backward raises what it does in eager."""
    graph, in_program = captured.forward_graph(in_place=backend.inference is compile_eager)
    half = Half.of_module(graph)
    plan, backwards = make_plan(captured, recipes, half, (), in_program), None
    if verify.ENABLED:
        verify.verify_plan(half.module, plan, in_place=in_program)
    call = compile_half(backend, backend.inference, half)
    plan = with_conditions(plan, captured)
    if captured.tape is not None:
        rest = (backward_compiler(backend), _output_paths(plan), number_symbols(plan.inputs.symbols))
        backwards = Backwards(captured.tape, frozenset(), *rest)
        backwards.forward_nodes = nodes
    return Program(plan, call, backwards, backend.inference is compile_eager), Graphs(None, half, None)


@stage("backward trace")
def _first_backward(tape: Tape) -> tuple[list[Spec], TracedBackward] | None:
    """The backward for the tangents that the results suggest; None where there is none at all.

    Raises:
        NeedsEager: it cannot be traced. Whatever the reason is, eager would raise it in the backward, if there ever is one.
    """
    try:
        guess = tape.guess()
        return guess, tape.trace(guess)
    except (NeedsEager, SideEffectError):
        raise
    except Exception as error:
        if _has_no_backward(tape):
            return None
        raise NeedsEager(
            "the backward of the region cannot be traced",
            got=f"{type(error).__name__}: {error}",
            fix="call the region under torch.no_grad(), or without inputs that require grad",
        ) from error


def _has_no_backward(tape: Tape) -> bool:
    """Would eager raise in the backward of each result as well? That one is spent, surely (of a whole training step all are);
    what torch's or a class's code says of anything but values inside tensors, where the tangents are dense: nothing hangs on
    the guess of their classes then.
    """
    for k, spec in enumerate(guess := tape.guess()):
        try:
            tape.trace([spec if n == k else None for n in range(len(guess))])
        except (SubclassTraceError, *torch_api.DATA_DEPENDENT_ERRORS):
            return False
        except Exception as error:
            if torch_api.says_spent(error) or not isinstance(spec, WrapperSpec):
                continue
        return False
    return True


def copied_module(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return torch_api.graph_module(module, graph)


# ---------------------------------------------------------------------------------------------- programs
@stage("back end")
def compile_half(backend: Backend, compiler: Compiler, half: Half, is_backward: bool = False) -> Compiled:
    """Our own back end reads the list of nodes; any other gets a graph module."""
    name = "backward" if is_backward else "forward"
    if compiler is compile_eager and half.is_plain:
        return graph_code.compile_half(half, name=name).function
    return compile_with(compiler, half.module, half.examples, is_backward=is_backward, name=backend.name)


def backward_compiler(backend: Backend) -> Callable[[fx.GraphModule], Compiled]:
    """For backwards that are traced later."""
    return lambda graph: compile_half(backend, backend.backward, Half.of_module(graph), is_backward=True)


# ---------------------------------------------------------------------------------------------- what is saved
def written_inputs(captured: Captured) -> list[str]:
    """Graph inputs that the region writes."""
    leaves = {captured.inputs.rows[m.input].leaves[k] for m in captured.mutations.rows for k in m.leaves}
    numbers = {captured.inputs.leaf_primals[k] for k in leaves}
    return [f"primals_{n + 1}" for n in sorted(numbers)]


def _copied(captured: Captured, joint: fx.GraphModule) -> set[str]:
    """Results that are new contents of inputs and nothing else: once they are written back, nobody holds them."""
    spans, outputs = leaf_spans(captured.results.values), output_args(joint.graph)
    copied = {m.value for m in captured.mutations.rows}
    copied -= {o.value for o in captured.results.outputs if isinstance(o, ValueOutput)}
    return {n.name for v in copied for n in outputs[spans[v]] if isinstance(n, fx.Node)}


def _output_paths(plan: Plan) -> list[str]:
    mutated = {m.value: plan.inputs.rows[m.input].path for m in plan.mutations.rows}
    results = {o.value: k for k, o in enumerate(plan.results.outputs) if isinstance(o, ValueOutput)}
    return [str(mutated.get(k, f"result[{results.get(k, k)}]")) for k in plan.gradients.differentiable]
