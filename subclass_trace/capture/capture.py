"""Capture of a region: the function runs once, and everything the run time needs is read off the live tensors.

Steps, each from what the one before gives: make the inputs and run the function (`_run`); read what it changed
(`read_mutations`) and what its results are (`OutputClassifier`); freeze the forward outputs (`_freeze`); keep the fake autograd
graph as a `Tape`, from which joint graphs are traced. See docs/architecture.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.fx as fx

from .. import torch_api
from ..errors import NeedsEager, UnsupportedError
from ..plan import MutationPlan, OutputPlan, PlanMutations, ValueAlias, ViewOutput
from ..subclass.flatten import flatten, leaves_of, tensors_inside
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from ..subclass.spec import Spec, WrapperSpec, sizes_in
from .aliasing import alias_groups
from .checkpoint import checkpoint_as_tags
from .diagnostics import no_dlpack, typed_errors
from .functionalize import PLACED, refuse_overlapping
from .functions import CapturedFunctions
from .graphs import finish_joint, is_write, read_by_backward
from .inputs import Inputs, TracedInput
from .lending import Lending
from .lift import StandIns
from .metadata import Asked
from .mutation import read_mutations, state_of
from .outputs import OutputClassifier, check_escapes
from .places import refuse_strided_writes
from .recorder import Recorder
from .session import Session
from .sharing import Sharing
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
        groups: overlapping leaves of which one is written.
    """

    rows: tuple[TracedInput, ...]
    leaf_primals: tuple[int, ...]
    inference_leaves: frozenset[int]
    originals: tuple[Tensor, ...]
    size_primals: Mapping[int, Any]
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class CapturedResults:
    """What a trace gave.

    Attributes:
        values: specs of the live tensors that the forward graph returns.
        views: numbers of the values that are views when the region runs eagerly.
        outputs, aliases, unbacked: see `plan`; ``size_outputs``: the symbolic numbers that the forward graph returns.
    """

    values: tuple[Spec, ...]
    views: frozenset[int]
    outputs: tuple[OutputPlan, ...]
    aliases: tuple[ValueAlias, ...]
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
        asked: what was asked of the inputs beside their values.
        lending: the objects in the contexts of inputs that results have.
    """

    session: Session
    inputs: CapturedInputs
    results: CapturedResults
    mutations: PlanMutations
    gradients: CapturedGradients
    forward_nodes: tuple[Any, ...]
    boundary: fx.Node | None
    tape: Tape | None
    asked: Asked
    lending: Lending

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
        return finish_joint(self.session.recorder, self.forward_nodes, [], self.boundary, self.inputs.groups, kept)

    def graph_as_recorded(self) -> fx.GraphModule | None:
        """The forward graph with its writes in place; None where there are none, or where one changes more than data.

        It is right for a back end that runs operation by operation: what it runs is what eager mode runs.
        """
        recorder = self.session.recorder
        writes = [n for n in recorder.graph.nodes if is_write(n)] if recorder.mutable and not self.inputs.groups else []
        if not writes or any(torch.Tag.inplace_view in n.target.tags or n.target in PLACED for n in writes):
            return None
        return finish_joint(recorder, self.forward_nodes, [], self.boundary, (), functional=False)


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
    """What the results are, and how what they share lies."""

    outputs: list[OutputPlan]
    aliases: list[ValueAlias]
    sizes: list[Any]
    unbacked: Mapping[Any, int]
    need: Callable[[Iterable[Any]], None]  # adds sizes
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
        self.asked = Asked(self.inputs)
        self.stand_ins = StandIns(self.recorder, self.inputs)
        self.functions = CapturedFunctions(self.recorder, self.asked, self.stand_ins)
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
                after = torch.is_grad_enabled()
                torch.set_grad_enabled(grad_mode)
                self.recorder.sealed = True
                lending = Lending.of(self.session.shape_env, [row.traced for row in self.inputs.inputs])
                results = [self.stand_ins.known(o) for o in (*ran.outputs, *(g for _, g in changed))]
                mutations = self._mutations(results, lending)
                found = self._classify(results, ran.handed, mutations)
                frozen = self._freeze(found)
                edges = self._edges(mutations)
            finally:
                self.inputs.forget()
        mode = after if after != grad_mode else None
        return self._finish(mutations, found, frozen, edges, gradients, mode, lending)

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
            if recorder.reshaped:
                functions.check_histories(ran.outputs, "the results")
            return ran
        finally:
            recorder.start_at(None)  # a frame holds everything that its callers hold

    def _emit(self, t: Tensor) -> int:
        self.values.append(t)
        return len(self.values) - 1

    def _mutations(self, results: Sequence[Any], lending: Lending) -> list[MutationPlan]:
        inputs = self.inputs
        mutations = read_mutations(inputs, self.recorder, self._emit, lending.in_place_of)
        return mutations

    def _classify(self, results: Sequence[Any], handed: Sequence[Any], mutations: Sequence[MutationPlan]) -> _Results:
        inputs = self.inputs
        contents = {m.value for m in mutations if m.value is not None}
        sharing = Sharing(inputs, self.recorder, self._emit)
        classifier = OutputClassifier(inputs, handed, mutations, self.recorder, results, self._emit)
        outputs = [classifier.classify(o) for o in results]
        aliases = sharing.aliases(self.values, contents)
        if aliases or (torch.is_inference_mode_enabled() and any(map(_views_input, outputs))):
            self.asked.depends_on("is_inference")
        odd = [k for k, row in enumerate(inputs.inputs) if (t := row.real()) is not None and t.is_inference()]
        self.asked.depends_on("is_inference", odd)
        classifier.need(a.delta for row in aliases for a in row.leaves if a is not None)
        return _Results(outputs, aliases, classifier.sizes, classifier.unbacked, classifier.need, contents)

    def _freeze(self, found: _Results) -> _Frozen:
        recorder = self.recorder
        flat = [flatten(t) for t in self.values]
        for k, (_, spec) in enumerate(flat):
            check_escapes(spec, Path("result").item(k))
            found.need(sizes_in(spec) if isinstance(spec, WrapperSpec) else ())
        nodes = [recorder.node_of(leaf) for leaves, _ in flat for leaf in leaves]
        nodes += [recorder.node_of(s) for s in found.sizes]
        return _Frozen(flat, nodes, next(iter(reversed(recorder.graph.nodes)), None))

    def _edges(self, mutations: Sequence[MutationPlan]) -> list[tuple[int, Any]]:
        """(input number, gradient edge) for each input that requires grad."""
        starts = {m.input for m in mutations if m.starts_grad}
        rows = []
        for n, i in enumerate(self.inputs.inputs):
            if i.edge is not None:
                rows.append((n, i.edge))
            elif n in starts and not torch.is_inference_mode_enabled():
                rows.append((n, torch.autograd.graph.get_gradient_edge(i.traced)))
        return rows

    def _finish(
        self,
        mutations: Sequence[MutationPlan],
        found: _Results,
        frozen: _Frozen,
        rows: Sequence[tuple[int, Any]],
        gradients: tuple[tuple[int, int], ...],
        grad_mode_after: bool | None,
        lending: Lending,
    ) -> Captured:
        inputs, recorder = self.inputs, self.recorder
        made = [t for k, t in enumerate(self.values) if k not in found.contents]
        _check_mode(made, inputs.leaf_values)
        differentiable = self._differentiable(mutations, found.contents)
        live = [self.values[k] for k in differentiable]
        rows = connected(live, rows)
        _check_shapes(inputs.inputs, [n for n, _ in rows], mutations)
        groups = _written_groups(inputs, recorder)
        self._check_leaves(leaves_behind(live, [e for _, e in rows]))
        if live and not rows:
            raise UnsupportedError(
                "a result requires grad, and was computed of a leaf of the region's own making alone",
                expected="results whose gradients get to inputs",
                fix="detach the result",
            )
        tape, saved, out_of_sight = self._tape(live, rows, frozen, groups)
        return Captured(
            session=self.session,
            inputs=CapturedInputs(
                rows=tuple(inputs.inputs),
                leaf_primals=tuple(inputs.leaf_primals),
                inference_leaves=frozenset(inputs.inference_leaves),
                originals=tuple(inputs.originals),
                size_primals=inputs.sizes,
                groups=groups,
            ),
            results=CapturedResults(
                values=tuple(spec for _, spec in frozen.flat),
                views=frozenset(k for k, t in enumerate(self.values) if t._is_view()),
                outputs=tuple(found.outputs),
                aliases=tuple(replace(a, within=a.within and tape is not None) for a in found.aliases),
                size_outputs=tuple(found.sizes),
                unbacked=tuple(found.unbacked.items()),
            ),
            mutations=PlanMutations(tuple(mutations), gradients, grad_mode_after),
            gradients=CapturedGradients(
                differentiable=tuple(differentiable) if tape else (),
                differentiated=tuple(n for n, _ in rows) if tape else (),
                saved=saved,
                saves_out_of_sight=out_of_sight,
            ),
            forward_nodes=tuple(frozen.nodes),
            boundary=frozen.boundary,
            tape=tape,
            asked=self.asked,
            lending=lending,
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
        groups: tuple[tuple[int, ...], ...],
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
        tape = Tape(
            self.session, tuple(live), edges, frozen.nodes, frozen.boundary, groups, tuple(served), traced, paths
        )
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


def _check_shapes(inputs: Sequence[TracedInput], numbers: Sequence[int], mutations: Sequence[MutationPlan]) -> None:
    """Autograd takes the shape of a leaf when it is used first: in eager that may be after it was changed.

    Args:
        numbers: of the inputs that get gradients.

    Raises:
        UnsupportedError: the region differentiates what it computes of a leaf whose shape it changes in place.
    """
    for m in mutations:
        if m.metadata is not None and m.input in numbers and inputs[m.input].is_leaf:
            raise UnsupportedError(
                "the region differentiates what it computes of a leaf whose shape it changes in place",
                path=inputs[m.input].path,
                expected="the shape that gradients of it have",
                got=f"the shape {tuple(m.metadata.size)}",  # type: ignore[union-attr]
                fix="change the shape outside of the region, or out of place: y = x.t()",
            )


def _views_input(o: OutputPlan) -> bool:
    return isinstance(o, ViewOutput) and o.of_input


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


def _written_groups(inputs: Inputs, recorder: Recorder) -> tuple[tuple[int, ...], ...]:
    """Leaves (by the numbers of their graph inputs) that become one graph input.

    Raises:
        UnsupportedError: the region writes memory outside of its inputs.
        NeedsEager: one of them is read otherwise than it is in memory.
    """
    originals, leaf_primals = inputs.originals, inputs.leaf_primals
    rows: list[Sequence[int]] = [
        members for members in alias_groups(originals) if any(recorder.was_written(originals[k]) for k in members)
    ]
    for row in rows:  # one graph input cannot stand for memory as it is and as it is read
        kinds = {(originals[k].dtype, originals[k].is_conj(), originals[k].is_neg()) for k in row}
        if len(kinds) > 1 or any(bit for kind in kinds for bit in kind[1:]):
            raise NeedsEager(
                "arguments share memory that the region writes, and are of several dtypes, or have a conjugate or negative bit",
                path=inputs.leaf_paths[row[0]],
                expected="views of one dtype without such a bit",
                fix="pass one of them alone, and make the others inside of the region",
            )
    if recorder.mutable:
        refuse_strided_writes(recorder)
        refuse_overlapping(recorder.graph)
    return tuple(tuple(leaf_primals[k] for k in members) for members in rows)
