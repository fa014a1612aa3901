"""A partition as data: which nodes of a joint graph each program runs, and what is saved, by their
numbers.

The nodes themselves are those of a joint graph that was just traced, so a partition that is read
can leave out, double or swap something, but bring nothing of its own. What is read is checked for
that: each node finds what it reads, runs once where it may not run twice, and is one with another
only where both compute the same.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.fx as fx

from ..capture.graphs import output_args, trace_name
from ..capture.tape import TracedBackward
from ..errors import DescriptionError
from ..torch_api.kinds import SYM_TYPES, storage_key
from ..torch_api.operators import OpOverload, op_schema
from ..torch_api.symbols import symbol_bounds
from ..torch_api.trees import pytree
from .half import Half, Partitioned
from .table import EFFECTS, MUTABLE, ONCE, effects_of, key_of

#: name -> number, operation and arguments of a node
Known: TypeAlias = Mapping[str, tuple[int, str]]


# ---- what decides a partition
def rows_of(traced: TracedBackward) -> list[str]:
    """A joint graph as text: operations, arguments, layouts, memory, tags, symbols. No lines and no
    paths: equal graphs of other code are equal."""
    memory: dict[int, int] = {}
    symbols: dict[str, Any] = {}

    def number(n: Any) -> Any:
        if not isinstance(n, SYM_TYPES):
            return n
        for symbol in n.node.expr.free_symbols:
            symbols[str(symbol)] = symbol_bounds(n.node.shape_env, symbol)
        return f"{n.node.expr}={n.node.hint}"

    def layout(v: Any) -> Any:
        if isinstance(v, (list, tuple)):
            return [*map(layout, v)]
        if not isinstance(v, torch.Tensor):
            return number(v) if isinstance(v, SYM_TYPES) else type(v).__name__
        if (key := storage_key(v)) is None:
            return f"{v.dtype} {v.device} {v.layout} {[*map(number, v.shape)]}"
        numbers = [*v.shape, *v.stride(), v.storage_offset(), v.untyped_storage().nbytes()]
        if any(type(n) is not int for n in numbers):
            numbers = [*map(number, numbers)]
        return f"{v.dtype} {v.device} {v.dim()} {numbers} {memory.setdefault(key, len(memory))}"

    rows = []
    for node in traced.joint.graph.nodes:
        tags = [node.meta.get(name) for name in _TAGS]
        rows.append(f"{node.name} {_said(node)} {layout(node.meta.get('val'))} {tags}")
    rest = (traced.num_forward, traced.draws, traced.tangents, sorted(symbols.items()))
    return [*rows, repr(rest)]


#: of a node's metadata
_TAGS = ("partitioner_tag", "recompute", "ac_graph_id", "trace_name", "phase")


def _said(node: fx.Node) -> str:
    """What a node does."""
    target = node.target if isinstance(node.target, str) else _name(node.target)
    return f"{node.op} {target} {node.args!r} {node.kwargs!r}"


@functools.cache
def _name(target: Any) -> str:
    bits = effects_of(target)
    if isinstance(target, OpOverload):
        return f"{op_schema(target)} {sorted(map(str, target.tags))} {bits}"
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)} {bits}"


# ---- writing
def known_nodes(joint: fx.GraphModule) -> Known:
    """The nodes of a joint graph, before a partitioner may change them."""
    return {node.name: (k, _said(node)) for k, node in enumerate(joint.graph.nodes)}


def partition_data(parts: Partitioned, known: Known) -> Any:
    """A partition as numbers of nodes; None where it has a node that the joint graph has not."""

    def numbers(nodes: Sequence[fx.Node]) -> list[int]:
        found = [known[node.name] for node in nodes]
        for node, (_, said) in zip(nodes, found, strict=True):
            if node.op != "placeholder" and _said(node) != said:
                raise KeyError(node.name)
        return [k for k, _ in found]

    first, second = parts.first, parts.second
    saved = first.outputs[len(first.outputs) - len(parts.saved) :]
    try:
        return {
            "forward": numbers(first.body),
            "backward": numbers(second.body),
            "saved": numbers(saved),
            "taken": numbers(second.inputs),
            "extra": [k for k, name in enumerate(parts.saved) if name in parts.extra],
            "merged": [numbers(pair) for pair in first.merged.items()],
        }
    except KeyError:
        return None


# ---- reading
def partition_of(data: Any, traced: TracedBackward, written: Collection[str]) -> Partitioned:
    """The partition of a joint graph that data says.

    Raises:
        DescriptionError: it is none of this graph.
    """
    try:
        return _Reader(data, traced).read(written)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DescriptionError(
            "no partition of this graph", path="partition", got=f"{type(error).__name__}: {error}"
        ) from error


def _fits(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


class _Reader:
    def __init__(self, data: Any, traced: TracedBackward) -> None:
        self.data, self.traced, self.joint = data, traced, traced.joint
        self.nodes = list(self.joint.graph.nodes)
        self.row = {node: k for k, node in enumerate(self.nodes)}
        inputs = [node for node in self.nodes if node.op == "placeholder"]
        self.tangents = [node for node in inputs if node.name in traced.tangents]
        self.primals = [node for node in inputs if node.name not in traced.tangents]
        self.bits = [effects_of(n.target) if n.op == "call_function" else 0 for n in self.nodes]
        self.given = output_args(self.joint.graph)
        self.merged: dict[fx.Node, fx.Node] = {}

    def read(self, written: Collection[str]) -> Partitioned:
        """See `partition_of`."""
        traced = self.traced
        _fits(not any(b & MUTABLE for b in self.bits), "a graph that writes")
        self._merge([(a, b) for a, b in map(self._list, self.data["merged"])])
        saved, taken, early, late = (
            self._list(self.data[name]) for name in ("saved", "taken", "forward", "backward")
        )
        kinds = [isinstance(node.meta.get("val"), SYM_TYPES) for node in saved]
        _fits(kinds == sorted(kinds), "sizes before tensors")
        _fits({*taken} <= {*saved, *self.tangents}, "an input of the backward that is not saved")
        results = self._merged(self.given[: traced.num_forward - traced.draws])
        self._runs(self.primals, early, [*self._merged(self.given[: traced.num_forward]), *saved])
        gradients = self._merged(self.given[traced.num_forward :])
        self._runs(taken, late, gradients)
        self._run_once(early, late)
        memory = {storage_key(n.meta["val"]) for n in self.primals if n.name in written} - {None}
        cloned = [
            k
            for k, node in enumerate(saved, len(results))
            if storage_key(node.meta.get("val")) in memory
        ]
        first = Half(self.joint, self.primals, early, [*results, *saved], self.merged, cloned)
        second = Half(self.joint, taken, late, gradients, self.merged)
        names = [trace_name(node) for node in saved]
        extra = frozenset(names[self._number(k, len(names))] for k in self.data["extra"])
        return Partitioned(first, second, (*names,), (*map(trace_name, taken),), extra)

    def _number(self, k: Any, end: int) -> int:
        _fits(type(k) is int and 0 <= k < end, "no number of a node")
        return int(k)

    def _list(self, numbers: Any) -> list[fx.Node]:
        """Nodes by their numbers, each once."""
        found = [self.nodes[self._number(k, len(self.nodes) - 1)] for k in numbers]
        _fits(len({*found}) == len(found), "a node twice")
        return found

    def _merge(self, pairs: Sequence[tuple[fx.Node, fx.Node]]) -> None:
        """Nodes that are one with an earlier one: what computes the same, and is no result."""
        held = {storage_key(n.meta.get("val")) for n in self.given if isinstance(n, fx.Node)}
        self.merged = dict(pairs)
        same = [self.row[self.merged.get(node, node)] for node in self.nodes]
        for node, other in pairs:
            k, before = self.row[node], self.row[other]
            vals = [pytree.tree_leaves(n.meta.get("val")) for n in (node, other)]
            alike = node.target is other.target and node.op == other.op == "call_function"
            _fits(alike and before < k and other not in self.merged, "other operations are one")
            _fits(not self.bits[k] & ONCE, "two calls with effects are one")
            _fits(not {storage_key(v) for vs in vals for v in vs} & (held - {None}), "a result")
            for a, b in ((node.args, other.args), (node.kwargs, other.kwargs)):
                _fits(key_of(a, self.row, same) == key_of(b, self.row, same), "other arguments")

    def _merged(self, outputs: Sequence[Any]) -> list[Any]:
        return [self.merged.get(o, o) if isinstance(o, fx.Node) else o for o in outputs]

    def _runs(self, given: Sequence[fx.Node], body: Sequence[fx.Node], outputs: Any) -> None:
        """Each node finds what it reads."""
        there = {*given}
        for node in body:
            _fits(node.op != "placeholder" and node not in there, "an input is computed")
            _fits({*self._merged(node.all_input_nodes)} <= there, "a value that is not there")
            there.add(node)
        _fits({o for o in outputs if isinstance(o, fx.Node)} <= there, "an output is missing")

    def _run_once(self, early: Sequence[fx.Node], late: Sequence[fx.Node]) -> None:
        """What has effects, or draws, runs once and in order; nothing of it is left out."""
        halves = [[self.row[node] for node in body] for body in (early, late)]
        once = [[k for k in half if self.bits[k] & ONCE] for half in halves]
        _fits(once == [sorted(half) for half in once], "effects in another order")
        _fits(not {*once[0]} & {*once[1]}, "an effect twice")
        all_of = {k for k, bits in enumerate(self.bits) if bits & EFFECTS}
        _fits(all_of <= {*once[0], *once[1]}, "an effect is missing")
        tags = {self.nodes[k].meta.get("partitioner_tag") for k in all_of & {*once[1]}}
        _fits("is_forward" not in tags, "an effect of the forward in the backward")
