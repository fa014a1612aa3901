"""Views that can be spared: each costs as much as a small kernel, and autograd leaves many of them
in a backward.

* A view with the very layout of a value that it is a view of (``t(t(x))``, an ``expand`` to the
  size at hand) is that value, wherever it is only read or written.
* A chain of views that nothing else reads is one call: a ``view``, if it consists of such, else an
  ``as_strided`` with the numbers of the trace. These are right for a contiguous tensor alone. The
  results of products are; any other one is asked: a hook on saved activations may give back the
  same values in another order in memory. Of what is not, the chain is made.
* A sum that keeps its dimensions for the view right after it to drop them (autograd makes one for
  each bias) drops them itself.

What the graph returns stays a tensor of its own, made as the graph says: its place in memory, its
base and its history are other people's business. It may be a value that an operation of the graph
made, and nothing else is returned as it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from ...torch_api.operators import OpOverload, op_schema

aten = torch.ops.aten
Merged = Mapping[fx.Node, fx.Node]
_PURE_VIEWS = (aten.view.default, aten._unsafe_view.default)
_CONTIGUOUS_RESULTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)


@dataclass(frozen=True, eq=False)
class ViewCall:
    """How a view is called other than as it stands in the graph.

    Attributes:
        target, origin, rest: the operation and its arguments.
        chain: where given, the call is right for a contiguous origin alone: else these views are
            made of it, one of the other, the node being the last.
    """

    target: Any
    origin: fx.Node
    rest: tuple[Any, ...]
    chain: tuple[fx.Node, ...] = ()


def inputs_of(node: fx.Node, calls: Mapping[fx.Node, ViewCall]) -> list[fx.Node]:
    """The nodes that it reads."""
    call = calls.get(node)
    if call is None:
        return node.all_input_nodes
    found = [call.origin]
    fx.map_arg(call.rest, found.append)  # sizes that are computed
    return found


def final(node: fx.Node, known: Merged) -> fx.Node:
    """What a node stands for in the end: what it stood for when it was merged may be another one by
    now."""
    while node in known:
        node = known[node]
    return node


def spare_views(
    body: list[fx.Node], results: list[Any], merged: Merged, given: Collection[fx.Node] = ()
) -> tuple[list[fx.Node], Merged, dict[fx.Node, ViewCall]]:
    """The nodes that are still to be run; for each other one that has a value, the node that has
    the same; and the views that are called in another way.

    Args:
        body: nodes in order.
        results: nodes (and constants) that are returned.
        merged: nodes that are others already; their values are not in ``body``.
        given: nodes whose values are passed; what they were made of is not there.
    """
    program = _Program(body, results, merged, given)
    program.drop_summed()
    program.merge_round_trips()
    program.shorten_chains()
    return (
        program.live(),
        {n: final(other, program.known) for n, other in program.known.items()},
        program.calls,
    )


class _Program:
    """A list of nodes: which are views, which stand for others, and how they are called."""

    def __init__(
        self, body: list[fx.Node], results: list[Any], merged: Merged, given: Collection[fx.Node]
    ) -> None:
        self.body, self.known, self.inside = [*body], dict(merged), set(body)
        self.kept = {final(r, merged) for r in results if isinstance(r, fx.Node)}
        self.views = {node for node in body if node not in given and is_view(node)}
        self.calls: dict[fx.Node, ViewCall] = {}

    def origins(self, node: fx.Node) -> Iterator[fx.Node]:
        """What ``node`` is a view of, the nearest first."""
        while node in self.views:
            node = final(node.args[0], self.known)  # type: ignore[arg-type]
            yield node

    def drop_summed(self) -> None:
        """Sums with the views that drop what they have summed over."""
        for total, node in zip(self.body[:-1], self.body[1:], strict=True):
            if (
                total.target is not aten.sum.dim_IntList
                or [*total.users] != [node]
                or node.target not in _PURE_VIEWS
            ):
                continue
            args: Any = total.args
            if (
                args[2:] != (True,)
                or total.kwargs
                or total in self.kept
                or not layout_of(total.meta.get("val"))
            ):
                continue
            shape = total.meta["val"].shape
            over = {d % max(len(shape), 1) for d in args[1]}
            if over and [n for d, n in enumerate(shape) if d not in over] == [
                *node.meta["val"].shape
            ]:
                self.calls[node] = ViewCall(total.target, args[0], (args[1],))
                self.views.discard(node)
                self.body.remove(total)

    def merge_round_trips(self) -> None:
        """Views with the layout of what they are views of, for sizes that are plain numbers, are
        that."""
        layout = functools.cache(lambda node: layout_of(node.meta.get("val")))

        def same_place(node: fx.Node) -> Iterator[fx.Node]:
            own = layout(node)
            return (o for o in self.origins(node) if own is not None and layout(o) == own)

        for node in self.body:
            if (
                node in self.views
                and node not in self.kept
                and (same := next(same_place(node), None)) is not None
            ):
                self.known[node] = same
        for result in self.kept & self.views:
            own = next((o for o in same_place(result) if o not in self.kept), None)
            if own is not None and own in self.inside and is_fresh(own):
                self.known[result] = own
                self.kept.add(own)

    def shorten_chains(self) -> None:
        """Call what is read by more than views in one step, if it takes several."""
        needed = {
            final(read, self.known)
            for node in self.body
            if node not in self.known and node not in self.views
            for read in node.all_input_nodes
        }
        for node in self.body:
            if (
                node in self.views
                and node in needed
                and node not in self.kept
                and node not in self.known
            ):
                call = self._in_one_step(node, needed | self.kept)
                if call is not None:
                    self.calls[node] = call

    def _in_one_step(self, node: fx.Node, needed: Collection[fx.Node]) -> ViewCall | None:
        origins = list(self.origins(node))
        if origins[0] not in self.views or origins[0] in needed:  # one step, of what is there
            # a ``view`` to everybody but autograd, which is not there
            unsafe = node.target is aten._unsafe_view.default
            return ViewCall(aten.view.default, origins[0], (node.args[1],)) if unsafe else None
        chain = [node, *origins[:-1]]
        origin = origins[-1]
        if all(n.target in _PURE_VIEWS for n in chain):
            return ViewCall(aten.view.default, origin, (node.args[1],))
        if any(len(n.all_input_nodes) > 1 for n in chain):
            return None
        start, end = layout_of(origin.meta.get("val")), layout_of(node.meta.get("val"))
        if start is None or end is None or start[2:] != end[2:]:
            return None
        value, made, certain = (
            origin.meta["val"],
            node.meta["val"],
            origin.target in _CONTIGUOUS_RESULTS,
        )
        certain = certain and origin in self.inside
        offset = made.storage_offset() - value.storage_offset()
        if not value.is_contiguous() or value.numel() == 0 or (offset and not certain):
            return None  # an input may lie anywhere in its storage
        place = (list(made.shape), list(made.stride()), *([offset] if offset else []))
        return ViewCall(
            aten.as_strided.default, origin, place, () if certain else tuple(reversed(chain))
        )

    def live(self) -> list[fx.Node]:
        """The nodes but for views that nothing reads."""
        used, found = {final(r, self.known) for r in self.kept}, []
        for node in reversed(self.body):
            if node not in self.known and (node in used or node not in self.views):
                found.append(node)
                used |= {final(n, self.known) for n in inputs_of(node, self.calls)}
        return found[::-1]


def is_view(node: fx.Node) -> bool:
    """Is it a view operation of torch's, which computes nothing? One of somebody else's may do
    more."""
    target, args = node.target, node.args
    if not isinstance(target, OpOverload) or not _views(target):
        return False
    return (
        bool(args)
        and isinstance(args[0], fx.Node)
        and isinstance(node.meta.get("val"), torch.Tensor)
    )


@functools.cache
def _views(target: OpOverload) -> bool:
    if op_schema(target).is_mutable:
        return False
    return (
        target.is_view and target.namespace in ("aten", "prims")
    ) or target is aten._unsafe_view.default


def layout_of(value: object) -> tuple[Any, ...] | None:
    """Where a tensor lies in its storage and what is there; None where that is not known in plain
    numbers."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    if {*map(type, numbers)} != {int}:
        return None
    return (value.dim(), numbers, value.dtype, value.device, value.is_conj(), value.is_neg())


def is_fresh(node: fx.Node) -> bool:
    """Is the value a new tensor: neither an input, nor a view, nor one of several results?"""
    target: Any = node.target
    if (
        node.op != "call_function"
        or not isinstance(target, OpOverload)
        or target.namespace != "aten"
    ):
        return False
    returns = op_schema(target).returns
    return (
        target is not aten._unsafe_view.default
        and len(returns) == 1
        and returns[0].alias_info is None
    )
