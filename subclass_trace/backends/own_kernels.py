"""Functions of ``torch.compile`` inside of a region: what they compute is a call of their own back
end.

A trace marks the nodes that such a call has written (``meta["compiled_by"]``). Where the region has
no backward left, and runs
operation by operation, each run of them becomes one node: its back end gets it as a graph module,
with the tensors of the first call, as Dynamo would call it.
"""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..capture.effects import has_effects
from ..partition.half import Half
from ..torch_api.compiled_inside import CompiledBy
from ..torch_api.dynamo import dynamo_lock
from ..torch_api.graphs import graph_module
from ..torch_api.kinds import SYM_TYPES
from ..torch_api.trees import pytree
from .registry import compile_with


class Piece:
    """What one such call computes, compiled when it runs first."""

    __name__ = "compiled_piece"

    def __init__(self, graph: fx.GraphModule, by: CompiledBy) -> None:
        self._graph, self._by = graph, by
        self._call: Callable[[list[Any]], Sequence[Any]] | None = None

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """The results, one for each output of the graph."""
        if self._call is None:
            with dynamo_lock():
                if self._call is None:
                    backend, name = self._by.backend, self._by.name
                    self._call = compile_with(
                        backend,
                        self._graph,
                        list(inputs),
                        is_backward=False,
                        name=name,
                        of_dynamo=True,
                    )
        return self._call([*inputs])


def pieces(half: Half) -> dict[CompiledBy, list[fx.Node]]:
    """The calls that can be one node each, with their nodes."""
    order = [n for n in half.body if n.op != "get_attr"]
    runs = [
        (by, list(run))
        for by, run in itertools.groupby(order, lambda n: n.meta.get("compiled_by"))
        if by
    ]
    counts = collections.Counter(by for by, _ in runs)
    return {
        by: run
        for by, run in runs
        if counts[by] == 1 and _is_alone(run) and all(map(_is_plain, run))
    }


def names_of_pieces(half: Half) -> frozenset[str]:
    """The functions all of whose calls are pieces."""
    whole = pieces(half)
    marks = [by for n in half.body if (by := n.meta.get("compiled_by"))]
    return frozenset(by.name for by in marks) - {by.name for by in marks if by not in whole}


def _is_alone(run: Sequence[fx.Node]) -> bool:
    """Is nothing of it, but tensors, read outside, and none by a backward in the region?"""
    inside = set(run)
    read = [(n, u) for n in run for u in n.users if u not in inside]
    return all(
        isinstance(n.meta.get("val"), torch.Tensor) and u.meta.get("phase") != "backward"
        for n, u in read
    )


def _is_plain(node: fx.Node) -> bool:
    """Are all values tensors of known sizes? Numbers would be those of the first call."""
    values = [
        v for n in (node, *node.all_input_nodes) for v in pytree.tree_leaves(n.meta.get("val"))
    ]
    sizes = (n for v in values if isinstance(v, torch.Tensor) for n in (*v.shape, *v.stride()))
    known = all(type(n) is int for n in sizes) and not any(isinstance(v, SYM_TYPES) for v in values)
    return (
        known
        and node.op == "call_function"
        and not has_effects(node.target)
        and "left_out" not in node.meta
    )


def with_own_kernels(half: Half) -> Half:
    """The same program, with a node for each piece."""
    names = {n.name: by for by, run in pieces(half).items() for n in run}
    if not names:
        return half
    graph = fx.Graph()
    graph.output(graph.graph_copy(half.module.graph, {}))
    copy = graph_module(half.module, graph)
    nodes = list(graph.nodes)
    for by in dict.fromkeys(names.values()):
        _replace(copy, [n for n in nodes if names.get(n.name) is by], by)
    return Half.of_module(copy)


def _replace(module: fx.GraphModule, run: Sequence[fx.Node], by: CompiledBy) -> None:
    inside, graph = set(run), fx.Graph()
    given = list(dict.fromkeys(i for n in run for i in n.all_input_nodes if i not in inside))
    outputs = [n for n in run if any(u not in inside for u in n.users)]
    copies: dict[fx.Node, fx.Node] = {}
    for node in given:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in run:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[n] for n in outputs))
    piece = Piece(graph_module(torch.nn.Module(), graph), by)
    with module.graph.inserting_before(run[0]):
        call = module.graph.call_function(piece, tuple(given))
        call.meta["val"] = tuple(n.meta["val"] for n in outputs)
        for k, node in enumerate(outputs):
            item = module.graph.call_function(operator.getitem, (call, k))
            item.meta = {**node.meta}
            node.replace_all_uses_with(item, delete_user_cb=lambda user: user not in inside)
    for node in reversed(run):
        module.graph.erase_node(node)
