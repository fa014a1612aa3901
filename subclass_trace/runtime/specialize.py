"""From a capture to a program: partition, compile the graphs, make the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch.fx as fx

from .. import policy, verify
from ..backends import Backend, Compiled, Compiler, compile_with, runs_operations
from ..backends.eager import compile_eager, graph_code
from ..backends.own_kernels import names_of_pieces, with_own_kernels
from ..capture.capture import Captured
from ..capture.graphs import output_args, placeholders
from ..capture.tape import Tape, TracedBackward
from ..errors import OptionError, PassError, SideEffectError, SubclassTraceError, UnsupportedError
from ..partition.half import Half, Partitioned
from ..partition.interface import Partitioner, partition
from ..partition.min_cut import MinCut
from ..partition.saved import describe_halves, saved_table
from ..partition.whole import recompute_inside, runs_backward
from ..plan import Plan, SavedValue, ValueOutput
from ..plan.descriptors import Input
from ..stages import stage
from ..subclass.spec import Spec, WrapperSpec, leaf_spans
from ..torch_api.autograd import says_spent
from ..torch_api.fakes import DATA_DEPENDENT_ERRORS
from ..torch_api.graphs import graph_module
from ..torch_api.symbols import symbol_values
from ..torch_api.texts import text_of
from .backward import Backwards, Circumstances, CompiledBackward, OnFirstUse, check_of
from .by_autograd import left_to_autograd
from .planning import make_plan, number_symbols, with_conditions
from .program import Program


@dataclass(frozen=True, eq=False)
class Graphs:
    """The graphs of a specialization, as graph modules that are made on demand.

    ``joint`` and ``backward`` are None when there is no backward. ``by_autograd``: the eager back
    end leaves the backward to
    autograd, where no partitioner is asked for. ``own_kernels``: functions of ``torch.compile`` in
    it that run theirs.
    """

    joint: fx.GraphModule | None
    first: Half
    second: Half | None
    by_autograd: bool = False
    own_kernels: frozenset[str] = frozenset()

    @property
    def forward(self) -> fx.GraphModule:
        """The forward."""
        return self.first.module

    @property
    def backward(self) -> fx.GraphModule | None:
        """The backward."""
        return None if self.second is None else self.second.module


@dataclass(frozen=True, eq=False)
class _Cut:
    """A capture as what is compiled.

    Attributes:
        captured: what the plan is made of.
        first: the forward; ``compiler``: for it; ``call``: it is compiled already.
        saved: what it saves; ``in_program``: it writes to its inputs.
        backward: the first backward, for the tangents ``guess``, which is ``second`` with
            ``inputs``.
        joint: kept if asked for.
    """

    captured: Captured
    first: Half
    compiler: Compiler
    saved: tuple[SavedValue, ...] = ()
    call: Compiled | None = None
    in_program: bool = False
    backward: TracedBackward | None = None
    guess: Sequence[Spec] = ()
    second: Half | None = None
    inputs: tuple[str, ...] = ()
    joint: fx.GraphModule | None = None


def build_program(
    captured: Captured,
    backend: Backend,
    partitioner: Partitioner | None,
    *,
    keep_joint: bool = False,
    split: Callable[..., Partitioned] = partition,
) -> tuple[Program, Graphs]:
    """Cut a capture into what is compiled, compile it, and make the plan.

    Args:
        partitioner: None: none is asked for.
        keep_joint: keep the joint graph (a copy of it, where the partitioner consumes it).
        split: `partition`, or what knows what it gives.
    """
    nodes = tuple(captured.session.recorder.graph.nodes)
    by_eager = backend.backward is compile_eager
    left = left_to_autograd(captured) if partitioner is None and (by_eager or keep_joint) else None
    if left is not None and not keep_joint:
        cut = _Cut(*left[:2], backend.inference, call=left[2])
    else:
        chosen = MinCut() if partitioner is None else partitioner
        cut = _cut(captured, backend, chosen, keep_joint, split)
    plan = make_plan(
        cut.captured,
        cut.first,
        cut.saved,
        in_program=cut.in_program,
        by_autograd=cut.call is not None,
    )  # back ends may rewrite what they get
    if verify.ENABLED:
        verify.verify_plan(cut.first.module, plan, in_place=cut.in_program)
    own = cut.compiler is compile_eager and cut.call is None and cut.second is None
    call = cut.call or compile_half(
        backend, cut.compiler, with_own_kernels(cut.first) if own else cut.first
    )
    plan = with_conditions(plan, captured)
    backwards = _backwards(cut, plan, backend)
    if backwards is not None:
        backwards.forward_nodes = nodes
    names = names_of_pieces(cut.first) if own else frozenset[str]()
    graphs = Graphs(cut.joint, cut.first, cut.second, left is not None, names)
    return Program(plan, call, backwards, cut.compiler is compile_eager), graphs


def _cut(
    captured: Captured,
    backend: Backend,
    partitioner: Partitioner,
    keep_joint: bool,
    split: Callable[..., Partitioned],
) -> _Cut:
    """The forward alone, where there is no backward at all (of a whole training step, a caller's
    raises what it does in eager); else the two halves of the joint graph."""
    found = None if captured.tape is None else _first_backward(captured.tape)
    if found is None:
        graph, in_program = captured.forward_graph(in_place=runs_operations(backend.inference))
        if runs_backward(graph.graph):
            static = {f"primals_{k + 1}" for k in _static(captured)}
            recompute_inside(
                graph,
                _min_cut(partitioner),
                static,
                policy.POLICY.small if runs_operations(backend.inference) else 0,
            )
        return _Cut(captured, Half.of_module(graph), backend.inference, in_program=in_program)
    guess, traced = found
    if verify.ENABLED:
        verify.verify_joint(traced.joint, traced.num_forward)
    joint = traced.joint
    kept = (
        (joint if isinstance(partitioner, MinCut) else copied_module(joint)) if keep_joint else None
    )
    written, copied = written_inputs(captured), _copied(captured, joint)
    inputs, outputs = (
        {n.name: n.meta["descriptor"] for n in placeholders(joint.graph)},
        joint.meta["descriptors"],
    )
    parts = split(
        traced,
        partitioner=partitioner,
        serve=captured.served(joint),
        written=written,
        static=_static(captured),
        copied=copied,
        small=policy.POLICY.small if runs_operations(backend.backward) else 0,
    )
    saved = saved_table(parts, captured.described, copied)
    visible = traced.num_forward - traced.draws
    describe_halves(parts, saved, inputs, outputs[:visible], outputs[traced.num_forward :])
    if verify.ENABLED:
        verify.verify_partition(parts, visible, traced.tangents, written)
    rest = traced, guess, parts.second, parts.backward_inputs, kept
    return _Cut(captured, parts.first, backend.forward, saved, None, False, *rest)


def _static(captured: Captured) -> list[int]:
    """The graph inputs that are alive between calls."""
    return [k for k, d in enumerate(captured.described) if isinstance(d, Input) and d.is_static]


def _min_cut(partitioner: Partitioner) -> MinCut:
    """The partitioner, for a graph that cannot be cut in two.

    Raises:
        OptionError: it is none of ours.
    """
    if isinstance(partitioner, MinCut):
        return partitioner
    raise OptionError(
        "the region runs its own backward, so there is one graph, which this partitioner cannot "
        "cut",
        path="partitioner",
        expected="'min_cut', 'default' or a MinCut, which choose what a backward inside of a "
        "region computes again",
        got=text_of(partitioner),
        fix="leave it out, or call .backward() outside of the region",
    )


def _backwards(cut: _Cut, plan: Plan, backend: Backend) -> Backwards | None:
    """The backwards of a program; the first is compiled when it runs."""
    captured, traced, second = cut.captured, cut.backward, cut.second
    if captured.tape is None:
        return None
    saved = {row.name: row for row in cut.saved}
    known = number_symbols(plan.inputs.symbols)
    backwards = Backwards(
        captured.tape, saved, backward_compiler(backend), _output_paths(plan), known
    )
    if traced is None or second is None:
        return backwards
    backwards.takes_batches &= backend.backward is compile_eager
    number = {name: k for k, name in enumerate(traced.tangents)}
    inputs = [("tangent", number[n]) if n in number else ("saved", n) for n in cut.inputs]
    when = Circumstances(state=check_of(traced), dtensor=captured.session.dtensor_modes())
    call = OnFirstUse(lambda: compile_half(backend, backend.backward, second, is_backward=True))
    backwards.add(CompiledBackward.of(traced, cut.guess, inputs, call, when, None, second))
    return backwards


_OF_BACKWARDS = frozenset({"sparse-gradient", "backward-effect"})
"""Refusals that speak of a backward by themselves."""


@stage("backward trace")
def _first_backward(tape: Tape) -> tuple[list[Spec], TracedBackward] | None:
    """The backward for the tangents that the results suggest; None where there is none at all.

    Raises:
        UnsupportedError: it cannot be traced. Whatever the reason is, eager would raise it in the
            backward, if there ever is one.
    """
    try:
        guess = tape.guess()
        return guess, tape.trace(guess)
    except (SideEffectError, PassError):
        raise
    except Exception as error:
        if isinstance(error, UnsupportedError) and error.code in _OF_BACKWARDS:
            raise
        if _has_no_backward(tape):
            return None
        told = error.what if isinstance(error, UnsupportedError) else type(error).__name__
        raise UnsupportedError(
            f"the backward of the region cannot be traced: {told}",
            code="backward",
            got=str(error),
            fix="call the region under torch.no_grad(), or without inputs that require grad",
        ) from error


def _has_no_backward(tape: Tape) -> bool:
    """Would eager raise in the backward of each result as well? That one is spent, surely (of a
    whole training step all are); what torch's or a class's code says of anything but values inside
    tensors, where the tangents are dense and all sizes are numbers: nothing hangs on the guess of
    their classes then, and no kernel can lack symbolic sizes.
    """
    is_exact = not symbol_values(tape.session.shape_env)
    for k, spec in enumerate(guess := tape.guess()):
        try:
            tape.trace([spec if n == k else None for n in range(len(guess))])
        except (SubclassTraceError, *DATA_DEPENDENT_ERRORS):
            return False
        except Exception as error:
            if says_spent(error) or (is_exact and not isinstance(spec, WrapperSpec)):
                continue
        return False
    return True


def copied_module(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return graph_module(module, graph)


# ---- programs
@stage("back end")
def compile_half(
    backend: Backend, compiler: Compiler, half: Half, is_backward: bool = False
) -> Compiled:
    """Our own back end reads the list of nodes; any other gets a graph module. Of a frozen region
    it gets what is left of it."""
    if backend.freezer is not None and not is_backward:
        rest = replace(backend, freezer=None)
        compiled: Compiled = backend.freezer.compile(
            half, lambda left: compile_half(rest, compiler, left)
        )
        return compiled
    name = "backward" if is_backward else "forward"
    if compiler is compile_eager and half.is_plain:
        return graph_code.compile_half(half, name=name).function
    return compile_with(
        compiler, half.module, half.examples, is_backward=is_backward, name=backend.name
    )


def backward_compiler(backend: Backend) -> Callable[[fx.GraphModule], Compiled]:
    """For backwards that are traced later."""
    return lambda graph: compile_half(
        backend, backend.backward, Half.of_module(graph), is_backward=True
    )


# ---- what is saved
def written_inputs(captured: Captured) -> list[str]:
    """Graph inputs that the region writes."""
    leaves = {
        captured.inputs.rows[m.input].leaves[k] for m in captured.mutations.rows for k in m.leaves
    }
    numbers = {captured.inputs.leaf_primals[k] for k in leaves}
    return [f"primals_{n + 1}" for n in sorted(numbers)]


def _copied(captured: Captured, joint: fx.GraphModule) -> set[str]:
    """Results that are new contents of inputs and nothing else: once they are written back, nobody
    holds them."""
    spans, outputs = leaf_spans(captured.results.values), output_args(joint.graph)
    copied = {m.value for m in captured.mutations.rows}
    copied -= {o.value for o in captured.results.outputs if isinstance(o, ValueOutput)}
    return {n.name for v in copied for n in outputs[spans[v]] if isinstance(n, fx.Node)}


def _output_paths(plan: Plan) -> list[str]:
    mutated = {m.value: plan.inputs.rows[m.input].path for m in plan.mutations.rows}
    results = {o.value: k for k, o in enumerate(plan.results.outputs) if isinstance(o, ValueOutput)}
    return [
        str(mutated.get(k, f"result[{results.get(k, k)}]")) for k in plan.gradients.differentiable
    ]
