"""Capture of a region: the function runs once, and everything the run time needs is read off the
live tensors.

Steps, each from what the one before gives: make the inputs and run the function (`_run`); read what
it changed (`read_mutations`) and what its results are (`OutputClassifier`); freeze the forward
outputs (`_freeze`); keep the fake autograd graph as a `Tape`, from which joint graphs are traced.
See docs/architecture.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.fx as fx

from ..errors import UnsupportedError
from ..plan import OutputPlan, PlanMutations, SharedLeaf, SideEffect, ValueOutput
from ..plan.descriptors import (
    AnyDescriptor,
    Assigned,
    Descriptor,
    Intermediate,
    NewContents,
    forward_descriptors,
    result_descriptors,
)
from ..plan.values import Recipe
from ..state.side_effects import Recipes
from ..subclass.flatten import flatten, guarded_spec, leaves_of, tensors_inside
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from ..subclass.spec import Spec, WrapperSpec, sizes_in
from ..torch_api.assertions import check as torch_check
from ..torch_api.assertions import note_random
from ..torch_api.autograd import is_reached, watched_engine
from ..torch_api.kinds import is_fake, storage_ref
from ..torch_api.modes import transformed_inputs
from .aliasing import byte_range
from .checkpoint import checkpoint_as_tags
from .decided import StateBranches
from .diagnostics import typed_errors
from .functions import CapturedFunctions
from .graphs import TracedForward, finish, is_random, read_by_backward
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
    """What a run gave: recipes with the flat outputs (tensors and symbols), and what stands for
    each flat argument."""

    recipes: Recipes
    handed: Sequence[Any]


#: makes inputs and runs the function on them, inside of all modes
RunFunction = Callable[[Inputs], Ran]


@dataclass(frozen=True, eq=False)
class CapturedResults:
    """What a trace gave.

    Attributes:
        values: specs of the live tensors that the forward graph returns.
        views: numbers of the values that are views when the region runs eagerly.
        outputs, shared, unbacked, described, paths: see `plan`; ``size_outputs``: how many symbolic
            numbers the forward graph returns.
    """

    values: tuple[Spec, ...]
    views: frozenset[int]
    outputs: tuple[OutputPlan, ...]
    shared: Mapping[int, SharedLeaf]
    size_outputs: int
    unbacked: tuple[tuple[Any, int], ...]
    described: tuple[AnyDescriptor, ...]
    paths: tuple[Descriptor, ...]


@dataclass(frozen=True, eq=False)
class Captured:
    """What capture knows about a region. Sizes in specs may be SymInts of ``session.shape_env``.

    Attributes:
        described: what each graph input is.
        mutations: see `plan`; ``recipes``: how the result is made of the flat outputs, and what
            they are put into.
        differentiable: numbers of the values that get tangents; ``differentiated``: of the inputs
            that get gradients.
        forward: what the forward graph returns.
        tape: the retained autograd graph; None when nothing is differentiable.
        reads: what the region read of the inputs besides their values.
    """

    session: Session
    inputs: Inputs
    described: tuple[Descriptor, ...]
    results: CapturedResults
    recipes: Recipes
    mutations: PlanMutations
    differentiable: tuple[int, ...]
    differentiated: tuple[int, ...]
    forward: TracedForward
    tape: Tape | None
    reads: MetadataReads

    def served(self, graph: fx.GraphModule) -> frozenset[str]:
        """The nodes of a finished graph, by name, that eager autograd would keep, and what nodes
        may keep that do not tell."""
        known, tape = {*graph.meta["served"]}, self.tape
        if tape is None:
            return frozenset()
        found = frozenset(n.name for n in graph.graph.nodes if n.meta.get("trace_name") in known)
        return (
            found | read_by_backward(graph.graph)
            if saves_out_of_sight(tape.outputs, tape.edges)
            else found
        )

    def forward_graph(self, in_place: bool) -> tuple[fx.GraphModule, bool]:
        """The forward graph of a region without a backward, and whether its writes are in place, as
        they were recorded.

        That is right for a back end that runs operation by operation (``in_place``), which does
        what eager mode does then, if data alone is written. (But in inference mode a view of
        another dtype is an inference tensor: a write to it moves no version counter.)
        """
        recorder = self.session.recorder
        in_place = in_place and recorder.memory.any and self.session.passes is None
        in_place = in_place and not any(m.differentiable for m in self.mutations.rows)
        in_place = in_place and not recorder.met.looks_after_writes
        if torch.is_inference_mode_enabled() and recorder.graph.find_nodes(
            op="call_function", target=_OTHER_DTYPE
        ):
            in_place = False
        return finish(
            recorder, self.forward, functional=not in_place, passes=self.session.passes
        ), in_place


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
            SubclassTraceError: a refusal, with the path or line it is about. The caller's tensors
                are unchanged.
        """
        grad_mode, recorder = torch.is_grad_enabled(), self.recorder
        branches = StateBranches(self.inputs)
        with self.session.modes(), recorder.during(branches=branches):
            try:
                ran = self._run(run)
                for check in recorder.symbols.assertions(
                    recorder.tag
                ):  # what it took for true of values inside tensors
                    recorder.annotate(check)
                recipes = ran.recipes
                _note_random(recorder)
                _refuse_gradients_inside(self.inputs, recipes.outputs)
                changed = list(self.functions.gradients.changed())
                if torch.is_grad_enabled() != grad_mode:
                    torch.set_grad_enabled(grad_mode)
                    raise UnsupportedError(
                        "the region leaves gradients on or off",
                        code="grad-mode-left",
                        fix="use torch.no_grad() as a context",
                    )
                recorder.seal()
                gradients = tuple(
                    (number, len(recipes.outputs) + k) for k, (number, _) in enumerate(changed)
                )
                mutations = PlanMutations(
                    tuple(read_mutations(self.inputs, recorder, self._emit)), gradients
                )
                for m in mutations.rows:
                    if m.differentiable:
                        self.reads.fact(m.input, "is_leaf")
                flat = [
                    self.stand_ins.known(o) for o in (*recipes.outputs, *(g for _, g in changed))
                ]
                results, nodes = self._freeze(flat, ran, mutations)
            finally:
                self.inputs.forget()
        return self._finish(mutations, results, recipes, nodes)

    def _run(self, run: RunFunction) -> Ran:
        recorder, functions = self.recorder, self.functions
        with (
            # not longer: a frame holds everything that its callers hold
            recorder.during(stop_frame=sys._getframe()),
            checkpoint_as_tags(recorder),
            typed_errors(),
            functions,
            watched_engine(functions.gradients.backward, functions.gradients.check),
            transformed_inputs(self.stand_ins.swapped),
        ):
            return run(self.inputs)

    def _emit(self, t: Tensor) -> int:
        self.values.append(t)
        return len(self.values) - 1

    def _freeze(
        self, flat: Sequence[Any], ran: Ran, mutations: PlanMutations
    ) -> tuple[CapturedResults, list[Any]]:
        """The results, and the nodes of the graph that are the forward outputs."""
        inputs, recorder, contents = self.inputs, self.recorder, {m.value for m in mutations.rows}
        classifier = OutputClassifier(inputs, ran.handed, recorder, self._emit)
        outputs = tuple(map(classifier.classify, flat))
        for k in range(len(inputs.rows)):
            if (t := inputs.real(k)) is not None and t.is_inference():
                self.reads.fact(k, "is_inference")
        shared: Mapping[int, SharedLeaf] = {}
        if not self.session.materialise:
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
        rest = len(classifier.sizes), tuple(classifier.unbacked.items())
        paths = self._paths(ran.recipes, mutations, len(flat))
        described = self._described(paths, outputs, mutations)
        return CapturedResults(tuple(specs), views, outputs, shared, *rest, described, paths), nodes

    def _paths(
        self, recipes: Recipes, mutations: PlanMutations, count: int
    ) -> tuple[Descriptor, ...]:
        """What each flat output is."""
        paths = result_descriptors(recipes.result, _assigned(recipes.effects), count)
        for number, output in mutations.gradients:
            paths[output] = Assigned(f"{self.inputs.rows[number].path}.grad")
        return tuple(paths)

    def _described(
        self, paths: Sequence[Descriptor], outputs: Sequence[OutputPlan], mutations: PlanMutations
    ) -> tuple[AnyDescriptor, ...]:
        """What each value is: a result, new contents of an input, or an intermediate that views are
        made of."""
        found: dict[int, AnyDescriptor] = {}
        for path, output in zip(paths, outputs, strict=True):
            if isinstance(output, ValueOutput):
                found.setdefault(output.value, path)
        for m in mutations.rows:
            found.setdefault(m.value, NewContents(self.inputs.rows[m.input].descriptor))
        return tuple(found.get(k, Intermediate(str(k))) for k in range(len(self.values)))

    def _finish(
        self, mutations: PlanMutations, results: CapturedResults, recipes: Recipes, nodes: list[Any]
    ) -> Captured:
        inputs, recorder = self.inputs, self.recorder
        boundary = next(iter(reversed(recorder.graph.nodes)), None)
        forward = TracedForward(
            nodes,
            tuple(forward_descriptors(results.described, results.values, results.size_outputs)),
            boundary,
        )
        written = {m.value for m in mutations.rows if not m.differentiable}
        live = {
            k: t
            for k, t in enumerate(self.values)
            if t.requires_grad and t.grad_fn is not None and k not in written
        }
        ends = [(n, row.edge) for n, row in enumerate(inputs.rows) if row.edge is not None]
        rows = connected([*live.values()], ends)
        _refuse_overlapping(inputs, recorder)
        _check_leaves(
            leaves_behind([*live.values()], [e for _, e in rows]), self.functions.gradients.own
        )
        if live and not rows:
            raise UnsupportedError(
                "a result requires grad by a leaf of the region's own making alone",
                code="leaf-made-inside",
                fix="detach it",
            )
        described = inputs.describe()
        tape = self._tape(live, results.described, rows, forward) if live else None
        numbers = tuple(n for n, _ in rows) if live else ()
        values = results, recipes, mutations, tuple(live), numbers
        return Captured(self.session, inputs, described, *values, forward, tape, self.reads)

    def _tape(
        self,
        live: Mapping[int, Tensor],
        described: Sequence[AnyDescriptor],
        rows: Sequence[tuple[int, Any]],
        forward: TracedForward,
    ) -> Tape:
        """The retained autograd graph."""
        recorder, edges, outputs = self.recorder, tuple(e for _, e in rows), tuple(live.values())
        with self.session.modes():  # an output that its own node saves is unpacked by `detach`
            kept = saved_by_autograd(outputs, edges)
        served = {
            n: None
            for t in kept
            if recorder.knows(t) and isinstance(n := recorder.node_of(t), fx.Node)
        }
        inputs = [self.inputs.rows[n] for n, _ in rows]
        traced, of = tuple(i.traced for i in inputs), tuple(i.descriptor for i in inputs)
        forward = replace(forward, served=tuple(served))
        return Tape(
            self.session, outputs, tuple(described[k] for k in live), edges, traced, of, forward
        )


def _assigned(effects: Iterable[SideEffect]) -> Iterator[tuple[str, Recipe]]:
    """Where side effects put values, and how these are made."""
    for effect in effects:
        known = effect.how == "put" and isinstance(effect.keys[0], (str, int, float))
        key = f"[{effect.keys[0]!r}]" if known else "[...]" if effect.how == "put" else ""
        yield from ((f"{effect.place}{key}", made) for made in effect.values)


def _check_leaves(leaves: Sequence[Tensor], added_to: Mapping[int, Tensor]) -> None:
    """Refuse an input that some code took past the trace and differentiated: that gradient would be
    lost. And a leaf of the region's own, whose ``.grad`` a backward of the region has set: a later
    one would add to that very tensor."""
    for leaf in leaves:
        if id(leaf) in added_to:
            raise UnsupportedError(
                "a result leads to a leaf that the region makes, and whose gradient a backward "
                "of the region has set",
                code="leaf-made-inside",
                fix="detach the result, or use torch.autograd.grad",
            )
        if not any(map(is_fake, leaves_of(leaf))):
            raise UnsupportedError(
                "code inside the region takes a tensor of the caller's, which requires grad, in "
                "a way that cannot be traced",
                code="tensor-from-unread-code",
                expected="tensors that Python code of the region reads; or that require no grad, "
                "or under torch.no_grad()",
                got=f"operations on a tensor of shape {tuple(leaf.shape)} itself, as under "
                "torch._C.DisableTorchFunction",
                fix="pass the tensor as an argument, or move this part out of the region",
            )


def _note_random(recorder: Recorder) -> None:
    """The state of random numbers, where some are drawn and a call may be made again eagerly."""
    nodes = [n for n in recorder.graph.nodes if n.op == "call_function"]
    # others come first
    checks = [n for n in nodes if n.target is torch_check and len(n.args) == 2]
    if checks and any(map(is_random, nodes)):
        for check in checks:
            check.args = (*check.args, True)
        with recorder.graph.inserting_before(nodes[0]):
            note = recorder.graph.call_function(note_random)
        note.meta["val"] = None
        recorder.annotate(note)


def _refuse_gradients_inside(inputs: Inputs, outputs: Sequence[Any]) -> None:
    """The wrapper of a call is built of tensors without a history.

    Raises:
        UnsupportedError: an inner tensor requires grad: the constructor did not detach it; or its
            gradient is wanted.
    """
    values, known = (
        (*(row.traced for row in inputs.rows), *outputs),
        {*map(id, inputs.with_gradients)},
    )
    inside = {id(v): tensors_inside(v) for v in values if is_traceable(v) and not v.is_nested}
    if known:
        taken = leaves_behind([v for v in values if isinstance(v, Tensor)], [])
        kept = {id(t) for rows in inside.values() for _, t in rows}
        if not known.isdisjoint(map(id, taken)) or not known <= kept:
            raise UnsupportedError(
                "the region takes an inner tensor that requires grad out of its wrapper",
                code="inner-requires-grad",
                fix="detach it",
            )
    for value in values:
        if any(id(t) not in known and is_reached(t) for _, t in inside.get(id(value), ())):
            raise UnsupportedError(
                f"the region makes a {type(value).__qualname__} that keeps a tensor which "
                "requires grad inside",
                code="inner-requires-grad",
                fix="detach it in the constructor, or make the constructor an autograd.Function",
            )


def _check_mode(values: Sequence[Tensor], known: Sequence[Tensor]) -> None:
    """Results are made in the caller's inference mode, or outside of it; but for leaves of inputs
    (``known``).

    Raises:
        UnsupportedError: the region has entered or left that.
    """
    mode = torch.is_inference_mode_enabled()
    for value in values:
        if any(
            t.is_inference() != mode and all(t is not k for k in known)
            for t in (value, *leaves_of(value))
        ):
            what = "the region makes a result in another inference mode than the caller's"
            raise UnsupportedError(
                what,
                code="inference-mode-left",
                fix="enter or leave inference mode around the region",
            )


def _refuse_overlapping(inputs: Inputs, recorder: Recorder) -> None:
    """Writes to one input that another one sees.

    Raises:
        UnsupportedError: there are such.
    """
    places: dict[Any, list[int]] = {}
    for k, t in enumerate(inputs.originals if recorder.memory.any else ()):
        places.setdefault(storage_ref(t) if t.layout is torch.strided else None, []).append(k)
    for storage, written in recorder.memory.writes:
        seen = [
            k for k in places.get(storage, ()) if byte_range(inputs.originals[k]).overlaps(written)
        ]
        if len(seen) > 1:
            raise UnsupportedError(
                "arguments share memory that the region writes",
                code="shared-memory-written",
                path=inputs.leaf_paths[seen[0]],
                fix="pass one of them alone, and make the others inside of the region",
            )
