"""Where saved-tensor hooks of the region cut a joint graph (`capture.saved_hooks`).

What a pack hook returned is saved, and what the unpack hook computes stays in the backward, right before its first use;
so at most the values of one autograd node are unpacked at a time, whatever order a partitioner chooses.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.fx as fx
from torch.utils.checkpoint import CheckpointPolicy

from .. import torch_api
from ..capture.effects import is_kept
from ..capture.graphs import is_random


def tag_packed(graph: fx.Graph) -> None:
    """Tell a partitioner where hooks cut the graph: unpack belongs to the backward, and what it reads is saved."""
    for node in graph.nodes:
        if node.meta.get("unpack"):
            node.meta["partitioner_tag"] = "must_be_in_backward"
            for made in node.all_input_nodes:
                _save(made)
        elif node.meta.get("packed"):
            _save(node)


def _save(node: fx.Node) -> None:
    while isinstance(node.target, torch_api.OpOverload) and node.target.is_view:  # what holds the memory is saved
        node = node.all_input_nodes[0]
    if node.op == "call_function" and node.meta.get("partitioner_tag") == "is_forward":
        node.meta["packed"] = True  # for our partitioner
        node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)  # for torch's


def merge_twins(graph: fx.Graph, twins: Mapping[str, str]) -> None:
    """Let the earlier of two equal packed values stand for both."""
    by_name = {n.name: n for n in graph.nodes} if twins else {}
    for twin, kept in twins.items():
        if twin in by_name and kept in by_name:
            by_name[twin].replace_all_uses_with(by_name[kept])


def unpack_late(graph: fx.Graph) -> None:
    """Move the nodes of unpack hooks right before the first node that reads them. Random numbers are drawn in the order of
    the trace, and calls for their effects stay in that order too."""
    waiting = {n for n in graph.nodes if n.meta.get("unpack")}
    if not waiting:
        return
    ordered = [n for n in graph.nodes if is_random(n) or is_kept(n)]
    earlier = dict(zip(ordered[1:], ordered, strict=False))
    for node in [n for n in graph.nodes if n not in waiting]:
        for needed in _in_order(node, waiting, earlier):
            node.prepend(needed)
            waiting.discard(needed)


def _in_order(node: fx.Node, waiting: set[fx.Node], earlier: Mapping[fx.Node, fx.Node]) -> list[fx.Node]:
    """Those of ``waiting`` that must run before ``node``, in an order in which they can. ``earlier``: for one that has to
    stay behind another, that one."""
    out: dict[fx.Node, None] = {}

    def need(n: fx.Node) -> None:
        for made in [*([earlier[n]] if n in earlier else ()), *n.all_input_nodes]:
            if made in waiting and made not in out:
                need(made)
                out[made] = None

    need(node)
    return list(out)
