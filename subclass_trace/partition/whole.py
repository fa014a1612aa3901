"""A region that runs its own backward is one graph: what is computed again there, and where.

The same choice as for two graphs (`MinCut`: tags of checkpoints, bans, budget) is made on the table
of this graph, as if it were cut in front of its backward. Nothing is moved: what a backward reads
and the choice does not save is copied in front of the first operation of the backward that needs
it, and the forward's own dies where its last forward user is.

In a graph as it was recorded memory is written. What is copied runs later, so nothing is that reads
or gives memory which is written between the two places.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch.fx as fx

from ..capture.graphs import output_args
from ..capture.writes import written_arguments
from ..torch_api.operators import OpOverload
from .min_cut import MinCut
from .rules import MUST_SAVE, Facts
from .table import COLLECTIVE, MUTABLE, ONCE, Table


def runs_backward(graph: fx.Graph) -> bool:
    """Does the graph hold a backward of the region's own?"""
    return any(_is_backward(node) for node in graph.nodes)


def recompute_inside(
    module: fx.GraphModule, partitioner: MinCut, static: Collection[str], small: int = 0
) -> None:
    """Let the backwards inside of a graph compute again what the partitioner does not save.

    Args:
        static, small: see `Facts`.
    """
    graph = module.graph
    late = _late(graph)
    outputs = output_args(graph)
    ends = sorted(range(len(outputs)), key=lambda k: outputs[k] in late)
    table = Table(
        module, sum(o not in late for o in outputs), outputs=[outputs[k] for k in ends], late=late
    )
    fixed = _fixed(table)
    for i in fixed:
        table.recompute[i] = MUST_SAVE
    kept = frozenset(
        table.name(i)
        for i in table.rows
        if any(_is_backward(table.nodes[u]) for u in table.users[i])
    )
    saved = partitioner.choose(table, Facts(static=frozenset(static), kept=kept, small=small))
    stay = {table.nodes[i] for i in (*saved, *fixed)} | {
        n
        for n, bits in zip(table.nodes, table.bits, strict=True)
        if bits & ONCE and not bits & COLLECTIVE  # torch takes a wait for impure
    }
    _copy_in_front(graph, late, stay)


def _is_backward(node: fx.Node) -> bool:
    return node.meta.get("phase") == "backward"


def _late(graph: fx.Graph) -> set[fx.Node]:
    """The operations of backwards, and all that need them."""
    late: set[fx.Node] = set()
    for node in graph.nodes:
        if _is_backward(node) or any(i in late for i in node.all_input_nodes):
            late.add(node)
    return late


def _fixed(t: Table) -> list[int]:
    """Rows of the forward that would be others, or would change others, if they ran where a
    backward needs them last."""
    writes = _writes(t)
    if not writes:
        return []
    last = [0] * len(t.nodes)
    for i in reversed(t.rows):
        for u in t.users[i]:
            last[i] = max(last[i], u if _is_backward(t.nodes[u]) else last[u])
    return [
        i
        for i in t.rows
        if any(_is_written(writes.get(t.storage[k], ()), i, last[i]) for k in (i, *t.ins[i]))
    ]


def _writes(t: Table) -> dict[Any, list[int]]:
    """Memory -> the rows that write it, in order."""
    found: dict[Any, list[int]] = {}
    for i in t.rows:
        if t.bits[i] & MUTABLE and isinstance(t.nodes[i].target, OpOverload):
            node = t.nodes[i]
            for written in written_arguments(node.target, node.args, node.kwargs, fx.Node):
                found.setdefault(t.storage[t.row[written]], []).append(i)
    return found


def _is_written(rows: Sequence[int], after: int, until: int) -> bool:
    at = bisect.bisect_right(rows, after)
    return at < len(rows) and rows[at] <= until


def _copy_in_front(graph: fx.Graph, late: Collection[fx.Node], stay: Collection[fx.Node]) -> None:
    """Copy what operations of backwards read, but for what stays, in front of the first of them;
    drop what nobody needs."""
    copies: dict[fx.Node, fx.Node] = {}

    def is_copied(node: fx.Node) -> bool:
        return node.op == "call_function" and node not in late and node not in stay

    for node in [n for n in graph.nodes if _is_backward(n)]:
        with graph.inserting_before(node):
            for source in _cone(node, is_copied, copies):
                copies[source] = graph.node_copy(source, lambda n: copies.get(n, n))
                copies[source].meta = {**source.meta, "phase": "backward"}
        if copies.keys().isdisjoint(node.all_input_nodes):
            continue
        node.args = fx.map_arg(node.args, lambda n: copies.get(n, n))
        node.kwargs = fx.map_arg(node.kwargs, lambda n: copies.get(n, n))
    for source in reversed(copies):
        if not source.users:
            graph.erase_node(source)


def _cone(node: fx.Node, is_copied: Any, known: Collection[fx.Node]) -> Iterator[fx.Node]:
    """What has to be copied for a node, each after what it reads."""
    seen: set[fx.Node] = set()
    stack = [(i, False) for i in reversed(node.all_input_nodes)]
    while stack:
        n, done = stack.pop()
        if done:
            yield n
        elif n not in seen and n not in known and is_copied(n):
            seen.add(n)
            stack += [(n, True), *((i, False) for i in reversed(n.all_input_nodes))]
