"""Segments: what lies between opaque calls, lowered to dense aten graphs and given to a back end.

A tape is cut at hooks, unpack hooks, Python backwards and accumulations. What is between two cuts
is a function of tensors and sizes, and becomes a region of `subclass_trace.compile`: traced once
with the values of its first run, wrapper gradients flattened, guarded by metadata, with the
package's dynamic sizes.

Note [Who owns what a segment is given]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A saved activation has to die within the segment that reads it last. So the call of a segment takes
one list, which it empties, and the program of the tape deletes its own variables before the call.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from ..frontends.region import Region
from ..frontends.specialization import Specialization
from ..options import Options
from ..plan import LeafPrimal, Plan, Primal, ValueOutput
from ..plan.values import New, Output
from ..subclass.spec import LeafSpec
from ..torch_api import tape as _door
from ..torch_api.graphs import graph_module
from ..torch_api.kinds import tensor_guard
from . import runtime
from .graph import EngineTape
from .program import make_program

Tensor = torch.Tensor
_PURE = {"op", "validate", "sum", "size", "aten"}


# ---- cutting
def is_pure(node: fx.Node) -> bool:
    """May this call be part of a segment?"""
    return node.meta["kind"] in _PURE and not _is_custom(node)


def _is_custom(node: fx.Node) -> bool:
    """A C++ custom function may do anything, and is not to be traced."""
    return node.meta["kind"] == "op" and str(node.meta.get("note", "")).startswith("CppNode")


# ---- one segment
class Segment:
    """A function of tensors and sizes, compiled for the metadata of its arguments.

    Plain tensors of known sizes go straight from a C++ guard to the compiled graph; wrappers and
    dynamic sizes through the region's own entry. Beyond `limit` kinds of arguments the segment runs
    as it is.
    """

    limit = 16

    def __init__(
        self,
        function: Callable[..., Any],
        is_size: Sequence[bool],
        backend: Any,
        dynamic: bool,
        name: str,
    ) -> None:
        self.function, self.is_size, self.__name__ = function, tuple(is_size), name
        sizes = self.is_size

        def segment(*values: Any) -> list[Any]:
            given = [v.shape[0] if size else v for v, size in zip(values, sizes, strict=True)]
            # A gradient is no view to anybody: the region need not make its results views of what
            # they come from.
            return [
                r.detach() if isinstance(r, Tensor) and r._is_view() else r for r in function(given)
            ]

        segment.has_no_state = True  # type: ignore[attr-defined]
        self.region = Region(segment, Options(backend=backend, dynamic=dynamic or None))
        self.refused: Exception | None = None  # why it runs as it is
        self.fast: list[tuple[Callable[..., bool], Callable[[list[Any]], Any]]] = []

    def __call__(self, given: list[Any]) -> Any:
        for check, call in self.fast:
            if check(*given):
                return call(given)
        return self._slow(given)

    def _slow(self, given: list[Any]) -> Any:
        values = [
            torch.empty(v, 0) if size else v for v, size in zip(given, self.is_size, strict=True)
        ]
        before = len(self.region.specializations)
        if self.refused is not None or before >= self.limit:
            return self.function(given)
        try:
            results = self.region(*values)
        except Exception as error:
            if len(self.region.specializations) != before:
                raise
            # it cannot be traced; if the error is the user's, it comes again now
            self.refused = error
            return self.function(given)
        made = self.region.specializations
        if len(made) != before:
            runtime.stats.segments += len(made) - before
            # an undefined gradient is no leaf of the region's results
            if all(isinstance(r, Tensor) for r in results):
                self._arm(made[-1], values)
        return results

    def _arm(self, made: Specialization, values: list[Any]) -> None:
        """The short way for this specialization, if its arguments and results are plain tensors."""
        plan, order, forward = made.plan, _order(made.plan), made.program.forward
        if (
            order is None
            or plan.inputs.symbols
            or plan.mutations.rows
            or plan.side_effects
            or plan.trains
        ):
            return
        numbers = [*range(len(values))]
        as_given = (
            [row.position for row in plan.inputs.rows]
            == numbers
            == [*map(_leaf_of, plan.inputs.primals)]
        )
        if (
            not as_given
            or any(self.is_size)
            or any(type(v) not in (Tensor, torch.nn.Parameter) for v in values)
        ):
            return
        guard = tensor_guard(
            values, [list(v.shape) for v in values], [list(v.stride()) for v in values]
        )
        self.fast.append((guard, lambda given: [*map(forward(given).__getitem__, order)]))


def _leaf_of(primal: Primal) -> int:
    return primal.leaf if isinstance(primal, LeafPrimal) else -1


def _order(plan: Plan) -> list[int] | None:
    """The forward values that are the results, if these are a list of dense ones."""
    made = plan.results.recipe
    if not isinstance(made, New) or made.cls is not list or made.items is None:
        return None
    outputs = [plan.results.outputs[item.index] for item in made.items if isinstance(item, Output)]
    order = [
        o.value for o in outputs if isinstance(o, ValueOutput) and isinstance(o.spec, LeafSpec)
    ]
    return order if len(order) == len(made.items) else None


# ---- a tape in segments
@dataclass(frozen=True, eq=False)
class Run:
    """Neighbouring nodes of a tape: one opaque call, or several nodes that become one call."""

    nodes: tuple[fx.Node, ...]
    is_joined: bool


def cut(graph: fx.Graph) -> list[Run]:
    """The runs of a tape in order. A result belongs to its call, wherever it is first read; an
    accumulation does not end a run, and follows after it.
    """
    runs: list[tuple[list[fx.Node], bool]] = []
    of_node: dict[fx.Node, list[fx.Node]] = {}
    current: list[fx.Node] = []
    waiting: list[fx.Node] = []

    def flush() -> None:
        nonlocal current
        if current:
            runs.append((current, True))
        runs.extend(([n], False) for n in waiting)
        current = []
        waiting.clear()

    for node in graph.nodes:
        if node.op != "call_function":
            continue
        is_part = node.meta["kind"] == "part" and isinstance(node.args[0], fx.Node)
        if is_part and node.args[0] in of_node:
            of_node[node.args[0]].append(node)
            of_node[node] = of_node[node.args[0]]
        elif is_part:
            runs.append(([node], False))
        elif is_pure(node):
            current.append(node)
            of_node[node] = current
        elif node.meta["kind"] == "accumulate":
            waiting.append(node)
        else:
            flush()
            runs.append(([node], False))
    flush()
    return [Run(tuple(nodes), is_joined) for nodes, is_joined in runs]


def lower(tape: EngineTape, backend: Any) -> fx.GraphModule:
    """The tape with each segment as one call: a `Segment`."""
    root, graph = tape.graph, fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    names = [n.name for n in tape.nodes]
    dynamic = any(what == "sizes" for what, _ in tape.given)
    for node in root.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            env[node] = graph.node_copy(node, env.__getitem__)
    for number, run in enumerate(cut(root.graph)):
        if not run.is_joined:
            for node in run.nodes:
                env[node] = graph.node_copy(node, env.__getitem__)
            continue
        name = f"segment_{number}"
        part, inputs, outputs = _part(root, run, name)
        if not outputs:
            continue  # only checks of nothing
        segment = Segment(
            make_program(part, names), [_is_size(i) for i in inputs], backend, dynamic, name
        )
        call = graph.create_node("call_function", segment, ([env[i] for i in inputs],), name=name)
        call.meta.update(
            kind="segment", node=run.nodes[0].meta["node"], note=f"{len(run.nodes)} operations"
        )
        for i, o in enumerate(outputs):
            env[o] = graph.call_function(operator.getitem, (call, i))
            env[o].meta.update(kind="part", node=o.meta["node"])
    graph.output(fx.map_arg(root.graph.output_node().args[0], env.__getitem__))
    return graph_module(root, graph, "JoinedTape")


def _part(
    root: torch.nn.Module, run: Run, name: str
) -> tuple[fx.GraphModule, list[fx.Node], list[fx.Node]]:
    """The graph of a run, and the nodes of the tape that it takes and gives."""
    inside = set(run.nodes)
    read = [
        i for i in dict.fromkeys(i for n in run.nodes for i in n.all_input_nodes) if i not in inside
    ]
    inputs = [i for i in read if i.op != "get_attr"]
    outputs = [n for n in run.nodes if any(u not in inside for u in n.users)]
    graph = fx.Graph()
    local = {i: graph.placeholder(i.name) for i in inputs}
    local |= {i: graph.node_copy(i, lambda n: n) for i in read if i.op == "get_attr"}
    for n in run.nodes:
        local[n] = graph.node_copy(n, local.__getitem__)
    graph.output([local[o] for o in outputs])
    return graph_module(root, graph, name), inputs, outputs


def _is_size(node: fx.Node) -> bool:
    return (
        str(node.target).startswith("sizes_")
        or node.meta["kind"] == "size"
        or node.meta.get("note") == "size"
    )


class Segmented:
    """Runs tapes in segments."""

    def __init__(self, backend: Any) -> None:
        made = Options(backend=backend).resolve_backend()  # refuses an unknown one
        self.backend = backend if made.explain is None else made  # one pool for CUDA graphs

    def __call__(self, tape: EngineTape, values: list[Any]) -> Sequence[Any]:
        """Run a tape. In a state that compiled graphs do not serve (a graph is made, autocast,
        modes) it runs as it is."""
        if torch.is_grad_enabled() or runtime.current_call().batched or _door.unusual_state():
            return runtime.run_as_is(tape, values)
        program = tape.programs.get(self)
        if program is None:
            runtime.stats.programs += 1
            lowered = lower(tape, self.backend)
            program = tape.programs[self] = make_program(lowered, [n.name for n in tape.nodes])
            tape.lowered[self] = lowered
        return program(values)


@functools.cache
def segmented(backend: Any) -> Segmented:
    """The runner for a back end: always the same one, since programs of tapes are kept by it.

    Raises:
        OptionError: an unknown back end.
    """
    return Segmented(backend)
