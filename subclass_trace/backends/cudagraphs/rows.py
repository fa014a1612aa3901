"""Does a program compute each row of its batch by itself? Then a batch may be padded.

``check`` follows the dimension that has the size of the batch, or a multiple of it, through the
graph: each operation has to be in a table that says where that dimension goes. What is in no table
is taken to mix rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.fx as fx

from ...capture.graphs import where
from ...torch_api.kinds import SYM_TYPES
from ...torch_api.lines import location_text
from ...torch_api.operators import OpOverload, op_packet
from ...torch_api.trees import pytree

Tensor = torch.Tensor
aten = torch.ops.aten


class MixesRows(Exception):
    """It does; the text says where."""


def rows_of(value: Any, symbol: Any) -> int | None:
    """The dimension of a tensor that has so many rows, or a multiple.

    Raises:
        MixesRows: there are several, or it is computed in another way.
    """
    found = None
    for d, n in enumerate(value.shape if isinstance(value, Tensor) else ()):
        expr = _expr(n)
        if expr is not None and symbol in expr.free_symbols:
            if found is not None or not (expr / symbol).is_Integer:
                raise MixesRows("two dimensions have it, or one that is computed of it")
            found = d
    return found


def size_at(n: Any, symbol: Any, value: int) -> int:
    """A size, or a stride, where the symbol has that value."""
    expr = _expr(n)
    return int(n) if expr is None else int(expr.subs(symbol, value))


def _expr(n: Any) -> Any:
    return n.node.expr if isinstance(n, torch.SymInt) else None


def check(graph: fx.Graph, symbol: Any) -> None:
    """See the module's docstring.

    Raises:
        MixesRows: the operation that is in no table, and its line.
    """
    for node in graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        values = [n.meta.get("val") for n in node.all_input_nodes]
        results = pytree.tree_leaves(node.meta.get("val"))
        try:
            dims = [rows_of(v, symbol) for v in values]
            out = [rows_of(r, symbol) for r in results]
            if {*dims, *out} <= {None} and not any(map(_is_number, (*values, *results))):
                continue  # it is about weights
            if isinstance(node.target, OpOverload):
                rule = _RULES.get(op_packet(node.target), _pointwise)
            else:
                rule = _on_sizes
            if not rule(node, symbol):
                raise MixesRows("it may mix rows")
        except MixesRows as why:
            at = where(node)
            text = f"{node.target}{f' at {location_text(at)}' if at else ''}"
            raise MixesRows(f"{text}: {why}") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, SYM_TYPES)


def _val(arg: Any) -> Any:
    return arg.meta.get("val") if isinstance(arg, fx.Node) else arg


def _rows(arg: Any, symbol: Any) -> int | None:
    return rows_of(_val(arg), symbol)


def _no_sizes(node: fx.Node) -> bool:
    """No number that is computed of sizes is a number of the computation."""
    return not any(_is_number(n.meta.get("val")) for n in node.all_input_nodes)


# ---- rules: (node, symbol) -> is each row of its result that of the same row of its inputs?
def _on_sizes(node: fx.Node, symbol: Any) -> bool:
    return _is_number(node.meta.get("val"))


def _pointwise(node: fx.Node, symbol: Any) -> bool:
    tags, out = node.target.tags, node.meta.get("val")  # type: ignore[union-attr]
    if torch.Tag.pointwise not in tags or torch.Tag.nondeterministic_seeded in tags:
        return False
    return _no_sizes(node) and _aligned(node, out, symbol)


def _aligned(node: fx.Node, out: Any, symbol: Any) -> bool:
    """Counted from the last dimension, all have the rows at the same one."""
    places = {
        v.dim() - d
        for n in node.all_input_nodes
        if isinstance(v := n.meta.get("val"), Tensor) and (d := rows_of(v, symbol)) is not None
    }
    d = rows_of(out, symbol)
    return d is not None and places <= {out.dim() - d}


def _same(node: fx.Node, symbol: Any) -> bool:
    return _no_sizes(node) and _aligned(node, node.meta["val"], symbol)


def _made(node: fx.Node, symbol: Any) -> bool:
    return True  # it has the size of a batch, and one content


def _matrix(first: int) -> Callable[[fx.Node, Any], bool]:
    """A product; argument ``first`` is the left factor, which alone has rows."""

    def rule(node: fx.Node, symbol: Any) -> bool:
        rest = [a for k, a in enumerate(node.args) if k != first]
        return _rows(node.args[first], symbol) == 0 and all(_rows(a, symbol) is None for a in rest)

    return rule


def _batched(first: int) -> Callable[[fx.Node, Any], bool]:
    def rule(node: fx.Node, symbol: Any) -> bool:
        left, right = (_rows(a, symbol) for a in node.args[first : first + 2])
        added = {_rows(a, symbol) for a in node.args[:first]}
        return (left, right) in ((0, 0), (1, None)) and added <= {None, left}

    return rule


def _view(node: fx.Node, symbol: Any) -> bool:
    """As many elements stand in front of the dimension as before."""
    given, made = _val(node.args[0]), node.meta["val"]
    before, after = rows_of(given, symbol), rows_of(made, symbol)
    if before is None or after is None:
        return False
    return bool(prod(given.shape[:before]) == prod(made.shape[:after]))


def _moved(node: fx.Node, symbol: Any) -> bool:
    """Dimensions change places: sizes tell, where only one has the symbol."""
    return _rows(node.args[0], symbol) is not None


def _apart(place: int, default: Any = 0) -> Callable[[fx.Node, Any], bool]:
    """The dimensions that argument ``place`` names are others; None: all of them are meant."""

    def rule(node: fx.Node, symbol: Any) -> bool:
        dims = node.args[place] if len(node.args) > place else node.kwargs.get("dim", default)
        given = _val(node.args[0])
        for value in given if isinstance(given, (list, tuple)) else [given]:
            value = _val(value)
            named = [dims] if isinstance(dims, int) else dims
            if not named or not isinstance(named, (list, tuple)):
                return False
            d = rows_of(value, symbol)
            if d is None or d in [n % value.dim() for n in named]:
                return False
        return True

    return rule


def _normed(node: fx.Node, symbol: Any) -> bool:
    value, shape = _val(node.args[0]), node.args[1]
    d, others = rows_of(value, symbol), node.args[2:]
    within = isinstance(shape, Sequence) and d is not None and d < value.dim() - len(shape)
    return within and all(_rows(a, symbol) is None for a in others)


def _lookup(node: fx.Node, symbol: Any) -> bool:
    return _rows(node.args[0], symbol) is None


def _attention(node: fx.Node, symbol: Any) -> bool:
    """Without dropout, which is the first of its numbers."""
    rows = [_rows(a, symbol) for a in node.args[:3]]
    rates = [a for a in (*node.args[3:], *node.kwargs.values()) if type(a) is float and a]
    masks = [a for a in (*node.args[3:], *node.kwargs.values()) if isinstance(a, fx.Node)]
    return rows == [0, 0, 0] and not rates and all(_rows(m, symbol) in (None, 0) for m in masks)


_RULES: dict[Any, Callable[[fx.Node, Any], bool]] = {
    **dict.fromkeys((aten.clone, aten._to_copy, aten.alias, aten.detach, aten.expand), _same),
    **dict.fromkeys((aten.full, aten.zeros, aten.ones, aten.full_like, aten.zeros_like), _made),
    **dict.fromkeys((aten.ones_like, aten.new_zeros, aten.new_ones, aten.new_full), _made),
    **dict.fromkeys((aten.view, aten._unsafe_view, aten.reshape), _view),
    **dict.fromkeys((aten.squeeze, aten.unsqueeze, aten.permute, aten.transpose, aten.t), _moved),
    **dict.fromkeys((aten.select, aten.slice, aten.amax, aten.amin, aten.cumsum), _apart(1)),
    **dict.fromkeys((aten._softmax, aten._log_softmax, aten.cat, aten.stack), _apart(1)),
    **dict.fromkeys((aten.sum, aten.mean, aten.var, aten.var_mean, aten.argmax), _apart(1, None)),
    **dict.fromkeys((aten.split, aten.split_with_sizes), _apart(2)),
    **dict.fromkeys((aten.native_layer_norm, aten._fused_rms_norm), _normed),
    **dict.fromkeys((aten._scaled_dot_product_flash_attention_for_cpu,), _attention),
    **dict.fromkeys((aten._scaled_dot_product_efficient_attention,), _attention),
    **dict.fromkeys((aten._scaled_dot_product_flash_attention,), _attention),
    aten.convolution: _matrix(0),
    aten.mm: _matrix(0),
    aten.addmm: _matrix(1),
    aten.bmm: _batched(0),
    aten.baddbmm: _batched(1),
    aten.embedding: _lookup,
    aten.sym_size: _on_sizes,
}
