"""Views that lead back to where they came from: ``t(t(x))``, an ``expand`` to the size at hand, a ``view`` there and back.

Autograd leaves many of them in a backward, each as dear as any small kernel. A view with the very layout of a value that
it is a view of is that value, wherever it is only read or written. What the graph returns stays a tensor of its own: it
may be the value itself if an operation of the graph made that, and nothing else is returned as it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx

from ... import torch_api

aten = torch.ops.aten
Merged = Mapping[fx.Node, fx.Node]


@dataclass(frozen=True, eq=False)
class Call:
    """How a node is called other than as it stands in the graph.

    Attributes:
        target, args, kwargs: as those of a node.
        chain: where given, the call is right for a contiguous ``args[0]`` alone: else these views are made of it, one of
            the other, the node being the last.
        blamed: the node that an error is of, if it is another one.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    chain: tuple[fx.Node, ...] = ()
    blamed: fx.Node | None = None

    def nodes(self) -> list[fx.Node]:
        """The nodes that it reads, in the order in which they stand there."""
        found: list[fx.Node] = []
        for arg in (*self.args, *self.kwargs.values()):
            fx.map_arg(arg, found.append)
        return list(dict.fromkeys(found))


def inputs_of(node: fx.Node, calls: Mapping[fx.Node, Call]) -> list[fx.Node]:
    """The nodes that it reads."""
    call = calls.get(node)
    return node.all_input_nodes if call is None else call.nodes()


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
    kept = {final(r, known) for r in results if isinstance(r, fx.Node)}
    views = {node for node in body if is_view(node)}
    layout = functools.cache(lambda node: layout_of(node.meta.get("val")))

    def same_place(node: fx.Node) -> Iterator[fx.Node]:
        """What ``node`` is a view of and lies at the same place of the storage, for sizes that are plain numbers."""
        own = layout(node)
        return (o for o in _origins(node, known, given) if own is not None and layout(o) == own)

    for node in body:
        if node in views and node not in kept:
            same = next(same_place(node), None)
            if same is not None:
                known[node] = same
    inside = set(body)
    for result in list(kept):
        if result in views:
            own = next((o for o in same_place(result) if o not in kept), None)
            if own is not None and own in inside and is_fresh(own):
                known[result] = own
                kept.add(own)
    known = {node: final(other, known) for node, other in known.items()}
    return without_unread_views([n for n in body if n not in known], results, known, {}), known


def without_unread_views(
    body: list[fx.Node], results: list[Any], merged: Merged, calls: Mapping[fx.Node, Call]
) -> list[fx.Node]:
    """The nodes but for views that nothing reads."""
    used = {final(r, merged) for r in results if isinstance(r, fx.Node)}
    live = []
    for node in reversed(body):
        if node in used or node in calls or not is_view(node):
            live.append(node)
            used |= {final(n, merged) for n in inputs_of(node, calls)}
    return live[::-1]


def _origins(node: fx.Node, known: Merged, given: Collection[fx.Node]) -> Iterator[fx.Node]:
    """What ``node`` is a view of, the nearest first."""
    while is_view(node) and node not in given:
        node = final(node.args[0], known)  # type: ignore[arg-type]
        yield node


def final(node: fx.Node, known: Merged) -> fx.Node:
    """What a node stands for in the end: what it stood for when it was merged may be another one by now."""
    while node in known:
        node = known[node]
    return node


def is_view(node: fx.Node) -> bool:
    """Is it a view, whatever the storage is used for: an operation that computes nothing?"""
    target = node.target
    if not isinstance(target, torch_api.OpOverload) or not (target.is_view or target is aten._unsafe_view.default):
        return False
    args = node.args
    return (
        _views(target)
        and bool(args)
        and isinstance(args[0], fx.Node)
        and isinstance(node.meta.get("val"), torch.Tensor)
    )


@functools.cache
def _views(target: torch_api.OpOverload) -> bool:
    """Is it a view operation of torch's? One of somebody else's may do more."""
    if torch_api.op_schema(target).is_mutable:
        return False
    return (target.is_view and target.namespace in ("aten", "prims")) or target is aten._unsafe_view.default


def layout_of(value: object) -> tuple[Any, ...] | None:
    """Where a tensor lies in its storage and what is there; None where that is not known in plain numbers."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    if {*map(type, numbers)} != {int}:
        return None
    return (value.dim(), numbers, value.dtype, value.device, value.is_conj(), value.is_neg())


def is_fresh(node: fx.Node) -> bool:
    """Is the value a new tensor: neither an input, nor a view, nor one of several results?"""
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, torch_api.OpOverload) or target.namespace != "aten":
        return False
    returns = torch_api.op_schema(target).returns
    return target is not aten._unsafe_view.default and len(returns) == 1 and returns[0].alias_info is None
