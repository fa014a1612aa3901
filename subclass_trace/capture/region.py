"""Capture of a region: the user function runs once, and everything the run time needs is read off the live tensors.

Steps: trace the inputs; run the function; read mutations and output kinds; snapshot the forward outputs; keep the fake
autograd graph as a `Tape`, from which the joint graph is traced. See docs/architecture.md.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.fx as fx

from .. import _torch
from ..errors import DataDependentError, SubclassTraceError, UnsupportedError
from ..plan import AssignmentPlan, MutationPlan, OutputPlan
from ..subclass.flatten import flatten
from ..subclass.paths import Path
from ..subclass.spec import Spec
from .aliasing import alias_groups
from .checkpoint import checkpoint_as_tags
from .functions import CapturedFunctions
from .graphs import finish_joint
from .inputs import Argument, DynamicDims, TracedInput, TracedInputs, trace_inputs
from .mutation import read_mutations, remember
from .outputs import OutputClassifier
from .recorder import Recorder
from .session import Session
from .tape import Tape, tensors_saved_by_autograd

Tensor = torch.Tensor


class Run(NamedTuple):
    """What the user function gave: flat results and their structure, the flat tensors that it was handed (by position
    in the call), and what it assigned to modules (those values stand after the results)."""

    results: list[Any]
    tree: Any
    handed: list[Any]
    assignments: tuple[AssignmentPlan, ...] = ()


RunFunction = Callable[[Sequence[Tensor]], Run]


@dataclass(frozen=True, eq=False)
class Captured:
    """What capture knows about a region. Sizes in specs may be SymInts of ``session.shape_env``.

    Attributes:
        inputs, closed_over: arguments, and tensors that the function closes over (with their gradient edges).
        leaf_primals: graph-input number of each dense leaf, closed-over ones included; ``originals``: its fake.
        size_primals: graph-input number -> SymInt, for inputs that are sizes.
        groups: overlapping leaves of which one is written.
        values: specs of the live tensors that the forward graph returns.
        mutations, outputs: see `plan`.
        differentiable: numbers of the values that get tangents.
        differentiated: numbers of the inputs (closed-over ones counted after the arguments) that get gradients.
        tape: the retained autograd graph; None when nothing is differentiable.
        saved_by_autograd: names of graph nodes that eager autograd would keep.
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
    mutations: tuple[MutationPlan, ...]
    outputs: tuple[OutputPlan, ...]
    result: Any
    assignments: tuple[AssignmentPlan, ...]
    differentiable: tuple[int, ...]
    differentiated: tuple[int, ...]
    tape: Tape | None
    saved_by_autograd: frozenset[str]
    grad_mode_after: bool | None

    @property
    def all_inputs(self) -> tuple[TracedInput | ClosedOverInput, ...]:
        """Arguments, then closed-over tensors: what input numbers count."""
        return (*self.inputs, *self.closed_over)

    def forward_graph(self, also: Sequence[str] = ()) -> fx.GraphModule:
        """The functional forward graph, for a region without a backward; nodes named in ``also`` are kept in it."""
        by_name = {n.name: n for n in self.session.recorder.graph.nodes} if also else {}
        kept = [by_name[n] for n in also if n in by_name]
        return finish_joint(self.session, self.forward_nodes, [], self.boundary, self.groups, kept)


@dataclass(frozen=True, eq=False)
class ClosedOverInput:
    """A closed-over tensor as an input: the tensor, its spec, the graph inputs of its leaves."""

    value: Tensor
    path: Path
    spec: Spec
    leaves: tuple[int, ...]  # places in the leaf table
    edge: Any


def capture(
    call: RunFunction,
    arguments: Sequence[Argument],
    *,
    dynamic: DynamicDims,
    any_dynamic: bool,
    decompositions: dict[Any, Callable[..., Any]],
) -> Captured:
    """Capture one region.

    Args:
        call: runs the user function on the traced tensors (one per argument).
        arguments: the distinct tensors of the call.
        dynamic: which sizes become symbols; ``any_dynamic`` False promises that none does.
        decompositions: operation -> function, applied while recording.

    Raises:
        SubclassTraceError: a refusal, with the path or line it is about. The caller's tensors are unchanged.
    """
    session = Session(dynamic=any_dynamic, decompositions=decompositions)
    with _same_random_state():
        return _Capture(session, arguments).run(call, dynamic)


@contextlib.contextmanager
def _same_random_state() -> Iterator[None]:
    """Tracing draws no random numbers: if the generator moved, the function seeded it, which a graph cannot do again."""
    before = torch.get_rng_state()
    yield
    with _torch.no_modes():
        if not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            raise UnsupportedError(
                "the region sets the state of the random generator",
                expected="a function that draws random numbers and leaves seeding to its caller",
                got="torch.manual_seed, set_rng_state or fork_rng inside the region",
                fix="seed before the call, or pass a torch.Generator",
            )


class _Capture:
    """The steps of one capture, in order."""

    def __init__(self, session: Session, arguments: Sequence[Argument]) -> None:
        self.session, self.recorder, self.arguments = session, session.recorder, arguments
        self.values: list[Tensor] = []

    def run(self, call: RunFunction, dynamic: DynamicDims) -> Captured:
        recorder = self.recorder
        grad_mode = torch.is_grad_enabled()
        with self.session.modes(), _restored_versions(recorder) as versions:
            inputs = trace_inputs(self.session, self.arguments, dynamic)
            before = remember(inputs)
            run = self._call(call, inputs)
            results = run.results
            after = torch.is_grad_enabled()
            torch.set_grad_enabled(grad_mode)
            mutations = read_mutations(inputs, before, recorder, self.arguments, self._emit)
            mutations += self._closed_over_mutations(len(inputs.inputs), versions)
            self._check_closed_over(results)
            classifier = OutputClassifier(inputs, run.handed, mutations, recorder, results, self._emit)
            outputs = [classifier.classify(o) for o in results]
            flat = [flatten(t) for t in self.values]
            forward = [recorder.node_of(leaf) for leaves, _ in flat for leaf in leaves]
            forward += [recorder.node_of(s) for s in classifier.sizes]
            boundary = next(iter(reversed(recorder.graph.nodes)), None)
            rows = self._edges(inputs, mutations)
        return self._finish(
            inputs,
            mutations,
            outputs,
            classifier.sizes,
            flat,
            forward,
            boundary,
            rows,
            run,
            after if after != grad_mode else None,
        )

    # ---------------------------------------------------------------- steps
    def _call(self, call: RunFunction, inputs: TracedInputs) -> Run:
        self.recorder.start_at(sys._getframe())
        hooks: Any = contextlib.nullcontext()
        if _torch.saved_tensor_hooks_active():  # the user's hooks see our saved values at run time instead
            hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
        try:
            functions = CapturedFunctions(self.recorder)
            with hooks, checkpoint_as_tags(self.recorder), _typed_errors(self.recorder), functions:
                return call([i.traced for i in inputs.inputs])
        finally:
            self.recorder.start_at(None)  # a frame holds everything that its callers hold

    def _emit(self, t: Tensor) -> int:
        self.values.append(t)
        return len(self.values) - 1

    def _edges(self, inputs: TracedInputs, mutations: Sequence[MutationPlan]) -> list[tuple[int, Any]]:
        """(input number, gradient edge) for each input to differentiate."""
        starts = {m.input for m in mutations if m.starts_grad}
        rows = []
        for n, i in enumerate(inputs.inputs):
            if i.edge is not None:
                rows.append((n, i.edge))
            elif n in starts:
                rows.append((n, torch.autograd.graph.get_gradient_edge(i.traced)))
        for k, c in enumerate(self.recorder.closed_over):
            if c.value.requires_grad:
                rows.append((len(inputs.inputs) + k, torch.autograd.graph.get_gradient_edge(c.value)))
        return rows

    def _finish(
        self,
        inputs: TracedInputs,
        mutations: Sequence[MutationPlan],
        outputs: Sequence[OutputPlan],
        sizes: Sequence[Any],
        flat: Sequence[tuple[list[Tensor], Spec]],
        forward: Sequence[Any],
        boundary: fx.Node | None,
        rows: Sequence[tuple[int, Any]],
        run: Run,
        grad_mode_after: bool | None,
    ) -> Captured:
        recorder = self.recorder
        tracked = {m.value for m in mutations if m.differentiable}
        mutated = {m.value for m in mutations if m.value is not None}
        differentiable = [
            k
            for k, t in enumerate(self.values)
            if t.requires_grad and t.grad_fn is not None and (k not in mutated or k in tracked)
        ]
        edges = [e for _, e in rows]
        leaf_primals, size_primals = self._primals(inputs)
        originals = [*inputs.originals, *self._closed_fakes()]
        written = _written_groups(originals, leaf_primals, recorder)
        tape = None
        saved: frozenset[str] = frozenset()
        if differentiable and edges:
            live = [self.values[k] for k in differentiable]
            tape = Tape(self.session, live, edges, forward, boundary, written)
            kept = tensors_saved_by_autograd(live, edges)
            saved = frozenset(recorder.node_of(t).name for t in kept if recorder.knows(t))
        return Captured(
            session=self.session,
            inputs=inputs.inputs,
            closed_over=tuple(self._closed_over(leaf_primals)),
            leaf_primals=tuple(leaf_primals),
            originals=tuple(originals),
            size_primals=size_primals,
            groups=written,
            values=tuple(spec for _, spec in flat),
            forward_nodes=tuple(forward),
            boundary=boundary,
            size_outputs=tuple(sizes),
            mutations=tuple(mutations),
            outputs=tuple(outputs),
            result=run.tree,
            assignments=run.assignments,
            differentiable=tuple(differentiable) if tape else (),
            differentiated=tuple(n for n, _ in rows) if tape else (),
            tape=tape,
            saved_by_autograd=saved,
            grad_mode_after=grad_mode_after,
        )

    # ---------------------------------------------------------------- closed-over tensors
    def _primals(self, inputs: TracedInputs) -> tuple[list[int], dict[int, Any]]:
        """Graph-input number of each dense leaf, and the graph inputs that are sizes."""
        count = len(inputs.originals)
        sizes = {count + k: s for k, s in enumerate(inputs.sizes)}
        closed = [c.primal for c in self.recorder.closed_over if c.primal is not None]
        return [*range(count), *closed], sizes

    def _closed_fakes(self) -> list[Tensor]:
        fakes = [self.recorder.lifted_fake(c.value) for c in self.recorder.closed_over if c.primal is not None]
        return [f for f in fakes if f is not None]

    def _closed_over(self, leaf_primals: Sequence[int]) -> Iterator[ClosedOverInput]:
        place = {p: k for k, p in enumerate(leaf_primals)}
        primal_of = {id(c.value): c.primal for c in self.recorder.closed_over if c.primal is not None}
        for c in self.recorder.closed_over:
            with _torch.no_modes():
                leaves, spec = flatten(c.value)
                primals = [primal_of[id(t)] for t in leaves]
            edge = torch.autograd.graph.get_gradient_edge(c.value) if c.value.requires_grad else None
            yield ClosedOverInput(c.value, c.path, spec, tuple(place[p] for p in primals if p is not None), edge)

    def _check_closed_over(self, results: Sequence[Any]) -> None:
        """Autograd keeps the real tensor that a function closes over; if the region writes it too, no tape can be kept."""
        tracked = any(isinstance(o, Tensor) and o.grad_fn is not None for o in results)
        for c in self.recorder.closed_over:
            fake = self.recorder.lifted_fake(c.value) if c.primal is not None else None
            if tracked and fake is not None and self.recorder.was_written(fake):
                raise UnsupportedError(
                    "the region writes a tensor that it closes over, and has differentiable results",
                    path=c.path,
                    expected="closed-over tensors that are only read, where gradients are wanted",
                    got=f"a tensor of shape {tuple(c.value.shape)} that is written in place",
                    fix="pass the tensor as an argument, or register it as a buffer of the module",
                )

    def _closed_over_mutations(self, first: int, versions: Mapping[int, tuple[Tensor, int]]) -> list[MutationPlan]:
        """A closed-over dense tensor that was written in place: its new contents are a forward value too."""
        plans = []
        for k, c in enumerate(self.recorder.closed_over):
            fake = self.recorder.lifted_fake(c.value) if c.primal is not None else None
            if fake is not None and self.recorder.was_written(fake):
                bumps = c.value._version - versions[id(c.value)][1] if id(c.value) in versions else 0
                plans.append(MutationPlan(first + k, self._emit(fake), (0,), version_bumps=bumps))
        return plans


def _written_groups(
    originals: Sequence[Tensor], leaf_primals: Sequence[int], recorder: Recorder
) -> tuple[tuple[int, ...], ...]:
    groups = []
    for members in alias_groups(originals):
        if any(recorder.was_written(originals[k]) for k in members):
            groups.append(tuple(leaf_primals[k] for k in members))
    return tuple(groups)


@contextlib.contextmanager
def _restored_versions(recorder: Any) -> Iterator[dict[int, tuple[Tensor, int]]]:
    """In-place operations on closed-over tensors move their version counters while traced: move them back.

    Yields id -> (tensor, version before the region touched it).
    """
    versions: dict[int, tuple[Tensor, int]] = {}
    lift = recorder.lift

    def noting(real: Tensor) -> Tensor:
        if id(real) not in versions and not real.is_inference():
            versions[id(real)] = (real, real._version)
        return lift(real)  # type: ignore[no-any-return]

    recorder.lift = noting
    try:
        yield versions
    finally:
        del recorder.lift
        for real, version in versions.values():
            if real._version != version:
                _torch.set_version(real, version)


@contextlib.contextmanager
def _typed_errors(recorder: Any) -> Iterator[None]:
    """What torch raises for data-dependent code becomes a typed error with the user's line."""
    try:
        yield
    except SubclassTraceError:
        raise
    except _torch.DATA_DEPENDENT_ERRORS as error:
        raise DataDependentError(
            "the region's control flow or sizes depend on the values inside a tensor",
            path=_user_line(error, recorder),
            expected="sizes and branches that follow from the inputs' metadata",
            got=" ".join(str(error).split())[:300],
            fix="use torch.where or torch.cond, or move this part out of the region",
        ) from error
    except RuntimeError as error:
        if ".numpy()" not in str(error) and ".tolist()" not in str(error) and "data_ptr" not in str(error):
            raise
        raise DataDependentError(
            "the region reads the values inside a tensor (.numpy(), .tolist(), data_ptr())",
            path=_user_line(error, recorder),
            expected="operations whose result is a tensor",
            got=" ".join(str(error).split())[:300],
            fix="move this part out of the region",
        ) from error
    except AssertionError as error:
        if "fake mode" not in str(error):
            raise
        raise UnsupportedError(
            "the region met a tensor of another trace",
            path=_user_line(error, recorder),
            got=" ".join(str(error).split())[:300],
            fix="do not keep tensors from inside a region in Python state that another region reads",
        ) from error


def _user_line(error: BaseException, recorder: Any) -> str | None:
    tb, found = error.__traceback__, None
    while tb is not None:
        code = tb.tb_frame.f_code
        if recorder.is_user_code(code):
            found = f"{code.co_filename}:{tb.tb_lineno}"
        tb = tb.tb_next
    return found
