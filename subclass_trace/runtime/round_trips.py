"""Views that lead back to where they came from: ``t(t(x))``, an ``expand`` to the size at hand, a ``view`` there and back.

Autograd leaves many of them in a backward, each as dear as any small kernel. A view with the very layout of a value that
it is a view of is that value, wherever it is only read or written. What the graph returns stays a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
import torch.fx as fx

from .. import _torch

aten = torch.ops.aten
Merged = Mapping[fx.Node, fx.Node]


def without_round_trips(
    body: list[fx.Node], results: list[Any], merged: Merged, given: Collection[fx.Node] = ()
) -> tuple[list[fx.Node], Merged]:
    """The nodes that are still to be run, and for each other one the node that has its value.

    Args:
        body: nodes in order.
        results: nodes (and constants) that are returned.
        merged: nodes that are others already; their values are not in ``body``.
        given: nodes whose values are passed; what they were made of is not there.
    """
    known = dict(merged)
    kept = {_final(r, known) for r in results if isinstance(r, fx.Node)}
    for node in body:
        if node not in kept and _is_view(node):
            same = next((o for o in _origins(node, known, given) if _same_layout(node, o)), None)
            if same is not None:
                known[node] = same
    known = {node: _final(other, known) for node, other in known.items()}
    used = set(kept)
    live = []
    for node in reversed(body):
        if node not in known and (node in used or not _is_view(node)):
            live.append(node)
            used |= {known.get(n, n) for n in node.all_input_nodes}
    return live[::-1], known


def _origins(node: fx.Node, known: Merged, given: Collection[fx.Node]) -> Iterator[fx.Node]:
    """What ``node`` is a view of, the nearest first."""
    while _is_view(node) and node not in given:
        node = _final(node.args[0], known)  # type: ignore[arg-type]
        yield node


def _final(node: fx.Node, known: Merged) -> fx.Node:
    """What a node stands for in the end: what it stood for when it was merged may be another one by now."""
    while node in known:
        node = known[node]
    return node


def _is_view(node: fx.Node) -> bool:
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, _torch.OpOverload):
        return False
    # a view operation of somebody else's may do more than to view (`wait` of partition/transfers.py does)
    view = (target.is_view and target.namespace in ("aten", "prims")) or target is aten._unsafe_view.default
    first = bool(node.args) and isinstance(node.args[0], fx.Node)
    return view and first and not _torch.op_schema(target).is_mutable and isinstance(node.meta.get("val"), torch.Tensor)


def _same_layout(a: fx.Node, b: fx.Node) -> bool:
    """Do two values of one storage lie at the same place in it? Only for sizes that are plain numbers."""
    layouts = [_layout(n.meta.get("val")) for n in (a, b)]
    return layouts[0] is not None and layouts[0] == layouts[1]


def _layout(value: object) -> tuple[Any, ...] | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    if not all(type(n) is int for n in numbers):
        return None
    return (value.dim(), numbers, value.dtype, value.device, value.is_conj(), value.is_neg())
