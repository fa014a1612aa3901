"""From steps to a tape: put them in the eager engine's order, and write an fx graph.

The graph's placeholders are what the engine hands over, one each (``inputs_3``, ``sizes_0``,
``hooks_1``, ``packed_0``). Everything else is a call. ``node.meta["kind"]`` and
``node.meta["node"]`` say what it is and to which autograd node (a row of `Tape.nodes`) it belongs.

Note [Where unpacking happens]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
C++ asks for the unpacked value ahead of the node. Here an unpack step is written right before the
first step that reads it, after hooks of the node. So no more is unpacked at a time than eager mode
has. An unpack hook whose value nobody reads still runs, with its node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx

from ..torch_api.graphs import graph_module
from .order import LEAF as _LEAF
from .order import Walked, engine_order, priorities, walk
from .steps import ON_DEMAND, Step, replace_steps
from .text import counts, describe

#: what the engine hands to each run, in the order in which the program takes it
GIVEN = ("inputs", "sizes", "scalars", "hooks", "packed")


class Layout:
    """The inputs of a tape: one step for each thing that the engine hands over and that the capture
    met."""

    def __init__(self) -> None:
        self.counts = (0, 0, 0)
        self._steps: dict[tuple[str, int], Step] = {}

    def step(self, what: str, number: int) -> Step:
        """The step that stands for ``what[number]``."""
        key = (what, number)
        if key not in self._steps:
            self._steps[key] = Step("input", None, key, note=f"{what}[{number}]")
        return self._steps[key]

    def rows(self) -> list[tuple[str, int]]:
        """All of them, also those that nothing reads: they are bound by position."""
        hooks, packed = (
            1 + max((i for w, i in self._steps if w == what), default=-1)
            for what in ("hooks", "packed")
        )
        counts = (*self.counts, hooks, packed)
        return [(what, i) for what, count in zip(GIVEN, counts, strict=True) for i in range(count)]


@dataclass(frozen=True)
class TapeNode:
    """One autograd node of a tape.

    Attributes:
        name: as autograd calls it: ``MulBackward0``.
        seq_nr: the number that autograd gave it in the forward; None for leaves, the root, and
            where it is unknown.
    """

    name: str
    seq_nr: int | None


@dataclass(eq=False)
class EngineTape:
    """One captured backward: a graph, and a program for each back end that it was run with.

    Attributes:
        graph: the tape as an fx graph; runnable as it is.
        nodes: the autograd nodes in the order in which they run.
        given: what the graph's placeholders are: ("inputs", 3), ...
        programs: back end -> callable, made when it is first needed; ``lowered``: its graph with
            segments as calls.
        runs: how often it ran.
    """

    graph: fx.GraphModule
    nodes: tuple[TapeNode, ...]
    given: tuple[tuple[str, int], ...]
    programs: dict[Any, Any] = field(default_factory=dict)
    lowered: dict[Any, fx.GraphModule] = field(default_factory=dict)
    runs: int = 0

    def __post_init__(self) -> None:
        #: how many hooks and packed values the program takes; C++ may hand over more that nothing
        # reads
        self.hooks = sum(what == "hooks" for what, _ in self.given)
        self.packed = sum(what == "packed" for what, _ in self.given)

    def __call__(self, *args: Any) -> Any:
        """C++ insists that a tape can be called; it never does."""
        raise TypeError("a tape is run by the backward calls that it was captured from")

    def __str__(self) -> str:
        return describe(self)

    def __repr__(self) -> str:
        return f"<tape of {counts(self)}, {self.runs} run{'s' if self.runs != 1 else ''}>"


def finish(
    steps: Sequence[Step],
    names: Sequence[str],
    layout: Layout,
    outputs: list[Any],
    roots: Sequence[Any],
    only: Sequence[Any] | None,
) -> EngineTape:
    """Order the steps as the eager engine would, and write the graph.

    Args:
        names: of the autograd nodes, in capture order.
        outputs: the steps whose values the engine wants back.
        roots, only: of the backward call; ``roots`` is empty when it did not come from Python.
    """
    walked = _matching_walk(names, roots, only)
    numbers = {} if walked is None else priorities(walked.nodes)
    known = {k: n for k, n in numbers.items() if k and n != _LEAF}
    rows = [
        TapeNode(name.removeprefix("torch::autograd::"), known.get(k))
        for k, name in enumerate(names)
    ]
    # A backward that C++ began stays in the order of its capture: that of the forward is not known.
    order = [*range(len(names))] if walked is None else engine_order(walked.following, numbers)
    position = {call: k for k, call in enumerate(order)}
    position[-1] = -1
    by_call: dict[int, list[Step]] = {call: [] for call in (-1, *order)}
    for step in steps:
        if step.kind != "sum":
            by_call[step.call].append(step)
    totals = _associate(steps, position, by_call)

    graph = _write(by_call, layout, totals, outputs)
    return EngineTape(graph, tuple(rows[call] for call in order), tuple(layout.rows()))


def _matching_walk(
    names: Sequence[str], roots: Sequence[Any], only: Sequence[Any] | None
) -> Walked | None:
    if not roots:
        return None
    walked = walk(roots, only)
    found = [n.name() for n in walked.nodes[1:]]
    return walked if found == list(names[1:]) else None


def _associate(
    steps: Sequence[Step], position: dict[int, int], by_call: dict[int, list[Step]]
) -> dict[Step, Step]:
    """Add the gradients for one place in the order in which the eager engine gets them: (a + b) + c
    is not a + (b + c).

    Each new sum is written at the end of the node that delivers its second term, so that the terms
    do not pile up. Returns what stands for each captured total.
    """
    inner = {s.args[0] for s in steps if s.kind == "sum" and s.args[0].kind == "sum"}
    totals: dict[Step, Step] = {}
    for total in steps:
        if total.kind != "sum" or total in inner:
            continue
        terms: list[Step] = []
        step = total
        while step.kind == "sum":
            terms.append(step.args[1])
            step = step.args[0]
        terms.append(step)
        terms.sort(key=lambda t: (position[t.call], t.number))
        running = terms[0]
        for term in terms[1:]:
            running = Step(
                "sum", total.target, (running, term), call=term.call, number=total.number
            )
            by_call[term.call].append(running)
        totals[total] = running
    return totals


def _write(
    by_call: dict[int, list[Step]], layout: Layout, totals: dict[Step, Step], outputs: list[Any]
) -> fx.GraphModule:
    graph = fx.Graph()
    env: dict[Step, fx.Node] = {}
    for what, number in layout.rows():
        node = env[layout.step(what, number)] = graph.placeholder(f"{what}_{number}")
        node.meta["kind"] = "input"
    current = -1

    def value(step: Step) -> Any:
        step = totals.get(step, step)
        if step not in env:
            emit(step)
        return env[step]

    def emit(step: Step) -> None:
        for read in sorted((r for r in step.reads() if r.kind == "unpack"), key=lambda r: r.number):
            # several saved tensors of one node are unpacked in the order in which the node saved
            # them
            value(read)
        args, kwargs = replace_steps(step.args, value), replace_steps(step.kwargs, value)
        assert step.target is not None
        node = graph.create_node("call_function", step.target, args, kwargs, name=_name_of(step))
        node.meta.update(kind=step.kind, node=current, note=step.note)
        env[step] = node

    for number, mine in enumerate(by_call.values(), start=-1):
        current = number
        for step in mine:
            if step.kind not in ON_DEMAND:
                value(step)
        deferred = {s for step in mine for s in (step.meta or {}).get("deferred", ())}
        for step in mine:
            if step.kind == "unpack" and step not in deferred:
                value(step)
    graph.output([replace_steps(o, value) for o in outputs])
    return graph_module(torch.nn.Module(), graph, "Tape")


def _name_of(step: Step) -> str | None:
    if step.note and step.kind in ("op", "hook", "post_accumulate"):
        return step.note.replace(" ", "_").replace("-", "_")
    return {
        "unpack": "unpacked",
        "sum": "total",
        "backward": "backward",
        "validate": "checked",
    }.get(step.kind)
