"""Does a program compute each row of its batch by itself? Then a batch may be padded.

``check`` follows the dimension that has the size of the batch, or a multiple of it, through the
graph: each operation has to be in a table that says where that dimension goes. What is in no table
is taken to mix rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
import torch.fx as fx

from ...capture.graphs import where
from ...torch_api.kinds import SYM_TYPES
from ...torch_api.lines import location_text
from ...torch_api.operators import OpOverload, op_packet
from ...torch_api.trees import pytree

Tensor = torch.Tensor
aten = torch.ops.aten


class Step(NamedTuple):
    """An operation: arguments, where each has its rows, the result, where that has them."""

    args: list[Any]
    rows: list[int | None]
    out: Tensor
    d: int | None


#: is each row of the result that of the same row of the arguments?
Rule = Callable[[Step], bool]


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
        try:
            if not _keeps_rows(node, symbol):
                raise MixesRows("it may mix rows")
        except MixesRows as why:
            at = where(node)
            text = f"{node.target}{f' at {location_text(at)}' if at else ''}"
            raise MixesRows(f"{text}: {why}") from None


def _keeps_rows(node: fx.Node, symbol: Any) -> bool:
    val, target = node.meta.get("val"), node.target
    if isinstance(val, SYM_TYPES):
        return True  # where a number is used, it is looked at
    given = [n.meta.get("val") for n in node.all_input_nodes]
    results = [r for r in pytree.tree_leaves(val) if isinstance(r, Tensor)]
    outs = [rows_of(r, symbol) for r in results]
    numbers = any(isinstance(v, SYM_TYPES) for v in given)
    if {*outs, *(rows_of(v, symbol) for v in given)} <= {None} and not numbers:
        return True  # it is about weights
    if not isinstance(target, OpOverload) or "dim" in node.kwargs:
        return False
    tensors = [a for a in node.kwargs.values() if isinstance(a, fx.Node)]
    args = list(fx.node.map_arg((*node.args, *tensors), lambda n: n.meta.get("val")))
    if any(isinstance(a, SYM_TYPES) for a in args):
        return False
    rule = _RULES.get(op_packet(target))
    if rule is None and torch.Tag.pointwise in target.tags:
        rule = None if torch.Tag.nondeterministic_seeded in target.tags else _aligned
    if rule is None or (numbers and rule not in (_shaped, _view, _made)):
        return False
    return rule(Step(args, [_rows(a, symbol) for a in args], results[0], outs[0]))


def _rows(arg: Any, symbol: Any) -> int | None:
    """Of a list, where each of it has them."""
    found = {rows_of(t, symbol) for t in pytree.tree_leaves(arg) if isinstance(t, Tensor)} or {None}
    if len(found) > 1:
        raise MixesRows("tensors of a list have them elsewhere")
    return found.pop()


# ---- rules
def _aligned(op: Step) -> bool:
    """Counted from the last dimension, all have the rows at the same one."""
    pairs = zip(op.args, op.rows, strict=True)
    places = {a.dim() - r for a, r in pairs if r is not None}
    return op.d is not None and places <= {op.out.dim() - op.d}


def _shaped(op: Step) -> bool:
    return _aligned(op)


def _made(op: Step) -> bool:
    return True  # it has the size of a batch, and one content


def _view(op: Step) -> bool:
    """As many elements stand in front of the dimension as before."""
    before = op.rows[0]
    if before is None or op.d is None:
        return False
    return bool(prod(op.args[0].shape[:before]) == prod(op.out.shape[: op.d]))


def _moved(op: Step) -> bool:
    """Dimensions change places: sizes tell, where only one has the symbol."""
    return op.rows[0] is not None


def _alone(place: int) -> Rule:
    """The batch comes first in this argument, and others have none."""
    return lambda op: op.rows[place] == 0 and {*op.rows[:place], *op.rows[place + 1 :]} <= {None}


def _batched(place: int) -> Rule:
    def rule(op: Step) -> bool:
        left, right = op.rows[place : place + 2]
        return (left, right) in ((0, 0), (1, None)) and {*op.rows[:place]} <= {None, left}

    return rule


def _apart(place: int, default: Any = 0) -> Rule:
    """The dimensions that this argument names are others; None: all of them are meant."""

    def rule(op: Step) -> bool:
        named = op.args[place] if len(op.args) > place else default
        named = [named] if type(named) is int else named
        if not named or not isinstance(named, (list, tuple)) or op.rows[0] is None:
            return False
        return op.rows[0] not in [n % pytree.tree_leaves(op.args[0])[0].dim() for n in named]

    return rule


def _sliced(op: Step) -> bool:
    """Of other dimensions, or all of this one."""
    r = op.rows[0]
    whole = r is not None and op.d == r and _expr(op.out.shape[r]) == _expr(op.args[0].shape[r])
    return whole or _apart(1)(op)


def _normed(op: Step) -> bool:
    within = op.rows[0] is not None and op.rows[0] < op.args[0].dim() - len(op.args[1])
    return within and {*op.rows[1:]} <= {None}


def _lookup(op: Step) -> bool:
    return op.rows[0] is None


def _attention(op: Step) -> bool:
    """Without dropout, which is the first of its numbers."""
    no_rates = not any(type(a) is float and a for a in op.args)
    return op.rows[:3] == [0, 0, 0] and no_rates and {*op.rows[3:]} <= {None, 0}


def _table(*rows: tuple[Rule, str]) -> dict[Any, Rule]:
    return {getattr(aten, name): rule for rule, names in rows for name in names.split()}


_RULES = _table(
    (_aligned, "clone _to_copy alias detach"),
    (_shaped, "expand"),
    (_made, "full zeros ones full_like zeros_like ones_like new_zeros new_ones new_full"),
    (_view, "view _unsafe_view reshape"),
    (_moved, "squeeze unsqueeze permute transpose t stack"),
    (_apart(1), "select amax amin cumsum _softmax _log_softmax cat"),
    (_sliced, "slice"),
    (_apart(1, None), "sum mean var var_mean argmax"),
    (_apart(2), "split split_with_sizes"),
    (_normed, "native_layer_norm _fused_rms_norm"),
    (_attention, "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention"),
    (_attention, "_scaled_dot_product_efficient_attention"),
    (_alone(0), "mm convolution _native_batch_norm_legit_no_training max_pool2d_with_indices"),
    (_alone(1), "addmm"),
    (_batched(0), "bmm"),
    (_batched(1), "baddbmm"),
    (_lookup, "embedding"),
)
