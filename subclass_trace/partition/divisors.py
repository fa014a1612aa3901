"""Rows that the backward divides by, or whose logarithm or like it takes: rounded to 0 they would make it NaN."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx

from .. import _torch
from .table import GETITEM, VIEW, Table

aten = torch.ops.aten
#: operation -> the argument at which it has a pole
_POLES: dict[Any, int] = {
    **dict.fromkeys((aten.div, aten.true_divide, aten.floor_divide, aten.remainder, aten.fmod, aten.xlogy), 1),
    **dict.fromkeys((aten.reciprocal, aten.rsqrt, aten.log, aten.log2, aten.log10, aten.log1p, aten.lgamma), 0),
    **dict.fromkeys((aten.digamma, aten.polygamma, aten.logit, aten.atanh, aten.acosh, aten.linalg_inv_ex), 0),
    aten.logit_backward: 1,
    **dict.fromkeys((aten.linalg_solve_triangular,), 0),
}
#: these are never 0, whatever is rounded before them
_NEVER_ZERO = (aten.exp, aten.exp2, aten.cosh, aten.sigmoid, aten.softplus)


def divisors(t: Table) -> frozenset[int]:
    """The rows that are, through views and pointwise operations of the backward, at a pole of one of its operations."""
    found: set[int] = set()
    for u in reversed(t.rows):
        node = t.nodes[u]
        if node.op != "call_function":
            continue
        packet = getattr(node.target, "overloadpacket", None)
        if not t.early[u]:
            place = _pole(node, packet)
            argument = node.args[place] if place is not None and place < len(node.args) else None
            if isinstance(argument, fx.Node):
                found.add(t.same[t.row[argument]])
        if u in found and (
            t.view[u] or t.bits[u] & (VIEW | GETITEM) or (not t.early[u] and _may_be_zero(node, packet))
        ):
            found.update(t.ins[u])
    return frozenset(found)


def _pole(node: fx.Node, packet: Any) -> int | None:
    if packet is aten.pow:
        exponent = node.args[1]
        negative = isinstance(exponent, fx.Node) or (isinstance(exponent, (int, float)) and exponent < 0)
        return 0 if negative else None
    return _POLES.get(packet)


def _may_be_zero(node: fx.Node, packet: Any) -> bool:
    target = node.target
    if not isinstance(target, _torch.OpOverload) or packet in _NEVER_ZERO:
        return False
    return torch.Tag.pointwise in target.tags or packet in (aten._to_copy, aten.clone)
