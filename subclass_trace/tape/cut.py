"""Cutting a tape into runs: what lies between opaque calls becomes one call.

Two users: `segments.py` compiles the runs for a back end, `recorded.py` replaces autograd's functions in them by the
operations that they issue.

Note [Who owns what a run is given]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A saved activation has to die within the run that reads it last. So the call of a run takes one list, which it empties,
and the program of the tape deletes its own variables before the call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from .. import _torch
from .graph import Tape

#: a graph, the nodes of the tape that its placeholders stand for, the number of the run -> what is called instead
MakeCall = Callable[[fx.GraphModule, Sequence[fx.Node], int], Callable[[list[Any]], Any]]


@dataclass(frozen=True, eq=False)
class Run:
    """Neighbouring nodes of a tape: one opaque call, or several nodes that become one call."""

    nodes: tuple[fx.Node, ...]
    is_joined: bool


def cut(
    graph: fx.Graph, belongs: Callable[[fx.Node], bool], waits: Callable[[fx.Node], bool] = lambda node: False
) -> list[Run]:
    """The runs of a tape in order.

    Args:
        belongs: may this call be part of a run? A result belongs to its call, wherever it is first read.
        waits: an opaque call that does not end a run; it follows after it.
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
        elif belongs(node):
            current.append(node)
            of_node[node] = current
        elif waits(node):
            waiting.append(node)
        else:
            flush()
            runs.append(([node], False))
    flush()
    return [Run(tuple(nodes), is_joined) for nodes, is_joined in runs]


def join(tape: Tape, runs: Sequence[Run], make: MakeCall, name: str) -> fx.GraphModule:
    """The tape with each joined run as one call, named ``name_3``. ``make`` gives what is called."""
    source = tape.graph.graph
    output = source.output_node()
    root, graph = tape.graph, fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in source.nodes:
        if node.op in ("placeholder", "get_attr"):
            env[node] = graph.node_copy(node, env.__getitem__)
    for number, run in enumerate(runs):
        if not run.is_joined:
            for node in run.nodes:
                env[node] = graph.node_copy(node, env.__getitem__)
            continue
        part, inputs, outputs = _part(root, run, f"{name}{number}")
        if not outputs and not any(n.meta["kind"] == "accumulate" for n in run.nodes):
            continue  # only checks of nothing
        call = graph.create_node(
            "call_function", make(part, inputs, number), ([env[i] for i in inputs],), name=f"{name}_{number}"
        )
        call.meta.update(kind="segment", node=run.nodes[0].meta["node"], note=f"{len(run.nodes)} operations")
        for i, o in enumerate(outputs):
            env[o] = graph.call_function(operator.getitem, (call, i))
            env[o].meta.update(kind="part", node=o.meta["node"])
    graph.output(fx.map_arg(output.args[0], env.__getitem__))
    return _torch.graph_module(root, graph, "JoinedTape")


def _part(root: torch.nn.Module, run: Run, name: str) -> tuple[fx.GraphModule, list[fx.Node], list[fx.Node]]:
    """The graph of a run, and the nodes of the tape that it takes and gives."""
    inside = set(run.nodes)
    read = [i for i in dict.fromkeys(i for n in run.nodes for i in n.all_input_nodes) if i not in inside]
    inputs = [i for i in read if i.op != "get_attr"]
    outputs = [n for n in run.nodes if any(u not in inside for u in n.users)]
    graph = fx.Graph()
    local = {i: graph.placeholder(i.name) for i in inputs}
    local |= {i: graph.node_copy(i, lambda n: n) for i in read if i.op == "get_attr"}
    for n in run.nodes:
        local[n] = graph.node_copy(n, local.__getitem__)
    graph.output([local[o] for o in outputs])
    return _torch.graph_module(root, graph, name), inputs, outputs
