"""Running the user function a second time on the fakes of the first: for a specialization that let go of its trace.

What is kept of the first run are the fake leaves as they came in, the specs of the inputs, and a fingerprint of the
graph. No real tensor is needed. The names of the forward's nodes must come out the same, since saved values are found by
them (docs/notes/tangents.md); the fingerprint tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import TangentError
from ..subclass.context import Unread
from ..subclass.paths import Path
from ..subclass.spec import Spec, WrapperSpec, is_ragged
from .closed_over import originals_of
from .counters import Groups
from .inputs import Argument, TracedInput, TracedInputs, traced_value
from .region import Captured, RunFunction, capture_in
from .session import Session
from .tape import Tape

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class FirstRun:
    """What is kept of a capture.

    Attributes:
        rows: path, spec, leaves, ``is_leaf`` and ``is_parameter`` of each input.
        originals, sizes, counters: as in `TracedInputs`.
        unread: what the guards leave out of the inputs' contexts.
        graph: the fingerprint.
    """

    mode: Any
    dynamic: bool
    decompositions: Mapping[Any, Callable[..., Any]]
    rows: tuple[tuple[Path, Spec, tuple[int, ...], bool, bool], ...]
    originals: tuple[Tensor, ...]
    sizes: tuple[Any, ...]
    counters: Groups
    unread: tuple[Unread, ...]
    graph: int

    @staticmethod
    def of(captured: Captured, decompositions: Mapping[Any, Callable[..., Any]]) -> FirstRun | None:
        """What to keep; None where a second run would give other symbols (ragged sizes, sizes that depend on data), or
        would ask the inputs themselves."""
        session, inputs = captured.session, captured.inputs
        if captured.metadata.asks_inputs:
            return None
        if captured.unbacked or session.recorder.symbols.data_dependent or any(_is_ragged(i.spec) for i in inputs):
            return None
        count = len(captured.originals) - len(originals_of(session.recorder))
        return FirstRun(
            session.mode,
            session.dynamic,
            decompositions,
            tuple((i.path, i.spec, i.leaves, i.is_leaf, i.is_parameter) for i in inputs),
            captured.originals[:count],
            tuple(captured.size_primals.values()),
            captured.counters,
            session.reads.left_out(),
            _fingerprint(captured),
        )

    def repeat(self, call: RunFunction, arguments: Sequence[Argument]) -> Tape:
        """The tape of a second run.

        Raises:
            TangentError: the function did something else than in the first run.
        """
        session = Session(dynamic=self.dynamic, decompositions=dict(self.decompositions), mode=self.mode)
        found = capture_in(session, call, arguments, self._inputs)
        if found.tape is None or _fingerprint(found) != self.graph:
            raise TangentError(
                "the function does something else when it is traced again for these tangents",
                expected="a function that does the same each time it runs",
                got="another graph than in the first run",
                fix="keep the first trace: retain_trace=True",
            )
        session.reads.leave_out(self.unread)
        return found.tape

    def _inputs(self, session: Session) -> TracedInputs:
        for fake in (*self.originals, *self.sizes):
            session.recorder.primal(fake, untouched=True)
        values = tuple(session.tracked(fake) for fake in self.originals)
        inputs = []
        for number, (path, spec, own, is_leaf, is_parameter) in enumerate(self.rows):
            traced = traced_value(session, number, spec, [values[k] for k in own], path)
            edge = torch.autograd.graph.get_gradient_edge(traced) if traced.requires_grad else None
            inputs.append(TracedInput(path, spec, own, is_leaf, traced, edge, is_parameter))
        return TracedInputs(tuple(inputs), values, self.originals, (), self.sizes, self.counters)


def _is_ragged(spec: Spec) -> bool:
    return isinstance(spec, WrapperSpec) and (any(map(is_ragged, spec.size)) or any(map(_is_ragged, spec.inners)))


def _fingerprint(captured: Captured) -> int:
    rows = []
    for node in captured.session.recorder.graph.nodes:
        if not str(node.target).startswith("tangents"):
            rows.append((node.name, str(node.target), repr(node.args), repr(node.kwargs)))
        if node is captured.boundary:
            break
    return hash((tuple(rows), tuple(map(str, captured.forward_nodes)), captured.differentiable))
