"""Symbolic numbers of a capture: which node of the graph holds each symbol, and what is taken for
true of them.

A symbol comes from an input (one of its sizes, its strides, its offset, or the input itself), or
from an operation whose result depends on values inside tensors (``nonzero``, ``.item()``).
Expressions over them become nodes when an operation, or the run time, asks for them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..errors import UnsupportedError
from ..subclass.spec import is_ragged
from ..torch_api.exact_numbers import new_unknown
from ..torch_api.kinds import SYM_TYPES
from ..torch_api.symbols import (
    nested_int_id,
    new_ragged_size,
    size_symbol,
    sympy_to_nodes,
    unbacked_bindings,
)

aten = torch.ops.aten
Tensor = torch.Tensor
READERS = {
    "size": aten.sym_size.int,
    "stride": aten.sym_stride.int,
    "storage_offset": aten.sym_storage_offset.default,
}


class Symbols:
    """The symbols of one graph. ``tag`` in its methods is the ``partitioner_tag`` of the nodes that
    they add."""

    def __init__(self, graph: fx.Graph, mode: Any) -> None:
        self.graph, self.mode = graph, mode
        self.tracer = fx.proxy.GraphAppendingTracer(graph)
        # has the capture met a number that depends on values inside tensors?
        self.data_dependent = False
        self.floats: set[Any] = set()  # symbols of floats that the call brings
        self._nodes: dict[Any, fx.Node] = {}  # expression -> what computes it
        # symbol -> input, what of it, dimension
        self._sources: dict[Any, tuple[fx.Node, str, int]] = {}
        self._ragged: dict[int, Any] = {}  # nested int of a real tensor -> symbol

    # ---- where symbols come from
    def bind(self, node: fx.Node, value: Any) -> None:
        """Symbols among the sizes of an input, or an input that is a symbol: read from there where
        they are needed."""
        if not isinstance(value, Tensor):
            if isinstance(value, SYM_TYPES):
                self._sources.setdefault(value.node.expr, (node, "self", 0))
            return
        strided = value.layout is torch.strided
        rows = [("size", value.shape), ("stride", value.stride() if strided else ())]
        for kind, sizes in [
            *rows,
            ("storage_offset", (value.storage_offset(),) if strided else ()),
        ]:
            for dim, size in enumerate(sizes):
                symbol = size_symbol(size)
                if symbol is not None:
                    self._sources.setdefault(symbol, (node, kind, dim))

    def bind_data_dependent(self, node: fx.Node, out: Any, tag: str) -> None:
        """Symbols that this operation made (nonzero): each becomes a size node of the result."""
        bindings = unbacked_bindings(self.mode.shape_env, out)
        if not bindings:
            return
        self.data_dependent = True
        node.meta["unbacked_bindings"] = bindings
        for symbol, keypath in bindings.items():
            made = self._at(node, keypath)
            made.meta.setdefault("partitioner_tag", tag)
            self._nodes[symbol] = made
            if made is not node:
                made.meta["val"] = symint(self.mode.shape_env, symbol)

    def _at(self, node: fx.Node, keypath: Sequence[Any]) -> fx.Node:
        """The number at a pytree path of torch's into the result of ``node``, such as
        ``[1].size()[0]``."""
        made, pending = node, None
        for key in keypath:
            name = type(key).__name__
            if name == "CallMethodKey" and key.name in ("size", "stride"):
                pending = READERS[key.name]
            elif name == "CallMethodKey":
                made = self.graph.call_function(aten.sym_storage_offset.default, (made,))
            elif name == "SequenceKey" and pending is not None:
                made, pending = self.graph.call_function(pending, (made, key.idx)), None
            elif name == "SequenceKey":
                val = made.meta["val"][key.idx]
                made = self.graph.call_function(operator.getitem, (made, key.idx))
                made.meta.update(
                    {k: v for k, v in node.meta.items() if k != "unbacked_bindings"} | {"val": val}
                )
        return made

    def ragged_sizes(self, sizes: Sequence[Any]) -> tuple[Any, ...]:
        """Sizes with a symbol for each nested int of a real jagged tensor: one for all tensors of
        the same offsets."""
        for number in map(nested_int_id, filter(is_ragged, sizes)):
            if number not in self._ragged:
                self._ragged[number] = new_ragged_size(self.mode)
        return tuple(self._ragged[nested_int_id(n)] if is_ragged(n) else n for n in sizes)

    # ---- their nodes
    def adopt(self, value: Any, node: fx.Node) -> None:
        """If ``value`` is a symbolic number: ``node`` computes it."""
        if isinstance(value, SYM_TYPES) and not is_ragged(value):
            self._nodes.setdefault(value.node.expr, node)

    def node_of(self, value: Any, tag: str) -> Any:
        """The node of a SymInt (SymFloat, SymBool), built on demand; a number if its expression is
        one.

        Raises:
            UnsupportedError: a ragged size is used as a number, or a symbol belongs to no input.
        """
        if is_ragged(value):
            raise UnsupportedError(
                "a ragged size (nested int) is used as a number", code="ragged-number", got=value
            )
        expr = value.node.expr
        if expr.is_number or (expr.is_Boolean and not expr.free_symbols):
            return (
                int(expr)
                if isinstance(value, torch.SymInt)
                else bool(expr)
                if expr.is_Boolean
                else float(expr)
            )
        hit = self._nodes.get(expr)
        if hit is None:
            hit = (
                self._source_node(expr, value)
                if expr.is_Symbol
                else self._expression_node(expr, tag)
            )
            self._keep(expr, hit, value, tag)
        return hit

    def _keep(self, expr: Any, node: fx.Node, value: Any, tag: str) -> None:
        node.meta.setdefault("val", value)
        node.meta.setdefault("partitioner_tag", tag)
        self._nodes[expr] = node

    def _source_node(self, symbol: Any, value: Any) -> fx.Node:
        found = self._sources.get(symbol)
        if found is None:
            raise UnsupportedError(
                f"the size symbol {symbol} belongs to no input of the region",
                code="size-of-no-input",
                got=value,
            )
        node, kind, dim = found
        if kind == "self":
            return node
        return self.graph.call_function(
            READERS[kind], (node,) if kind == "storage_offset" else (node, dim)
        )

    def _expression_node(self, expr: Any, tag: str) -> fx.Node:
        for symbol in sorted(expr.free_symbols, key=str):
            if symbol not in self._nodes:  # also one that the trace took for constant since
                value = symint(self.mode.shape_env, symbol)
                self._keep(symbol, self._source_node(symbol, value), value, tag)
        proxies = {s: fx.Proxy(self._nodes[s], self.tracer) for s in expr.free_symbols}
        made: fx.Node = sympy_to_nodes(expr, proxies).node
        fresh = [made]
        while "val" not in fresh[-1].prev.meta and fresh[-1].prev.op == "call_function":
            fresh.append(fresh[-1].prev)
        for node in reversed(fresh):  # sub-expressions need a value too
            node.meta["val"] = _value_of(node)
            node.meta["partitioner_tag"] = tag
        return made

    def computed(
        self, function: Callable[..., Any], numbers: Sequence[Any], whole: bool, tag: str
    ) -> fx.Node:
        """The node of a number that ``function`` makes of numbers; its value is a new symbol."""
        nodes = [self.node_of(n, tag) if isinstance(n, SYM_TYPES) else n for n in numbers]
        node = self.graph.call_function(function, tuple(nodes))
        value = new_unknown(self.mode.shape_env, whole)
        node.meta["is_step"] = True
        self._keep(value.node.expr, node, value, tag)
        return node

    # ---- numbers that depend on values inside tensors
    def data_dependent_parts(self, n: Any) -> list[tuple[Any, Any]]:
        """(symbol, its SymInt) for each symbol in a number that depends on values inside
        tensors."""
        if not isinstance(n, torch.SymInt) or is_ragged(n):
            return []
        env = self.mode.shape_env
        return [
            (s, symint(env, s))
            for s in sorted(n.node.expr.free_symbols, key=str)
            if env.is_unbacked_symint(s)
        ]

    def assertions(self, tag: str) -> Iterator[fx.Node]:
        """Nodes that check in each call what the trace took for true of such numbers
        (``torch._check``, bounds)."""
        if not self.data_dependent:
            return
        known = {*self._nodes, *self._sources}
        for row in (
            row for rows in self.mode.shape_env.deferred_runtime_asserts.values() for row in rows
        ):
            if not row.expr.free_symbols <= known:
                raise UnsupportedError(
                    "a condition on values inside tensors cannot be checked in each call",
                    code="condition-on-values",
                    got=row.expr,
                )
            text = f"a condition on values inside tensors does not hold: {row.expr}"
            condition = self._expression_node(row.expr, tag)
            check = self.graph.call_function(aten._assert_scalar.default, (condition, text))
            check.meta["val"] = None
            yield check


def _value_of(node: fx.Node) -> Any:
    """What a node makes of the numbers that it takes."""
    values: Any = fx.node.map_arg(node.args, lambda n: n.meta["val"])
    # ``**`` asks whether the base is negative
    if node.target is operator.pow and isinstance(values[0], torch.SymFloat):
        return values[0].__float_pow__(values[1])
    return node.target(*values)  # type: ignore[operator]


def symint(env: Any, symbol: Any) -> Any:
    """The size that is this symbol alone."""
    value = env.backed_var_to_val.get(symbol)
    return env.create_symintnode(symbol, hint=None if value is None else int(value))
