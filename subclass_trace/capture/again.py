"""Running the user function a second time on the fakes of the first: for a specialization that let go of its trace.

What is kept of the first run are the fake leaves as they came in, the specs of the inputs, and a fingerprint of the
graph. No real tensor is needed. The names of the forward's nodes must come out the same, since saved values are found by
them (docs/notes/tangents.md); the fingerprint tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx as fx

from .. import _torch
from ..errors import TangentError
from ..subclass.context import map_sizes, one_copy_each, snapshot
from ..subclass.numbers import NumberPlace
from ..subclass.paths import Path
from ..subclass.spec import Spec, WrapperSpec, is_ragged
from ..subclass.visit import map_spec
from .closed_over import originals_of
from .counters import Groups
from .graphs import is_draw
from .inputs import Argument, TracedInput, TracedInputs, traced_value
from .late_code import LateState
from .region import Captured, RunFunction, capture_in
from .session import Session
from .tape import Tape

Tensor = torch.Tensor
SizeAt = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class FirstRun:
    """What is kept of a capture.

    Attributes:
        rows: path, spec, leaves, ``is_leaf``, ``is_parameter`` and ``facts`` of each input.
        originals, sizes, counters: as in `TracedInputs`.
        graph, operations: fingerprints, of everything and of the operations alone.
        before, after: what was assumed of symbols when the run began, and once its first backward was traced.
        late: how user code in backwards is looked at.
        numbers: the symbols of numbers that the call brings.
    """

    mode: Any
    dynamic: bool
    decompositions: Mapping[Any, Callable[..., Any]]
    rows: tuple[tuple[Path, Spec, tuple[int, ...], bool, bool, Mapping[str, Any]], ...]
    originals: tuple[Tensor, ...]
    sizes: tuple[Any, ...]
    counters: Groups
    before: _torch.Assumptions
    after: _torch.Assumptions
    late: LateState
    numbers: Mapping[NumberPlace, Any]
    graph: int
    operations: int

    @staticmethod
    def of(captured: Captured, decompositions: Mapping[Any, Callable[..., Any]]) -> FirstRun | None:
        """What to keep; None where a second run would give other symbols (ragged sizes, sizes that depend on data)."""
        session, inputs = captured.session, captured.inputs
        if captured.unbacked or session.recorder.symbols.data_dependent or any(_is_ragged(i.spec) for i in inputs):
            return None
        if any(c.gradient_of is not None for c in captured.closed_over) or any(i.inside for i in inputs):
            return None
        assert session.assumptions is not None
        copies: dict[int, tuple[Any, Any]] = {}

        def own(context: Any) -> Any:
            with one_copy_each(copies):
                return snapshot(context)

        count = len(captured.originals) - len(originals_of(session.recorder))
        return FirstRun(
            session.mode,
            session.dynamic,
            decompositions,
            tuple(
                (
                    i.path,
                    map_spec(i.spec, tuple, own),
                    i.leaves,
                    i.is_leaf,
                    i.is_parameter,
                    dict(captured.metadata.asked_of(n).facts),
                )
                for n, i in enumerate(inputs)
            ),
            captured.originals[:count],
            tuple(captured.size_primals.values()),
            captured.counters,
            session.assumptions,
            _torch.assumptions_of(session.shape_env),
            session.recorder.late.anew(),
            dict(session.arguments),
            _fingerprint(captured),
            _operations(captured),
        )

    def repeat(self, call: RunFunction, arguments: Sequence[Argument], at: SizeAt | None = None) -> Tape:
        """The tape of a second run.

        Args:
            at: gives the value of a size: the run is for these sizes alone.

        Raises:
            TangentError: the function did something else than in the first run.
        """
        table = dict(self.decompositions)
        if at is not None:
            session = Session(dynamic=False, decompositions=table)
            session.recorder.late = self.late.anew()
            session.arguments = {place: at(n) for place, n in self.numbers.items()}
            found = capture_in(session, call, arguments, lambda s: self._inputs_at(s, at))
            same = found.tape is not None and _operations(found) == self.operations
            return self._tape(found, same)
        session = Session(dynamic=self.dynamic, decompositions=table, mode=self.mode)
        session.recorder.late = self.late.anew()
        session.arguments = self.numbers
        session.bind_numbers()
        _torch.restore_assumptions(session.shape_env, self.before)  # else symbols would be expressions of others
        try:
            found = capture_in(session, call, arguments, self._inputs)
        finally:
            _torch.restore_assumptions(session.shape_env, self.after)
        return self._tape(found, found.tape is not None and _fingerprint(found) == self.graph)

    def _tape(self, found: Captured, same: bool) -> Tape:
        if found.tape is None or not same:
            raise TangentError(
                "the function does something else when it is traced again for these tangents",
                expected="a function that does the same each time it runs",
                got="another graph than in the first run",
                fix="keep the first trace: retain_trace=True",
            )
        return found.tape

    def _inputs_at(self, session: Session, at: SizeAt) -> TracedInputs:
        with _torch.without_tracing():
            originals = _fakes_at(self.originals, at)
        rows: list[Any] = []
        for path, spec, *rest in self.rows:
            fixed = map_spec(spec, lambda sizes: [at(n) for n in sizes], lambda c: map_sizes(c, at))
            rows.append((path, fixed, *rest))
        fixed_run = replace(self, rows=tuple(rows), originals=originals, sizes=tuple(map(at, self.sizes)))
        return fixed_run._inputs(session)

    def _inputs(self, session: Session) -> TracedInputs:
        for fake in (*self.originals, *self.sizes):
            session.recorder.primal(fake, untouched=True)
        values = tuple(session.tracked(fake) for fake in self.originals)
        inputs = []
        for number, (path, spec, own, is_leaf, is_parameter, facts) in enumerate(self.rows):
            traced = traced_value(session, number, spec, [values[k] for k in own], path)
            edge = torch.autograd.graph.get_gradient_edge(traced) if traced.requires_grad else None
            inputs.append(TracedInput(path, spec, own, is_leaf, traced, edge, is_parameter, facts=facts))
        return TracedInputs(tuple(inputs), values, self.originals, (), self.sizes, self.counters)


def _is_ragged(spec: Spec) -> bool:
    return isinstance(spec, WrapperSpec) and (any(map(is_ragged, spec.size)) or any(map(_is_ragged, spec.inners)))


def _fingerprint(captured: Captured) -> int:
    rows = []
    for node in _read_nodes(captured):
        rows.append((node.name, str(node.target), repr(node.args), repr(node.kwargs)))
    return hash((tuple(rows), tuple(map(str, captured.forward_nodes)), captured.differentiable))


def _operations(captured: Captured) -> int:
    """Sizes aside: they are nodes of a graph with dynamic sizes alone."""
    operations = [n for n in _read_nodes(captured) if isinstance(n.target, _torch.OpOverload)]
    rows = [(n.name, str(n.target)) for n in operations if isinstance(n.meta["val"], (torch.Tensor, list, tuple))]
    return hash((tuple(rows), captured.differentiable))


def _fakes_at(fakes: Sequence[Tensor], at: SizeAt) -> tuple[Tensor, ...]:
    """Fake tensors of other sizes, which share memory as these do."""
    layouts = []
    for t in fakes:
        if t.layout is not torch.strided:
            raise TangentError("a backward for other sizes cannot be traced for a tensor without strides", got=t.layout)
        layouts.append(([at(n) for n in t.shape], [at(n) for n in t.stride()], at(t.storage_offset())))
    reach: dict[Any, int] = {}
    keys = [_torch.storage_ref(t) for t in fakes]
    for key, t, (size, stride, offset) in zip(keys, fakes, layouts, strict=True):
        elements = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True) if n)
        reach[key] = max(reach.get(key, 0), elements * t.element_size())
    memory = {
        key: torch.empty(reach[key], dtype=torch.uint8, device=t.device) for key, t in zip(keys, fakes, strict=True)
    }
    return tuple(
        torch.empty(0, dtype=t.dtype, device=t.device).set_(memory[key].untyped_storage(), offset, size, stride)
        for key, t, (size, stride, offset) in zip(keys, fakes, layouts, strict=True)
    )


def _read_nodes(captured: Captured) -> list[fx.Node]:
    """The nodes of the forward, last first, without those that only compute what nothing reads: some code computes
    values that it then keeps for later runs (DTensor does)."""
    boundary = captured.boundary
    nodes: list[fx.Node] = []
    for node in captured.session.recorder.graph.nodes:
        if not str(node.target).startswith("tangents"):
            nodes.append(node)
        if node is boundary:
            break
    live = {n for n in captured.forward_nodes if isinstance(n, fx.Node)}
    read = []
    for node in reversed(nodes):
        idle = isinstance(node.target, _torch.OpOverload) and not node.target._schema.is_mutable and not is_draw(node)
        if node in live or not idle or node.name in captured.saved_by_autograd:
            live.update(node.all_input_nodes)
            read.append(node)
    return read
