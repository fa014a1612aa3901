"""Views that are made by their place in memory: ``as_strided`` counts from the start of the storage, whatever it is called on.

So such a view of an input may show memory that the input does not: that of another input, or of none. What it reads there
is what the graph is called with; what a region writes there, or has written there, is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api
from ..errors import UnsupportedError
from .aliasing import ByteRange, byte_range
from .user_code import frames_text

Tensor = torch.Tensor
aten = torch.ops.aten


def view_chain(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The tensor that ``node`` is a view of, and the views on the way, last first."""
    chain = []
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        made: Any = node.args[0] if node.target is operator.getitem else node
        target = made.target
        if not isinstance(target, torch_api.OpOverload) or not (target.is_view or writes_first(target)):
            break
        if target.is_view:
            chain.append(node)
        node = made.args[0]
    return node, chain


def writes_first(target: Any) -> bool:
    """Does the operation change its first argument, and nothing but that?"""
    first = target._schema.arguments[0] if target._schema.arguments else None
    return bool(first is not None and first.alias_info is not None and first.alias_info.is_write)


def written_nodes(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """(operation, the tensor that it writes), for operations that write values."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch_api.OpOverload):
            continue
        if not node.target._schema.is_mutable or torch.Tag.inplace_view in node.target.tags:
            continue
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            for target in value if isinstance(value, (list, tuple)) else [value]:
                if written and isinstance(target, fx.Node):
                    yield node, target


def strided_views(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Each ``as_strided`` of the graph, and the tensor whose memory it shows."""
    found = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target is aten.as_strided.default:
            root, _ = view_chain(node)
            mine, theirs = node.meta["val"], root.meta["val"]
            if isinstance(theirs, Tensor) and mine.dtype == theirs.dtype:
                if torch_api.storage_ref(mine) == torch_api.storage_ref(theirs):
                    found[node] = root
    return found


def refuse_outside(originals: Sequence[Tensor], leaf_primals: Sequence[int], recorder: Any) -> None:
    """Refuse views by their place that show written memory which is not that of the input that they are made of.

    Raises:
        UnsupportedError: there is one.
    """
    leaf_of = {f"primals_{p + 1}": originals[k] for k, p in enumerate(leaf_primals)}
    for view, root in strided_views(recorder.graph).items():
        leaf, shown = leaf_of.get(str(root.target)) if root.op == "placeholder" else None, view.meta["val"]
        if leaf is None or _contains(leaf, shown):
            continue
        storage, place = torch_api.storage_ref(shown), byte_range(shown)
        if any(s == storage and place.overlaps(r) for s, r in recorder.writes):
            raise _outside(view, place, shown)


def _contains(leaf: Tensor, view: Tensor) -> bool:
    """Is each element of the view surely one of the leaf?"""
    outer, inner = byte_range(leaf), byte_range(view)
    inside = torch_api.surely(inner.start >= outer.start) and torch_api.surely(inner.stop <= outer.stop)
    return (inside and torch_api.is_dense(leaf)) or torch_api.surely(inner.start == inner.stop)


def _outside(node: fx.Node, place: ByteRange, t: Tensor) -> UnsupportedError:
    width = t.element_size()
    return UnsupportedError(
        "the region writes memory that it sees outside of an input, through as_strided",
        path=frames_text(node),
        expected="as_strided views of the memory of the input that they are made of",
        got=f"elements {place.start // width} to {place.stop // width - 1} of its storage",
        fix="pass the whole tensor (the base of the view) as an argument",
    )
