"""What computes nothing is left out: views and copies that change nothing, and what nobody
reads."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx as fx

from ..capture.effects import is_collective, is_kept
from ..capture.graphs import is_random, output_args
from ..torch_api.kinds import storage_key
from .graph import JointGraph

aten = torch.ops.aten
#: gives its first argument, in its memory, where the type is the same
_VIEWS = frozenset(
    {
        *(
            aten.view.default,
            aten._unsafe_view.default,
            aten.expand.default,
            aten.alias.default,
            aten.detach.default,
        ),
        *(aten.slice.Tensor, aten.permute.default, aten.as_strided.default, aten.reshape.default),
    }
)
#: gives a copy of it
_COPIES = frozenset({aten._to_copy.default, aten.clone.default, aten.contiguous.default})


def _stays(node: fx.Node) -> bool:
    return is_kept(node) or is_random(node) or is_collective(node)


def cleanup(graph: JointGraph) -> None:
    """Take out views of the whole, copies of values that nobody else has, and what nobody reads."""
    ends = {n for n in output_args(graph.graph) if isinstance(n, fx.Node)}
    held = {
        storage_key(n.meta.get("val")) for n in (*ends, *graph.graph.find_nodes(op="placeholder"))
    }
    for node in list(graph.graph.nodes):
        source: Any = node.args[0] if node.args else None
        if (
            node.op != "call_function"
            or node in ends
            or not isinstance(source, fx.Node)
            or not _alike(node, source)
        ):
            continue
        key = storage_key(source.meta["val"])
        if node.target in _VIEWS or (node.target in _COPIES and key not in held):
            node.replace_all_uses_with(source)
    kept = {*graph.module.meta.get("served", ())}  # for the tangents of later backwards
    for node in reversed(list(graph.graph.nodes)):
        if node.meta.get("trace_name") in kept:
            continue
        if node.op == "call_function" and not node.users and not _stays(node):
            if node.target is not operator.getitem or node.args[0] not in ends:
                graph.graph.erase_node(node)


def _alike(node: fx.Node, source: fx.Node) -> bool:
    """Are the two of one type, down to strides and offset?"""
    a, b = node.meta.get("val"), source.meta.get("val")
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return False
    plain = all(type(n) is int for t in (a, b) for n in (*t.shape, *t.stride(), t.storage_offset()))
    rows = [
        (t.shape, t.stride(), t.storage_offset(), t.dtype, t.device, t.is_conj(), t.is_neg())
        for t in (a, b)
    ]
    return plain and rows[0] == rows[1]
