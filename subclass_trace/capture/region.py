"""Capture of a region: the user function runs once, and everything the run time needs is read off the live tensors.

Steps: trace the inputs; run the function; read mutations and output kinds; snapshot the forward outputs; keep the fake
autograd graph as a `Tape`, from which the joint graph is traced. See docs/architecture.md.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.fx as fx

from .. import _torch
from ..errors import NeedsEager, UnsupportedError
from ..plan import (
    ContainerRow,
    MutationPlan,
    OutputPlan,
    StatePlan,
    ValueAlias,
    ValueOutput,
    ViewOutput,
)
from ..subclass.flatten import flatten, leaves_of
from ..subclass.numbers import NumberPlace
from ..subclass.paths import Path
from ..subclass.spec import Spec, WrapperSpec, sizes_in
from .aliasing import alias_groups
from .checkpoint import checkpoint_as_tags
from .closed_over import ClosedOverInput, ClosedOverTensors, originals_of, restored_versions
from .diagnostics import typed_errors
from .functionalize import overlapping_views
from .functions import CapturedFunctions
from .graphs import finish_joint, read_by_backward
from .inputs import Argument, DynamicDims, TracedInput, TracedInputs, trace_inputs
from .late_code import LateState, late_module_hooks
from .lending import Lending, check_tensors
from .metadata import MetadataReads
from .mutation import check_members, read_mutations, remember
from .outputs import OutputClassifier, check_escapes, is_own_leaf, leaf_inside
from .own_attributes import Facts, own_attributes
from .places import groups_by_place, scattered_roots
from .random_state import RandomState
from .recorder import Recorder
from .run import Run, with_attributes
from .session import Session
from .sharing import Sharing
from .tape import Tape, connected, leaves_behind, saved_by_autograd, saves_out_of_sight
from .torch_methods import torch_methods
from .types_as_eager import traced_types

Tensor = torch.Tensor


#: runs the function on the traced inputs; its second argument is `StandIns.adopt`, the third has the numbers that stand in
#: their places meanwhile, and the fourth tells of an object if an input has it
RunFunction = Callable[[Sequence[Tensor], Callable[..., None], Mapping[NumberPlace, Any], Callable[[Any], bool]], Run]


@dataclass(frozen=True, eq=False)
class Captured:
    """What capture knows about a region. Sizes in specs may be SymInts of ``session.shape_env``.

    Attributes:
        inputs, closed_over: arguments, and tensors that the function closes over (with their gradient edges).
        leaf_primals: graph-input number of each dense leaf, closed-over ones included; ``originals``: its fake.
        size_primals: graph-input number -> SymInt, for inputs that are sizes.
        groups: overlapping leaves of which one is written.
        values: specs of the live tensors that the forward graph returns.
        mutations, outputs, aliases, fresh_leaves, inference, dangling,
            unbacked: see `plan`.
        views: numbers of the values that are views when the region runs eagerly.
        differentiable: numbers of the values that get tangents.
        differentiated: numbers of the inputs (closed-over ones counted after the arguments) that get gradients.
        tape: the retained autograd graph; None when nothing is differentiable.
        saved_by_autograd: names of graph nodes that eager autograd would keep.
        saves_out_of_sight: it keeps others as well, which cannot be asked for.
        metadata: what was asked of the inputs beside their values.
        apart: see `plan`.
        lending: what results may have of the contexts of inputs.
    """

    session: Session
    inputs: tuple[TracedInput, ...]
    closed_over: tuple[ClosedOverInput, ...]
    leaf_primals: tuple[int, ...]
    originals: tuple[Tensor, ...]
    size_primals: Mapping[int, Any]
    groups: tuple[tuple[int, ...], ...]
    values: tuple[Spec, ...]
    forward_nodes: tuple[Any, ...]
    boundary: fx.Node | None
    size_outputs: tuple[Any, ...]
    unbacked: tuple[tuple[Any, int], ...]
    mutations: tuple[MutationPlan, ...]
    outputs: tuple[OutputPlan, ...]
    aliases: tuple[ValueAlias, ...]
    fresh_leaves: tuple[int, ...]
    inference: tuple[tuple[int, tuple[bool, ...]], ...]
    dangling: tuple[int, ...]
    views: frozenset[int]
    result: Any
    assignments: tuple[StatePlan, ...]
    containers: tuple[ContainerRow, ...]
    differentiable: tuple[int, ...]
    differentiated: tuple[int, ...]
    tape: Tape | None
    saved_by_autograd: frozenset[str]
    saves_out_of_sight: bool
    grad_mode_after: bool | None
    metadata: MetadataReads
    apart: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    lending: Lending

    def kept(self, graph: fx.GraphModule) -> frozenset[str]:
        """What eager autograd would keep, by its name in a finished graph, as far as its nodes tell."""
        names = graph.meta["names"]
        return frozenset(names[n] for n in self.saved_by_autograd if n in names)

    def served(self, graph: fx.GraphModule) -> frozenset[str]:
        """What eager autograd would keep, and what nodes may keep that do not tell."""
        known = self.kept(graph)
        return known | read_by_backward(graph.graph) if self.saves_out_of_sight else known

    @property
    def all_inputs(self) -> tuple[TracedInput | ClosedOverInput, ...]:
        """Arguments, then closed-over tensors: what input numbers count."""
        return (*self.inputs, *self.closed_over)

    def forward_graph(self, also: Sequence[str] = ()) -> fx.GraphModule:
        """The functional forward graph, for a region without a backward; nodes named in ``also`` are kept in it."""
        by_name = {n.name: n for n in self.session.recorder.graph.nodes} if also else {}
        kept = [by_name[n] for n in also if n in by_name]
        return finish_joint(self.session, self.forward_nodes, [], self.boundary, self.groups, kept)


def capture(
    call: RunFunction,
    arguments: Sequence[Argument],
    *,
    dynamic: DynamicDims,
    any_dynamic: bool,
    decompositions: dict[Any, Callable[..., Any]],
    session: Session | None = None,
    generators: Sequence[torch.Generator] = (),
    late: LateState | None = None,
) -> Captured:
    """Capture one region.

    Args:
        call: runs the user function on the traced tensors (one per argument).
        arguments: the distinct tensors of the call.
        dynamic: which sizes become symbols; ``any_dynamic`` False promises that none does.
        decompositions: operation -> function, applied while recording.
        session: where to trace, if another tracer has made the symbols; else a new one.
        generators: random generators that the function may use, as far as they are known.
        late: how user code in backwards is looked at.

    Raises:
        SubclassTraceError: a refusal, with the path or line it is about. The caller's tensors are unchanged.
    """

    here = session or Session(dynamic=any_dynamic, decompositions=decompositions)
    here.recorder.late = LateState() if late is None else late.anew()
    with RandomState(generators if session is None else None, here.recorder).watching():
        return _Capture(here, arguments).run(call, lambda s: trace_inputs(s, arguments, dynamic))


class _Capture:
    """The steps of one capture, in order."""

    def __init__(self, session: Session, arguments: Sequence[Argument]) -> None:
        self.session, self.recorder, self.arguments = session, session.recorder, arguments
        self.values: list[Tensor] = []

    def run(self, call: RunFunction, make_inputs: Callable[[Session], TracedInputs]) -> Captured:
        recorder = self.recorder
        grad_mode = torch.is_grad_enabled()
        with self.session.modes(), restored_versions(recorder) as versions, contextlib.ExitStack() as stack:
            inputs = make_inputs(self.session)
            stack.callback(inputs.forget)
            given = inputs.inputs
            lending = Lending.of(self.session.shape_env, [row.traced for row in given])
            facts = own_attributes(inputs, self.session.guards_attributes)
            self.session.wrappers = [(row.path, row.traced) for row in given]
            before = remember(inputs)
            run = self._call(call, inputs, facts, lending)
            recorder.write_assertions()
            run = with_attributes(run, inputs, before, recorder, self.gradients)
            after = torch.is_grad_enabled()
            torch.set_grad_enabled(grad_mode)
            closed = ClosedOverTensors(recorder, self.stand_ins, inputs, self.gradients.facts())
            mine = inputs
            inputs, arguments, states = closed.among(inputs, self.arguments, before)
            first = len(mine.inputs)
            others = Lending.of(self.session.shape_env, [row.traced for row in inputs.inputs[first:]], first)
            lending = lending.beside(others).with_elsewhere(run.elsewhere).with_made(run.made)
            self.lending = lending
            results = [self._handed_on(r) for r in run.results]
            every = [t for t in (*results, *(i.traced for i in inputs.inputs)) if isinstance(t, Tensor)]
            mutations = read_mutations(
                inputs,
                states,
                recorder,
                arguments,
                self._emit,
                partial(_leads_to, every),
                lending.in_place_of,
            )
            mutations += closed.mutations(versions, self._emit)
            closed.check(results)
            check_tensors(lending, mine, closed.rows, mutations, results, recorder)
            contents = {n for m in mutations for n in (m.value, *m.memory.values()) if n is not None}
            replaced = [m for m in mutations if m.value is not None and m.replaced]
            sharing = Sharing(inputs, recorder)
            results = [self.stand_ins.result(o) for o in results]
            check_members(results, mutations, inputs, arguments)
            classifier = OutputClassifier(inputs, states, run.handed, mutations, recorder, results, sharing, self._emit)
            outputs = [classifier.classify(o) for o in results]
            aliases = sharing.aliases(self.values, contents, replaced, self._emit)
            if aliases or (torch.is_inference_mode_enabled() and any(map(_views_input, outputs))):
                self.metadata.depends_on("is_inference", mine)
            odd = [k for k, a in enumerate(self.arguments) if a.value.is_inference()]  # a normal one has a version
            self.metadata.depends_on("is_inference", mine, odd)
            flat = [flatten(t) for t in self.values]
            for k, (_, spec) in enumerate(flat):
                check_escapes(spec, Path("result").item(k))
            classifier.need(n for _, spec in flat if isinstance(spec, WrapperSpec) for n in sizes_in(spec))
            classifier.need(a.delta for row in aliases for a in row.leaves if a is not None)
            forward = [recorder.node_of(leaf) for leaves, _ in flat for leaf in leaves]
            forward += [recorder.node_of(s) for s in classifier.sizes]
            boundary = next(iter(reversed(recorder.graph.nodes)), None)
            rows = self._edges(inputs, mutations)
            leaves = self._fresh_leaves(contents, results)
        return self._finish(
            mine,
            closed.rows,
            mutations,
            outputs,
            aliases,
            classifier.sizes,
            classifier.unbacked,
            flat,
            forward,
            boundary,
            rows,
            leaves,
            run,
            after if after != grad_mode else None,
        )

    # ---------------------------------------------------------------- steps
    def _handed_on(self, result: Any) -> Any:
        """The mark of an object that is a result and is that of an input; any other result itself."""
        real = self.stand_ins.back.get(id(result), result)
        mark = self.lending.result(real)
        return result if mark is real else mark

    def _call(self, call: RunFunction, inputs: TracedInputs, facts: Facts, lending: Lending) -> Run:
        recorder = self.recorder
        recorder.start_at(sys._getframe())
        try:
            self.metadata = MetadataReads(inputs, facts)
            functions = CapturedFunctions(recorder, self.metadata)
            self.stand_ins, self.gradients = functions.stand_ins, (gradients := functions.gradients)
            asked = self.metadata.watching()
            hooks = late_module_hooks(recorder)
            with (
                checkpoint_as_tags(recorder),
                traced_types(inputs.inputs, recorder.classes),
                typed_errors(recorder),
                torch_methods(),
                hooks,
                functions,
                _torch.watched_engine(gradients.backward, gradients.check_graphs, gradients.check_hooks),
                _torch.transformed_inputs(functions.stand_ins.swapped),
                _torch.scripted_calls(functions.scripted),
                self.session.in_their_places(),
                asked,
            ):
                traced = [i.traced for i in inputs.inputs]
                run = call(traced, functions.stand_ins.adopt, self.session.arguments, lending.lends)
            if recorder.views.reshaped:  # of a result alone, eager's own way may be left to the call
                stale = (o for o in run.results if not isinstance(o, Tensor) or recorder.views.by_place(o) is None)
                functions.check_histories(stale, "the results")
            return run
        finally:
            self.recorder.start_at(None)  # a frame holds everything that its callers hold

    def _emit(self, t: Tensor) -> int:
        self.values.append(t)
        return len(self.values) - 1

    def _fresh_leaves(self, contents: set[int], results: Sequence[Any]) -> list[int]:
        """Values that the region made autograd leaves, by ``requires_grad_()``.

        Raises:
            UnsupportedError: another value was computed from one: its gradient would belong to a result of the region.
        """
        numbers = [k for k, t in enumerate(self.values) if k not in contents and is_own_leaf(t)]
        leaves = {
            id(t) for t in (*(self.values[k] for k in numbers), *results) if isinstance(t, Tensor) and is_own_leaf(t)
        }
        # A view of a leaf is made of it anew.
        others = [t for t in results if isinstance(t, Tensor) and id(t._base) not in leaves] if leaves else []
        todo: list[Any] = [t.grad_fn for t in (*self.values, *others) if leaves and t.grad_fn is not None]
        seen: set[Any] = set()
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            todo += [n for n, _ in node.next_functions]
            if id(getattr(node, "variable", None)) in leaves:
                raise leaf_inside(node.variable)
        return numbers

    def _edges(self, inputs: TracedInputs, mutations: Sequence[MutationPlan]) -> list[tuple[int, Any]]:
        """(input number, gradient edge) for each input that requires grad."""
        starts = {m.input for m in mutations if m.starts_grad}
        rows = []
        for n, i in enumerate(inputs.inputs):
            if i.edge is not None:
                rows.append((n, i.edge))
            elif n in starts and not torch.is_inference_mode_enabled():
                rows.append((n, torch.autograd.graph.get_gradient_edge(i.traced)))
        return rows

    def _finish(
        self,
        inputs: TracedInputs,
        closed: Sequence[ClosedOverInput],
        mutations: Sequence[MutationPlan],
        outputs: Sequence[OutputPlan],
        aliases: Sequence[ValueAlias],
        sizes: Sequence[Any],
        unbacked: Mapping[Any, int],
        flat: Sequence[tuple[list[Tensor], Spec]],
        forward: Sequence[Any],
        boundary: fx.Node | None,
        rows: Sequence[tuple[int, Any]],
        fresh_leaves: Sequence[int],
        run: Run,
        grad_mode_after: bool | None,
    ) -> Captured:
        recorder = self.recorder
        tracked = {m.value for m in mutations if m.differentiable}
        mutated = {n for m in mutations for n in (m.value, *m.memory.values()) if n is not None}
        differentiable = [
            k
            for k, t in enumerate(self.values)
            if t.requires_grad and t.grad_fn is not None and (k not in mutated or k in tracked)
        ]
        live = [self.values[k] for k in differentiable]
        rows = connected(live, rows)
        _check_shapes([*inputs.inputs, *closed], [n for n, _ in rows], mutations)
        edges = [e for _, e in rows]
        leaf_primals, size_primals = self._primals(inputs)
        originals = [*inputs.originals, *originals_of(recorder)]
        written = _written_groups(originals, leaf_primals, recorder, forward, inputs.leaf_paths)
        tape = None
        saved: frozenset[str] = frozenset()
        out_of_sight = False
        self._check_leaves(leaves_behind(live, edges), inputs)
        if differentiable and edges:
            with self.session.modes():  # an output that its own node saves is unpacked by `detach`
                by_node = saved_by_autograd(live, edges, recorder.sets_hooks)
            kept = [t for tensors in by_node.values() for t in tensors]
            served = {n: None for t in kept if recorder.knows(t) and isinstance(n := recorder.node_of(t), fx.Node)}
            saved = frozenset(n.name for n in served)
            out_of_sight = saves_out_of_sight(live, edges)
            traced = [inputs.inputs[n].traced for n, _ in rows if n < len(inputs.inputs)]
            everyone: list[TracedInput | ClosedOverInput] = [*inputs.inputs, *closed]
            paths = [everyone[n].path for n, _ in rows]
            tape = Tape(self.session, live, edges, forward, boundary, written, tuple(served), traced, paths)
        return Captured(
            session=self.session,
            inputs=inputs.inputs,
            closed_over=tuple(closed),
            leaf_primals=tuple(leaf_primals),
            originals=tuple(originals),
            size_primals=size_primals,
            groups=written,
            values=tuple(spec for _, spec in flat),
            forward_nodes=tuple(forward),
            boundary=boundary,
            size_outputs=tuple(sizes),
            unbacked=tuple(unbacked.items()),
            mutations=tuple(mutations),
            outputs=tuple(outputs),
            aliases=tuple(replace(a, within=a.within and tape is not None) for a in aliases),
            fresh_leaves=tuple(fresh_leaves),
            inference=tuple(_of_other_mode(self.values, mutated - _results(outputs), differentiable)),
            views=frozenset(k for k, t in enumerate(self.values) if t._is_view()),
            dangling=() if tape else tuple(differentiable),
            result=run.tree,
            assignments=run.assignments,
            containers=run.containers,
            differentiable=tuple(differentiable) if tape else (),
            differentiated=tuple(n for n, _ in rows) if tape else (),
            tape=tape,
            saved_by_autograd=saved,
            saves_out_of_sight=out_of_sight,
            grad_mode_after=grad_mode_after,
            metadata=self.metadata,
            apart=self.gradients.apart(),
            lending=self.lending,
        )

    def _check_leaves(self, leaves: Sequence[Tensor], inputs: TracedInputs) -> None:
        """Refuse an input that some code took past the trace and differentiated: that gradient would be lost."""
        for leaf in leaves:
            if not any(map(_torch.is_fake, leaves_of(leaf))):
                traced = self.stand_ins.known(leaf)
                raise UnsupportedError(
                    "code inside the region takes a tensor of the caller's, which requires grad, by ways that cannot be traced",
                    path=next((i.path for i in inputs.inputs if i.traced is traced), None),
                    expected="tensors that Python code of the region reads; or that require no grad, or under torch.no_grad()",
                    got="operations on the tensor itself, as under torch._C.DisableTorchFunction",
                    fix="pass the tensor as an argument, or move this part out of the region",
                )

    # ---------------------------------------------------------------- closed-over tensors
    def _primals(self, inputs: TracedInputs) -> tuple[list[int], dict[int, Any]]:
        """Graph-input number of each dense leaf, and the graph inputs that are sizes."""
        count = len(inputs.originals)
        sizes = {count + k: s for k, s in enumerate(inputs.sizes)}
        closed = [c.primal for c in self.recorder.closed_over if c.primal is not None]
        return [*range(count), *closed], sizes


def _check_shapes(inputs: Sequence[Any], numbers: Sequence[int], mutations: Sequence[MutationPlan]) -> None:
    """Autograd takes the shape of a leaf when it is used first: in eager that may be after it was changed.

    Args:
        numbers: of the inputs that get gradients.

    Raises:
        UnsupportedError: the region differentiates what it computes of a leaf whose shape it changes in place.
    """
    for m in mutations:
        if m.metadata is not None and m.input in numbers and getattr(inputs[m.input], "is_leaf", True):
            raise UnsupportedError(
                "the region differentiates what it computes of a leaf whose shape it changes in place",
                path=inputs[m.input].path,
                expected="the shape that gradients of it have",
                got=f"the shape {tuple(m.metadata.size)}",  # type: ignore[union-attr]
                fix="change the shape outside of the region, or out of place: y = x.t()",
            )


def _leads_to(values: Sequence[Tensor], leaf: Tensor) -> bool:
    """Was one of these values computed of a leaf?"""
    return any(t is leaf for t in leaves_behind(values, []))


def _views_input(o: OutputPlan) -> bool:
    return isinstance(o, ViewOutput) and o.of_input


def _results(outputs: Sequence[OutputPlan]) -> set[int]:
    return {o.value for o in outputs if isinstance(o, ValueOutput)}


def _of_other_mode(
    values: Sequence[Tensor], skip: Collection[int], differentiable: Sequence[int]
) -> Iterator[tuple[int, tuple[bool, ...]]]:
    """(number, is it of inference mode, then its leaves) of values that are so where the caller is not, or the reverse.

    Raises:
        UnsupportedError: the region leaves the caller's inference mode to make a differentiable result.
    """
    mode = torch.is_inference_mode_enabled()
    for k, value in enumerate(values):
        flags = (value.is_inference(), *(t.is_inference() for t in leaves_of(value)))
        if k not in skip and any(flag != mode for flag in flags):
            if k in differentiable:
                raise UnsupportedError(
                    "the region leaves inference mode to make a differentiable result",
                    expected="results without gradients, or a call outside of inference mode",
                    got=f"a tensor of shape {tuple(value.shape)} that requires grad",
                    fix="leave inference mode around the region",
                )
            yield k, flags


def _written_groups(
    originals: Sequence[Tensor],
    leaf_primals: Sequence[int],
    recorder: Recorder,
    values: Sequence[Any],
    paths: Sequence[Path],
) -> tuple[tuple[int, ...], ...]:
    """Leaves (by the numbers of their graph inputs) that become one graph input.

    Args:
        values: the forward's results.
        paths: of the leaves, but for those that are closed over.

    Raises:
        NeedsEager: one of them is read otherwise than it is in memory.
    """
    rows: list[Sequence[int]] = [
        members for members in alias_groups(originals) if any(recorder.was_written(originals[k]) for k in members)
    ]
    lazy = next((k for row in rows for k in row if originals[k].is_conj() or originals[k].is_neg()), None)
    if lazy is not None:  # one graph input cannot stand for memory as it is and as it is read
        raise NeedsEager(
            "arguments share memory that the region writes, and one of them has a conjugate or negative bit",
            path=paths[lazy] if lazy < len(paths) else None,
            expected="views without such a bit",
            got=f"a {originals[lazy].dtype} tensor of shape {tuple(originals[lazy].shape)}",
            fix="pass x alone, and call x.conj() inside of the region",
        )
    if recorder.mutable:
        rows = [*groups_by_place(originals, leaf_primals, recorder, rows, values)]
    groups = [tuple(leaf_primals[k] for k in members) for members in rows]
    if recorder.mutable:  # what is written through an overlapping view is seen as a flat piece of memory too
        grouped = {n for members in groups for n in members}
        views = {*overlapping_views(recorder.graph).values(), *scattered_roots(recorder.graph)}
        roots = {str(root.target) for root in views}
        alone = (n for n in leaf_primals if n not in grouped and f"primals_{n + 1}" in roots)
        groups += [(n,) for n in alone]
    return tuple(groups)
