"""Collectives: merged, launched as early and waited for as late as the graph allows."""

from __future__ import annotations

import functools

import torch.fx as fx

from ..capture.effects import is_collective
from ..capture.graphs import placeholders
from ..errors import OptionError
from ..torch_api.graphs import bucket_collectives as torch_bucket_collectives
from .graph import JointGraph, Pass


def bucket_collectives(megabytes: float = 100.0) -> Pass:
    """A pass that makes one collective of neighbours of a kind, group and dtype
    (``torch._inductor.fx_passes.bucketing``).

    Args:
        megabytes: at most so much in one.

    Raises:
        OptionError: not above zero.
    """
    if not megabytes > 0:
        raise OptionError(
            "a bucket has a size", path="megabytes", expected="a number above 0", got=str(megabytes)
        )
    run = functools.partial(_bucket, megabytes)
    run.__qualname__ = f"bucket_collectives({megabytes})"  # type: ignore[attr-defined]
    run.reorders_collectives = True  # type: ignore[attr-defined]
    return run


def _bucket(megabytes: float, graph: JointGraph) -> None:
    before = set(graph.graph.nodes)
    torch_bucket_collectives(graph.module, megabytes)
    for node in graph.graph.nodes:  # torch's pass gives its nodes no side
        if node not in before and node.op == "call_function":
            tags = {i.meta.get("partitioner_tag") for i in node.all_input_nodes} - {None}
            late = "is_backward" in tags or any(
                str(i.target).startswith("tangents") for i in node.all_input_nodes
            )
            node.meta.setdefault("partitioner_tag", "is_backward" if late else "is_forward")
            phases = {i.meta.get("phase") for i in node.all_input_nodes}
            node.meta.setdefault("phase", "backward" if late or "backward" in phases else "forward")


def overlap_collectives(graph: JointGraph) -> None:
    """Launch each collective right after what it reads (they keep their order), and wait for it
    right before it is read."""
    nodes = list(graph.graph.nodes)
    order = {n: k for k, n in enumerate(nodes)}
    launched = max((order[n] for n in placeholders(graph.graph)), default=-1)
    end = nodes[launched] if launched >= 0 else None
    for node in nodes:
        if is_collective(node) and not _is_wait(node):
            reads = [*node.all_input_nodes, *([end] if end is not None else [])]
            last = max(reads, key=order.__getitem__)
            if order[last] < order[node]:
                last.append(node)
                order = {n: k for k, n in enumerate(graph.graph.nodes)}
            end = node
    for node in reversed(list(graph.graph.nodes)):
        if _is_wait(node) and node.users:
            order = {n: k for k, n in enumerate(graph.graph.nodes)}
            min(node.users, key=order.__getitem__).prepend(node)


def _is_wait(node: fx.Node) -> bool:
    return is_collective(node) and "wait_tensor" in str(node.target)
