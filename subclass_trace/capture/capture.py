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
from ..plan import OutputPlan, PlanMutations, SharedLeaf
from ..subclass.flatten import flatten, guarded_spec, leaves_of, tensors_inside
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from ..subclass.spec import Spec, WrapperSpec, sizes_in
from .aliasing import byte_range
from .checkpoint import checkpoint_as_tags
from .diagnostics import typed_errors
from .functions import CapturedFunctions
from .graphs import finish_joint, read_by_backward
from .inputs import Inputs, StandIns
from .metadata import MetadataReads
from .mutation import read_mutations, state_of
from .outputs import OutputClassifier, refuse_handed_on, shared_leaves
from .recorder import Recorder
from .session import Session
from .tape import Tape, connected, leaves_behind, saved_by_autograd, saves_out_of_sight

Tensor = torch.Tensor
_OTHER_DTYPE = torch.ops.aten.view.dtype


class Ran(NamedTuple):
    """What a run gave: flat outputs (tensors and symbols), and what stands for each flat argument."""

    outputs: Sequence[Any]
    handed: Sequence[Any]


#: makes inputs and runs the function on them, inside of all modes
RunFunction = Callable[[Inputs], Ran]


@dataclass(frozen=True, eq=False)
class CapturedResults:
    """What a trace gave.

    Attributes:
        values: specs of the live tensors that the forward graph returns.
        views: numbers of the values that are views when the region runs eagerly.
        outputs, shared, unbacked: see `plan`; ``size_outputs``: how many symbolic numbers the forward graph returns.
    """

    values: tuple[Spec, ...]
    views: frozenset[int]
    outputs: tuple[OutputPlan, ...]
    shared: Mapping[int, SharedLeaf]
    size_outputs: int
    unbacked: tuple[tuple[Any, int], ...]


@dataclass(frozen=True, eq=False)
class Captured:
    """What capture knows about a region. Sizes in specs may be SymInts of ``session.shape_env``.

    Attributes:
        mutations: see `plan`.
        differentiable: numbers of the values that get tangents; ``differentiated``: of the inputs that get gradients.
        forward_nodes: what the forward graph returns; ``boundary``: its last node.
        tape: the retained autograd graph; None when nothing is differentiable.
        reads: what the region read of the inputs besides their values.
    """

    session: Session
    inputs: Inputs
    results: CapturedResults
    mutations: PlanMutations
    differentiable: tuple[int, ...]
    differentiated: tuple[int, ...]
    forward_nodes: list[Any]
    boundary: fx.Node | None
    tape: Tape | None
    reads: MetadataReads

    def served(self, graph: fx.GraphModule) -> frozenset[str]:
        """What eager autograd would keep, by its name in a finished graph, and what nodes may keep that do not tell."""
        names, tape = graph.meta["names"], self.tape
        if tape is None:
            return frozenset()
        known = frozenset(names[n.name] for n in tape.served if n.name in names)
        return known | read_by_backward(graph.graph) if saves_out_of_sight(tape.outputs, tape.edges) else known

    def forward_graph(self, in_place: bool) -> tuple[fx.GraphModule, bool]:
        """The forward graph of a region without a backward, and whether its writes are in place, as they were recorded.

        That is right for a back end that runs operation by operation (``in_place``), which does what eager mode does then, if
        data alone is written. (But in inference mode a view of another dtype is an inference tensor: a write to it moves no
        version counter.)
        """
        recorder = self.session.recorder
        in_place = in_place and recorder.mutable and not any(m.differentiable for m in self.mutations.rows)
        if torch.is_inference_mode_enabled() and recorder.graph.find_nodes(op="call_function", target=_OTHER_DTYPE):
            in_place = False
        return finish_joint(recorder, self.forward_nodes, [], self.boundary, functional=not in_place), in_place


class Capture:
    """One capture of a region: the values that it emits are counted as it goes."""

    def __init__(self, session: Session) -> None:
        self.session, self.recorder = session, session.recorder
        self.inputs = Inputs(session, state_of)
        self.reads = MetadataReads(self.inputs)
        self.stand_ins = StandIns(self.inputs)
        self.functions = CapturedFunctions(self.recorder, self.reads, self.stand_ins)
        self.values: list[Tensor] = []

    def capture(self, run: RunFunction) -> Captured:
        """See the module's docstring.

        Raises:
            SubclassTraceError: a refusal, with the path or line it is about. The caller's tensors are unchanged.
        """
        grad_mode, recorder = torch.is_grad_enabled(), self.recorder
        with self.session.modes():
            try:
                ran = self._run(run)
                for check in recorder.symbols.assertions(
                    recorder.tag
                ):  # what it took for true of values inside tensors
                    recorder.annotate(check)
                _refuse_gradients_inside(self.inputs, ran.outputs)
                changed = list(self.functions.gradients.changed())
                if torch.is_grad_enabled() != grad_mode:
                    torch.set_grad_enabled(grad_mode)
                    raise NeedsEager("the region leaves gradients on or off", fix="use torch.no_grad() as a context")
                recorder.sealed = True
                gradients = tuple((number, len(ran.outputs) + k) for k, (number, _) in enumerate(changed))
                mutations = PlanMutations(tuple(read_mutations(self.inputs, recorder, self._emit)), gradients)
                for m in mutations.rows:
                    if m.differentiable:
                        self.reads.fact(m.input, "is_leaf")
                flat = [self.stand_ins.known(o) for o in (*ran.outputs, *(g for _, g in changed))]
                results, nodes = self._freeze(flat, ran.handed, {m.value for m in mutations.rows})
            finally:
                self.inputs.forget()
        return self._finish(mutations, results, nodes)

    def _run(self, run: RunFunction) -> Ran:
        recorder, functions = self.recorder, self.functions
        recorder.stop_frame = sys._getframe()
        try:
            with (
                checkpoint_as_tags(recorder),
                typed_errors(),
                functions,
                torch_api.watched_engine(functions.gradients.backward, functions.gradients.check),
                torch_api.transformed_inputs(self.stand_ins.swapped),
            ):
                return run(self.inputs)
        finally:
            recorder.stop_frame = None  # a frame holds everything that its callers hold

    def _emit(self, t: Tensor) -> int:
        self.values.append(t)
        return len(self.values) - 1

    def _freeze(
        self, flat: Sequence[Any], handed: Sequence[Any], contents: Collection[int]
    ) -> tuple[CapturedResults, list[Any]]:
        """The results, and the nodes of the graph that are the forward outputs.

        ``contents``: numbers of the values that are new contents of inputs.
        """
        inputs, recorder = self.inputs, self.recorder
        classifier = OutputClassifier(inputs, handed, recorder, self._emit)
        outputs = tuple(map(classifier.classify, flat))
        for k in range(len(inputs.rows)):
            if (t := inputs.real(k)) is not None and t.is_inference():
                self.reads.fact(k, "is_inference")
        shared = shared_leaves(self.values, contents, inputs, recorder)
        refuse_handed_on(self.values, contents, inputs)
        _check_mode([t for k, t in enumerate(self.values) if k not in contents], inputs.leaf_values)
        nodes, specs = list[Any](), list[Spec]()
        for k, value in enumerate(self.values):
            leaves, spec = flatten(value)
            guarded_spec(spec, Path("result").item(k))  # no traced tensor in a context
            classifier.need(sizes_in(spec) if isinstance(spec, WrapperSpec) else ())
            nodes += map(recorder.node_of, leaves)
            specs.append(spec)
        nodes += map(recorder.node_of, classifier.sizes)
        views = frozenset(k for k, t in enumerate(self.values) if t._is_view())
        unbacked = tuple(classifier.unbacked.items())
        return CapturedResults(tuple(specs), views, outputs, shared, len(classifier.sizes), unbacked), nodes

    def _finish(self, mutations: PlanMutations, results: CapturedResults, nodes: list[Any]) -> Captured:
        inputs, recorder = self.inputs, self.recorder
        boundary = next(iter(reversed(recorder.graph.nodes)), None)
        written = {m.value for m in mutations.rows if not m.differentiable}
        live = {
            k: t for k, t in enumerate(self.values) if t.requires_grad and t.grad_fn is not None and k not in written
        }
        ends = [(n, row.edge) for n, row in enumerate(inputs.rows) if row.edge is not None]
        rows = connected([*live.values()], ends)
        _refuse_overlapping(inputs, recorder)
        _check_leaves(leaves_behind([*live.values()], [e for _, e in rows]), self.functions.gradients.own)
        if live and not rows:
            raise UnsupportedError("a result requires grad by a leaf of the region's own making alone", fix="detach it")
        tape = self._tape([*live.values()], rows, nodes, boundary) if live else None
        numbers = tuple(n for n, _ in rows) if live else ()
        return Captured(
            self.session, inputs, results, mutations, tuple(live), numbers, nodes, boundary, tape, self.reads
        )

    def _tape(
        self, live: Sequence[Tensor], rows: Sequence[tuple[int, Any]], nodes: list[Any], boundary: fx.Node | None
    ) -> Tape:
        """The retained autograd graph."""
        recorder, edges = self.recorder, tuple(e for _, e in rows)
        with self.session.modes():  # an output that its own node saves is unpacked by `detach`
            kept = saved_by_autograd(live, edges)
        served = {n: None for t in kept if recorder.knows(t) and isinstance(n := recorder.node_of(t), fx.Node)}
        traced, paths = (tuple(getattr(self.inputs.rows[n], a) for n, _ in rows) for a in ("traced", "path"))
        return Tape(self.session, tuple(live), edges, nodes, boundary, tuple(served), traced, paths)


def _check_leaves(leaves: Sequence[Tensor], added_to: Mapping[int, Tensor]) -> None:
    """Refuse an input that some code took past the trace and differentiated: that gradient would be lost. And a leaf of the
    region's own, whose ``.grad`` a backward of the region has set: a later one would add to that very tensor."""
    for leaf in leaves:
        if id(leaf) in added_to:
            raise UnsupportedError(
                "a result leads to a leaf that the region makes, and whose gradient a backward of the region has set",
                fix="detach the result, or use torch.autograd.grad",
            )
        if not any(map(torch_api.is_fake, leaves_of(leaf))):
            raise UnsupportedError(
                "code inside the region takes a tensor of the caller's, which requires grad, in a way that cannot be traced",
                expected="tensors that Python code of the region reads; or that require no grad, or under torch.no_grad()",
                got=f"operations on a tensor of shape {tuple(leaf.shape)} itself, as under torch._C.DisableTorchFunction",
                fix="pass the tensor as an argument, or move this part out of the region",
            )


def _refuse_gradients_inside(inputs: Inputs, outputs: Sequence[Any]) -> None:
    """The wrapper of a call is built of tensors without a history.

    Raises:
        NeedsEager: an inner tensor requires grad: the constructor did not detach it; or its gradient is wanted.
    """
    values, known = (*(row.traced for row in inputs.rows), *outputs), {*map(id, inputs.with_gradients)}
    inside = {id(v): tensors_inside(v) for v in values if is_traceable(v) and not v.is_nested}
    if known:
        taken = leaves_behind([v for v in values if isinstance(v, Tensor)], [])
        kept = {id(t) for rows in inside.values() for _, t in rows}
        if not known.isdisjoint(map(id, taken)) or not known <= kept:
            raise NeedsEager("the region takes an inner tensor that requires grad out of its wrapper", fix="detach it")
    for value in values:
        if any(id(t) not in known and torch_api.is_reached(t) for _, t in inside.get(id(value), ())):
            raise NeedsEager(
                f"the region makes a {type(value).__qualname__} that keeps a tensor which requires grad inside",
                fix="detach it in the constructor, or make the constructor an autograd.Function",
            )


def _check_mode(values: Sequence[Tensor], known: Sequence[Tensor]) -> None:
    """Results are made in the caller's inference mode, or outside of it; but for leaves of inputs (``known``).

    Raises:
        NeedsEager: the region has entered or left that.
    """
    mode = torch.is_inference_mode_enabled()
    for value in values:
        if any(t.is_inference() != mode and all(t is not k for k in known) for t in (value, *leaves_of(value))):
            what = "the region makes a result in another inference mode than the caller's"
            raise NeedsEager(what, fix="enter or leave inference mode around the region")


def _refuse_overlapping(inputs: Inputs, recorder: Recorder) -> None:
    """Writes to one input that another one sees.

    Raises:
        NeedsEager: there are such.
    """
    places: dict[Any, list[int]] = {}
    for k, t in enumerate(inputs.originals if recorder.mutable else ()):
        places.setdefault(torch_api.storage_ref(t) if t.layout is torch.strided else None, []).append(k)
    for storage, written in recorder.writes:
        seen = [k for k in places.get(storage, ()) if byte_range(inputs.originals[k]).overlaps(written)]
        if len(seen) > 1:
            raise NeedsEager(
                "arguments share memory that the region writes",
                path=inputs.leaf_paths[seen[0]],
                fix="pass one of them alone, and make the others inside of the region",
            )
