"""The same kernels by fewer calls from Python.

Autograd and decompositions leave a program of small steps: `F.linear` is ``view``, ``t``, ``addmm``, ``view``, and the
heads of an attention are four views of one product. Each step costs as much as a small kernel, and most of that is the
way from Python into the dispatcher. Here views of views become one call, and the steps of `F.linear` become `F.linear`,
which issues them itself, below Python. See Note [What is the same].

Note [What is the same]
~~~~~~~~~~~~~~~~~~~~~~~
* A ``view`` of a ``view`` is one ``view``: which sizes a tensor can be viewed in depends on where its elements lie, and
  the first view did not move them. ``_unsafe_view`` is a ``view`` to everybody but autograd, which is not there.
* Any other chain of views of a contiguous tensor is one ``as_strided``, with the numbers of the trace. A tensor that the
  program makes by an operation whose results are always contiguous is so in each call. Any other one is asked: a hook on
  saved activations may give back the same values in another order in memory. What it is not, the chain is made of.
* `F.linear` (``at::linear``) with a vector as bias calls ``addmm`` on the transposed weight, after it has flattened a
  contiguous input of three or more dimensions. Without a bias it calls ``mm`` in the same way. Tests compare what it
  issues with what it replaces.

What the program returns is made as the graph says: its place in memory, its base and its history are other people's
business.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
import torch.fx as fx
import torch.nn.functional as F

from ... import torch_api
from .round_trips import Call, Merged, final, inputs_of, is_view, layout_of, without_unread_views

aten = torch.ops.aten
_PURE_VIEWS = (aten.view.default, aten._unsafe_view.default)
_CONTIGUOUS_RESULTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
_TRANSPOSES: dict[Any, tuple[Any, ...]] = {
    aten.t.default: ((),),
    aten.transpose.int: ((0, 1), (1, 0), (-2, -1), (-1, -2)),
    aten.permute.default: (([1, 0],),),
}


def fewer_calls(
    body: list[fx.Node],
    results: list[Any],
    merged: Merged,
    given: Collection[fx.Node] = (),
) -> tuple[list[fx.Node], dict[fx.Node, Call]]:
    """The nodes that are still to be run, and how those of them are called that are called in another way.

    Args:
        body: nodes in order.
        results: nodes (and constants) that are returned.
        merged: nodes that have the value of another one, which is in ``body`` or ``given``.
        given: nodes whose values are passed.
    """
    program = _Program(body, results, merged, {}, given)
    program.shorten_chains()
    body = without_unread_views(body, results, merged, program.calls)
    program = _Program(body, results, merged, program.calls, given)
    gone = program.gather_linears()
    body = [n for n in body if n not in gone]
    return without_unread_views(body, results, merged, program.calls), program.calls


class _Program:
    """A list of nodes, and who reads what."""

    def __init__(
        self,
        body: list[fx.Node],
        results: list[Any],
        merged: Merged,
        calls: dict[fx.Node, Call],
        given: Collection[fx.Node],
    ) -> None:
        self.body, self.merged, self.calls, self.given = body, merged, calls, given
        self.place = {node: k for k, node in enumerate(body)}
        self.views = {node for node in body if node not in calls and is_view(node)}
        self.results = {final(r, merged) for r in results if isinstance(r, fx.Node)}
        self.readers: dict[fx.Node, list[fx.Node]] = {}
        for node in body:
            for read in {final(n, merged) for n in inputs_of(node, calls)}:
                self.readers.setdefault(read, []).append(node)

    def is_plain_view(self, node: object) -> bool:
        """Is it made here by a view operation, called as it stands?"""
        return node in self.views and node not in self.calls

    def argument(self, node: fx.Node, k: int = 0) -> Any:
        """The node that has the value of an argument."""
        value = node.args[k]
        return final(value, self.merged) if isinstance(value, fx.Node) else value

    # -------------------------------------------------------------------------------------- views of views
    def shorten_chains(self) -> None:
        """Call what is read by more than views in one step, if it takes several."""
        needed = [
            n for n in self.body if self.is_plain_view(n) and not all(map(self.is_plain_view, self.readers.get(n, ())))
        ]
        stops = {*needed, *self.results}
        for node in needed:
            if node not in self.results and (call := self._in_one_step(node, stops)) is not None:
                self.calls[node] = call

    def _in_one_step(self, node: fx.Node, stops: Collection[fx.Node]) -> Call | None:
        chain = self._chain(node, stops)
        origin = self.argument(chain[0])
        if all(n.target in _PURE_VIEWS for n in chain):
            is_short = len(chain) == 1 and node.target is aten.view.default
            return None if is_short else Call(aten.view.default, (origin, node.args[1]))
        return None if len(chain) == 1 else self._as_strided(node, self._chain(node, ()))

    def _chain(self, node: fx.Node, stops: Collection[fx.Node]) -> tuple[fx.Node, ...]:
        """The views that lead to a node from the nearest value that is no view, or one of ``stops``."""
        chain = [node]
        while self.is_plain_view(origin := self.argument(chain[-1])) and origin not in stops:
            chain.append(origin)
        return tuple(reversed(chain))

    def _as_strided(self, node: fx.Node, chain: tuple[fx.Node, ...]) -> Call | None:
        origin = self.argument(chain[0])
        start, end = layout_of(origin.meta.get("val")), layout_of(node.meta.get("val"))
        if start is None or end is None or start[2:] != end[2:] or not origin.meta["val"].is_contiguous():
            return None
        if any(len(n.all_input_nodes) > 1 for n in chain) or origin.meta["val"].numel() == 0:
            return None
        val = node.meta["val"]
        offset = val.storage_offset() - origin.meta["val"].storage_offset()
        if offset and not self._is_made_here(origin):  # an input may lie anywhere in its storage
            return None
        place = (list(val.shape), list(val.stride()), offset) if offset else (list(val.shape), list(val.stride()))
        certain = self._is_made_here(origin) and origin.target in _CONTIGUOUS_RESULTS
        return Call(aten.as_strided.default, (origin, *place), chain=() if certain else chain)

    def _is_made_here(self, node: fx.Node) -> bool:
        """Is it a tensor with a storage of its own, made by this program?"""
        return node in self.place and node not in self.given and node.target in _CONTIGUOUS_RESULTS

    # -------------------------------------------------------------------------------------- linear layers
    def gather_linears(self) -> set[fx.Node]:
        """Products with a transposed weight; what is in them is run no more."""
        gone = set[fx.Node]()
        for node in self.body:
            parts = self._linear(node)
            if parts is None:
                continue
            rows, weight, bias = parts
            view = self._only_view_of(node)
            deep = None if view is None else self._flattened(rows, view, weight)
            if view is not None and deep is not None:
                self.calls[view] = Call(F.linear, (deep, weight, *bias), blamed=node)
                gone.add(node)
            else:
                self.calls[node] = Call(F.linear, (rows, weight, *bias))
        return gone

    def _linear(self, node: fx.Node) -> tuple[fx.Node, fx.Node, tuple[fx.Node, ...]] | None:
        """Rows, weight and bias, if it is ``addmm(bias, rows, weight.t())`` or ``mm(rows, weight.t())``."""
        if node in self.calls or node.kwargs or node.target not in (aten.mm.default, aten.addmm.default):
            return None
        *bias, rows, turned = (self.argument(node, k) for k in range(len(node.args)))
        if not self._is_transpose(turned) or len(self.readers.get(turned, ())) != 1 or turned in self.results:
            return None
        if any(b.meta["val"].dim() != 1 for b in bias) or node.meta["val"].device.type not in ("cpu", "cuda"):
            return None
        return rows, self.argument(turned), tuple(bias)

    def _is_transpose(self, node: fx.Node) -> bool:
        return (
            self.is_plain_view(node)
            and node.meta["val"].dim() == 2
            and node.args[1:] in _TRANSPOSES.get(node.target, ())
            and layout_of(node.meta["val"]) is not None
        )

    def _only_view_of(self, node: fx.Node) -> fx.Node | None:
        """The view that alone reads the node, if there is one."""
        readers = self.readers.get(node, ())
        if node in self.results or len(readers) != 1 or readers[0] in self.results:
            return None
        between = self.body[self.place[node] : self.place[readers[0]]]  # the product is made where the view is
        if self._shape_viewed(readers[0]) is None or any(map(_may_write, between)):
            return None
        return readers[0]

    def _shape_viewed(self, node: fx.Node) -> list[int] | None:
        """The sizes of a ``view`` in plain numbers."""
        target: Any = self.calls[node].target if node in self.calls else node.target
        val: Any = node.meta.get("val")
        return list(val.shape) if target in _PURE_VIEWS and layout_of(val) is not None else None

    def _flattened(self, rows: fx.Node, view: fx.Node, weight: fx.Node) -> fx.Node | None:
        """What the rows are the last dimension of, if `F.linear` of it is the view."""
        if rows not in self.place or self._shape_viewed(rows) is None or weight.meta["val"].dim() != 2:
            return None
        call = self.calls.get(rows)
        deep = self.argument(rows) if call is None else final(call.args[0], self.merged)
        val: Any = deep.meta.get("val")
        if layout_of(val) is None or val.dim() < 3 or not val.is_contiguous() or 0 in val.shape:
            return None
        fits = [*val.shape[:-1], weight.meta["val"].shape[0]] == list(view.meta["val"].shape)
        return deep if fits and list(rows.meta["val"].shape[1:]) == list(val.shape[-1:]) else None


def _may_write(node: fx.Node) -> bool:
    target: Any = node.target
    if not isinstance(target, torch_api.OpOverload):
        return target is not operator.getitem
    return target.namespace != "aten" or bool(torch_api.op_schema(target).is_mutable)
