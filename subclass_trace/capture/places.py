"""Views that are made by their place in memory: ``as_strided`` counts from the start of the storage, whatever it is called on.

So such a view of an input may show memory that the input does not: that of another input, or of none. What it reads there
is what the graph is called with; where a region writes, it is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api
from ..errors import NeedsEager
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


def refuse_strided_writes(recorder: Any) -> None:
    """Refuse views of an input by their place that show written memory: that may be another input's, or nobody's.

    Raises:
        UnsupportedError: there is one.
    """
    written = {storage for storage, _ in recorder.writes}
    for view, root in strided_views(recorder.graph).items():
        if root.op == "placeholder" and torch_api.storage_ref(view.meta["val"]) in written:
            raise NeedsEager(
                "the region writes memory of an input that it sees through as_strided",
                path=frames_text(view),
                expected="writes to the input itself, or to views by other operations",
                got=f"a view of shape {tuple(view.meta['val'].shape)}",
                fix="use x[...], narrow, unfold or t() on the way to what is written",
            )
