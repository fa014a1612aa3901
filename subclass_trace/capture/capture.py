"""Capture of a region: the function runs once, and everything the run time needs is read off the live tensors.

Steps, each from what the one before gives: make the inputs and run the function (`_run`); read what it changed
(`read_mutations`) and what its results are (`OutputClassifier`); freeze the forward outputs (`_freeze`); keep the fake autograd
graph as a `Tape`, from which joint graphs are traced. See docs/architecture.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.fx as fx

from .. import torch_api
from ..errors import NeedsEager, UnsupportedError
from ..plan import MutationPlan, OutputPlan, PlanMutations, SharedLeaf
from ..subclass.flatten import flatten, leaves_of, tensors_inside
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from ..subclass.spec import Spec, WrapperSpec, sizes_in
from .aliasing import alias_groups
from .checkpoint import checkpoint_as_tags
from .diagnostics import no_dlpack, typed_errors
from .functions import CapturedFunctions
from .graphs import finish_joint, read_by_backward
from .inputs import Inputs, TracedInput
from .lift import StandIns
from .metadata import MetadataReads
from .mutation import read_mutations, state_of
from .outputs import OutputClassifier, check_escapes, refuse_handed_on, shared_leaves
from .recorder import Recorder
from .session import Session
from .tape import Tape, connected, leaves_behind, saved_by_autograd, saves_out_of_sight

Tensor = torch.Tensor


class Ran(NamedTuple):
    """What a run gave: flat outputs (tensors and symbols), and what stands for each flat argument."""

    outputs: Sequence[Any]
    handed: Sequence[Any]


#: makes inputs and runs the function on them, inside of all modes
RunFunction = Callable[[Inputs], Ran]


@dataclass(frozen=True, eq=False)
class CapturedInputs:
    """The inputs of a trace.

    Attributes:
        rows: with their gradient edges.
        leaf_primals: graph-input number of each dense leaf; ``originals``: its fake; ``inference_leaves``: see `Inputs`.
        size_primals: graph-input number -> SymInt, for inputs that are sizes.
    """

    rows: tuple[TracedInput, ...]
    leaf_primals: tuple[int, ...]
    inference_leaves: frozenset[int]
    originals: tuple[Tensor, ...]
    size_primals: Mapping[int, Any]


@dataclass(frozen=True, eq=False)
class CapturedResults:
    """What a trace gave.

    Attributes:
        values: specs of the live tensors that the forward graph returns.
        views: numbers of the values that are views when the region runs eagerly.
        outputs, shared, unbacked: see `plan`; ``size_outputs``: the symbolic numbers that the forward graph returns.
    """

    values: tuple[Spec, ...]
    views: frozenset[int]
    outputs: tuple[OutputPlan, ...]
    shared: Mapping[int, SharedLeaf]
    size_outputs: tuple[Any, ...]
    unbacked: tuple[tuple[Any, int], ...]


@dataclass(frozen=True, eq=False)
class CapturedGradients:
    """What autograd knows after a trace.

    Attributes:
        differentiable: numbers of the values that get tangents.
        differentiated: numbers of the inputs that get gradients.
        saved: names of graph nodes that eager autograd would keep.
        saves_out_of_sight: it keeps others as well, which cannot be asked for.
    """

    differentiable: tuple[int, ...]
    differentiated: tuple[int, ...]
    saved: frozenset[str]
    saves_out_of_sight: bool


@dataclass(frozen=True, eq=False)
class Captured:
    """What capture knows about a region. Sizes in specs may be SymInts of ``session.shape_env``.

    Attributes:
        mutations: see `plan`.
        forward_nodes: what the forward graph returns; ``boundary``: its last node.
        tape: the retained autograd graph; None when nothing is differentiable.
        reads: what the region read of the inputs beside their values.
    """

    session: Session
    inputs: CapturedInputs
    results: CapturedResults
    mutations: PlanMutations
    gradients: CapturedGradients
    forward_nodes: tuple[Any, ...]
    boundary: fx.Node | None
    tape: Tape | None
    reads: MetadataReads

    def kept(self, graph: fx.GraphModule) -> frozenset[str]:
        """What eager autograd would keep, by its name in a finished graph, as far as its nodes tell."""
        names = graph.meta["names"]
        return frozenset(names[n] for n in self.gradients.saved if n in names)

    def served(self, graph: fx.GraphModule) -> frozenset[str]:
        """What eager autograd would keep, and what nodes may keep that do not tell."""
        known = self.kept(graph)
        return known | read_by_backward(graph.graph) if self.gradients.saves_out_of_sight else known

    def forward_graph(self, also: Sequence[str] = ()) -> fx.GraphModule:
        """The functional forward graph, for a region without a backward; nodes named in ``also`` are kept in it."""
        by_name = {n.name: n for n in self.session.recorder.graph.nodes} if also else {}
        kept = [by_name[n] for n in also if n in by_name]
        return finish_joint(self.session.recorder, self.forward_nodes, [], self.boundary, kept)

    def graph_as_recorded(self) -> fx.GraphModule | None:
        """The forward graph with its writes in place; None where there are none, or where one changes more than data.

        It is right for a back end that runs operation by operation: what it runs is what eager mode runs.
        """
        recorder = self.session.recorder
        if not recorder.mutable or any(m.differentiable for m in self.mutations.rows):
            return None
        return finish_joint(recorder, self.forward_nodes, [], self.boundary, functional=False)


def capture(run: RunFunction, session: Session) -> Captured:
    """Capture one region.

    Args:
        run: makes the inputs, and runs the function on them.

    Raises:
        SubclassTraceError: a refusal, with the path or line it is about. The caller's tensors are unchanged.
    """
    return _Capture(session).capture(run)


@dataclass(frozen=True, eq=False)
class _Results:
    """What the results are, and which of their leaves are tensors of the call."""

    outputs: list[OutputPlan]
    shared: Mapping[int, SharedLeaf]
    classifier: OutputClassifier
    contents: set[int]  # values that are new contents of inputs


@dataclass(frozen=True, eq=False)
class _Frozen:
    """The forward outputs as nodes of the graph."""

    flat: list[tuple[list[Tensor], Spec]]
    nodes: list[Any]
    boundary: fx.Node | None


class _Capture:
    """One capture: the values that it emits are counted as it goes."""

    def __init__(self, session: Session) -> None:
        self.session, self.recorder = session, session.recorder
        self.inputs = Inputs(session, state_of)
        self.reads = MetadataReads(self.inputs)
        self.stand_ins = StandIns(self.recorder, self.inputs)
        self.functions = CapturedFunctions(self.recorder, self.reads, self.stand_ins)
        self.gradients = self.functions.gradients
        self.values: list[Tensor] = []

    def capture(self, run: RunFunction) -> Captured:
        """See the module's docstring."""
        grad_mode = torch.is_grad_enabled()
        with self.session.modes():
            try:
                ran = self._run(run)
                self.recorder.write_assertions()
                for path, value in self._tensors(ran.outputs):
                    refuse_gradients_inside(path, value)
                changed = list(self.gradients.changed())
                gradients = tuple((number, len(ran.outputs) + k) for k, (number, _) in enumerate(changed))
                if torch.is_grad_enabled() != grad_mode:
                    torch.set_grad_enabled(grad_mode)
                    raise NeedsEager("the region leaves gradients on or off", fix="use torch.no_grad() as a context")
                self.recorder.sealed = True
                results = [self.stand_ins.known(o) for o in (*ran.outputs, *(g for _, g in changed))]
                mutations = read_mutations(self.inputs, self.recorder, self._emit)
                found = self._classify(results, ran.handed, mutations)
                frozen = self._freeze(found)
            finally:
                self.inputs.forget()
        return self._finish(mutations, found, frozen, gradients)

    def _tensors(self, outputs: Sequence[Any]) -> list[tuple[Path, Tensor]]:
        """The inputs and the results."""
        found = [(row.path, row.traced) for row in self.inputs.inputs]
        return found + [(Path("result").item(k), t) for k, t in enumerate(outputs) if isinstance(t, Tensor)]

    # ---------------------------------------------------------------- steps
    def _run(self, run: RunFunction) -> Ran:
        recorder, functions = self.recorder, self.functions
        recorder.start_at(sys._getframe())
        try:
            with (
                checkpoint_as_tags(recorder),
                typed_errors(recorder),
                no_dlpack(recorder),
                functions,
                torch_api.watched_engine(self.gradients.backward, self.gradients.check),
                torch_api.transformed_inputs(self.stand_ins.swapped),
            ):
                ran = run(self.inputs)
            return ran
        finally:
            recorder.start_at(None)  # a frame holds everything that its callers hold

    def _emit(self, t: Tensor) -> int:
        self.values.append(t)
        return len(self.values) - 1

    def _classify(self, results: Sequence[Any], handed: Sequence[Any], mutations: Sequence[MutationPlan]) -> _Results:
        inputs, contents = self.inputs, {m.value for m in mutations}
        classifier = OutputClassifier(inputs, handed, self.recorder, results, self._emit)
        outputs = [classifier.classify(o) for o in results]
        odd = [k for k, row in enumerate(inputs.inputs) if (t := row.real()) is not None and t.is_inference()]
        self.reads.depends_on("is_inference", odd)
        return _Results(outputs, shared_leaves(self.values, contents, inputs, self.recorder), classifier, contents)

    def _freeze(self, found: _Results) -> _Frozen:
        recorder = self.recorder
        refuse_handed_on(self.values, found.contents, self.inputs)
        flat = [flatten(t) for t in self.values]
        for k, (_, spec) in enumerate(flat):
            check_escapes(spec, Path("result").item(k))
            found.classifier.need(sizes_in(spec) if isinstance(spec, WrapperSpec) else ())
        nodes = [recorder.node_of(leaf) for leaves, _ in flat for leaf in leaves]
        nodes += [recorder.node_of(s) for s in found.classifier.sizes]
        return _Frozen(flat, nodes, next(iter(reversed(recorder.graph.nodes)), None))

    def _finish(
        self,
        mutations: Sequence[MutationPlan],
        found: _Results,
        frozen: _Frozen,
        gradients: tuple[tuple[int, int], ...],
    ) -> Captured:
        inputs, recorder = self.inputs, self.recorder
        made = [t for k, t in enumerate(self.values) if k not in found.contents]
        _check_mode(made, inputs.leaf_values)
        differentiable = self._differentiable(mutations, found.contents)
        live = [self.values[k] for k in differentiable]
        rows = connected(live, [(n, i.edge) for n, i in enumerate(inputs.inputs) if i.edge is not None])
        _refuse_overlapping(inputs, recorder)
        self._check_leaves(leaves_behind(live, [e for _, e in rows]))
        if live and not rows:
            raise UnsupportedError(
                "a result requires grad, and was computed of a leaf of the region's own making alone",
                expected="results whose gradients get to inputs",
                fix="detach the result",
            )
        tape, saved, out_of_sight = self._tape(live, rows, frozen)
        return Captured(
            session=self.session,
            inputs=CapturedInputs(
                rows=tuple(inputs.inputs),
                leaf_primals=tuple(inputs.leaf_primals),
                inference_leaves=frozenset(inputs.inference_leaves),
                originals=tuple(inputs.originals),
                size_primals=inputs.sizes,
            ),
            results=CapturedResults(
                values=tuple(spec for _, spec in frozen.flat),
                views=frozenset(k for k, t in enumerate(self.values) if t._is_view()),
                outputs=tuple(found.outputs),
                shared=found.shared,
                size_outputs=tuple(found.classifier.sizes),
                unbacked=tuple(found.classifier.unbacked.items()),
            ),
            mutations=PlanMutations(tuple(mutations), gradients),
            gradients=CapturedGradients(
                differentiable=tuple(differentiable) if tape else (),
                differentiated=tuple(n for n, _ in rows) if tape else (),
                saved=saved,
                saves_out_of_sight=out_of_sight,
            ),
            forward_nodes=tuple(frozen.nodes),
            boundary=frozen.boundary,
            tape=tape,
            reads=self.reads,
        )

    def _differentiable(self, mutations: Sequence[MutationPlan], mutated: Collection[int]) -> list[int]:
        """The values that have a history which a caller may go back through."""
        tracked = {m.value for m in mutations if m.differentiable}
        rows = enumerate(self.values)
        live = [k for k, t in rows if t.requires_grad and t.grad_fn is not None]
        return [k for k in live if k not in mutated or k in tracked]

    def _tape(
        self,
        live: Sequence[Tensor],
        rows: Sequence[tuple[int, Any]],
        frozen: _Frozen,
    ) -> tuple[Tape | None, frozenset[str], bool]:
        """The retained autograd graph; the names of nodes that eager autograd would keep, and whether there are more."""
        recorder, edges = self.recorder, tuple(e for _, e in rows)
        if not live or not edges:
            return None, frozenset(), False
        with self.session.modes():  # an output that its own node saves is unpacked by `detach`
            kept = saved_by_autograd(live, edges)
        served = {n: None for t in kept if recorder.knows(t) and isinstance(n := recorder.node_of(t), fx.Node)}
        traced = tuple(self.inputs.inputs[n].traced for n, _ in rows)
        paths = tuple(self.inputs.inputs[n].path for n, _ in rows)
        tape = Tape(self.session, tuple(live), edges, frozen.nodes, frozen.boundary, tuple(served), traced, paths)
        return tape, frozenset(n.name for n in served), saves_out_of_sight(live, edges)

    def _check_leaves(self, leaves: Sequence[Tensor]) -> None:
        """Refuse an input that some code took past the trace and differentiated: that gradient would be lost."""
        for leaf in leaves:
            if not any(map(torch_api.is_fake, leaves_of(leaf))):
                raise UnsupportedError(
                    "code inside the region takes a tensor of the caller's, which requires grad, by ways that cannot be traced",
                    expected="tensors that Python code of the region reads; or that require no grad, or under torch.no_grad()",
                    got=f"operations on a tensor of shape {tuple(leaf.shape)} itself, as under torch._C.DisableTorchFunction",
                    fix="pass the tensor as an argument, or move this part out of the region",
                )


def refuse_gradients_inside(path: Path, value: Tensor) -> None:
    """The wrapper of a call is built of tensors without a history.

    Raises:
        NeedsEager: an inner tensor requires grad: the constructor did not detach it.
    """
    if is_traceable(value) and not value.is_nested and any(t.requires_grad for _, t in tensors_inside(value)):
        raise NeedsEager(
            f"the region makes a {type(value).__qualname__} that keeps a tensor which requires grad inside",
            path=path,
            expected="a constructor that detaches what it gets",
            fix="detach it in the constructor, make the constructor an autograd.Function, or return the inner "
            "tensors and build the wrapper outside of the region",
        )


def _check_mode(values: Sequence[Tensor], known: Sequence[Tensor]) -> None:
    """Results are made in the caller's inference mode, or outside of it; but for leaves of inputs (``known``).

    Raises:
        NeedsEager: the region has entered or left that.
    """
    mode = torch.is_inference_mode_enabled()
    for value in values:
        if any(t.is_inference() != mode and all(t is not k for k in known) for t in (value, *leaves_of(value))):
            raise NeedsEager(
                "the region makes a result in another inference mode than the caller's",
                got=f"a tensor of shape {tuple(value.shape)}",
                fix="enter or leave inference mode around the region",
            )


def _refuse_overlapping(inputs: Inputs, recorder: Recorder) -> None:
    """Writes to one input that another one sees.

    Raises:
        NeedsEager: there are such.
    """
    originals = inputs.originals
    for members in alias_groups(originals) if recorder.mutable else ():
        if any(recorder.was_written(originals[k]) for k in members):
            raise NeedsEager(
                "arguments share memory that the region writes",
                path=inputs.leaf_paths[members[0]],
                expected="tensors of their own, or views that do not overlap",
                fix="pass one of them alone, and make the others inside of the region",
            )
