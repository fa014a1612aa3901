"""Which values a backward must not read rounded, because no small error of them is small in the gradient.

- *Poles*: what it divides by, takes a logarithm of, or multiplies over a dimension: the error counts in proportion to the
  number, however small that is, and rounded to 0 it makes the gradient NaN.
- *Jumps*: what it compares, or takes the sign or the whole part of. The backward of ``amax`` looks for the elements that
  are equal to the result, and finds none among rounded ones.

- *Quotients* that the backward needs and the forward could compute for it, such as ``1 / (x * x + y * y)`` of ``atan2``: the
  large ones would take all steps of a row.

Such values stay exact, through the views and pointwise operations of the backward up to what is saved. Where only the sign
matters (``relu``, ``abs``), rounding that keeps it is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from .. import _torch
from .table import GETITEM, VIEW, Table

aten = torch.ops.aten
#: operation -> the argument of which the relative error counts
_POLES: dict[Any, int] = {
    **dict.fromkeys((aten.div, aten.true_divide, aten.floor_divide, aten.remainder, aten.fmod, aten.xlogy), 1),
    **dict.fromkeys((aten.reciprocal, aten.rsqrt, aten.log, aten.log2, aten.log10, aten.log1p, aten.lgamma), 0),
    **dict.fromkeys((aten.digamma, aten.logit, aten.atanh, aten.acosh, aten.linalg_inv_ex, aten.prod, aten.cumprod), 0),
    **dict.fromkeys((aten.polygamma, aten.special_zeta, aten.logit_backward), 1),
    aten.linalg_solve_triangular: 0,
    aten.addcdiv: 2,
    aten._weight_norm_interface_backward: 3,
}
#: these are never 0, whatever is rounded before them
_NEVER_ZERO = (aten.exp, aten.exp2, aten.cosh, aten.sigmoid, aten.softplus)
#: operation -> the argument at which it jumps
_JUMPS: dict[Any, int] = {
    **dict.fromkeys((aten.floor, aten.ceil, aten.round, aten.trunc, aten.frac), 0),
    **dict.fromkeys((aten.hardtanh_backward, aten.hardswish_backward, aten.hardsigmoid_backward), 1),
    **dict.fromkeys((aten.softshrink_backward, aten.hardshrink_backward, aten.threshold_backward), 1),
    **dict.fromkeys((aten.floor_divide, aten.remainder, aten.fmod), 0),
}
#: operation -> the argument of which it reads the sign, and nothing else that jumps
_SIGNS: dict[Any, int] = {
    **dict.fromkeys((aten.sign, aten.sgn, aten.logical_not), 0),
    **dict.fromkeys((aten.leaky_relu_backward, aten._prelu_kernel_backward, aten.rrelu_with_noise_backward), 1),
    aten.elu_backward: 5,
}
#: these only move numbers
_COPIES = (
    *(aten._to_copy, aten.clone, aten.cat, aten.stack, aten.flip, aten.roll, aten.repeat),
    *(aten.constant_pad_nd, aten.index_select, aten.index, aten.gather),
)
_COMPARISONS = (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)


@dataclass(frozen=True)
class Sensitive:
    """Rows that must not be rounded; and others, of which rounding must keep the sign (and zeros)."""

    exact: frozenset[int]
    signs: frozenset[int]


def sensitive(t: Table) -> Sensitive:
    """What the operations of the backward ask of the rows that they read."""
    exact: set[int] = set()
    signs: set[int] = set()
    for u in reversed(t.rows):
        node = t.nodes[u]
        if node.op != "call_function":
            continue
        if not t.early[u]:
            for argument, only_sign in _asked(t, u):
                (signs if only_sign else exact).add(t.same[t.row[argument]])
        if t.view[u] or t.bits[u] & (VIEW | GETITEM):
            for rows in (exact, signs):
                rows.update(t.ins[u] if u in rows else ())
        elif (u in exact or u in signs) and not t.early[u] and _passes_on(node):
            exact.update(t.ins[u])
    exact |= _without_range(t)
    return Sensitive(frozenset(exact), frozenset(signs - exact))


def _without_range(t: Table) -> set[int]:
    """What the backward computes of quotients, and the forward could compute for it: its numbers have no common size."""
    found: set[int] = set()
    for u in t.rows:
        node = t.nodes[u]
        if node.op == "call_function" and not t.early[u]:
            pole = _pole(node, getattr(node.target, "overloadpacket", None)) is not None
            if pole or not found.isdisjoint(t.ins[u]):
                found.add(u)
    return found


def _asked(t: Table, u: int) -> Iterator[tuple[fx.Node, bool]]:
    """The arguments that an operation must not get rounded, and whether their signs are enough."""
    node = t.nodes[u]
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _COMPARISONS or packet is aten.threshold_backward:
        only_sign = node.args[-1] in (0, 0.0)
        jumps = node.args[1:2] if packet is aten.threshold_backward else node.args
        yield from [(a, only_sign) for a in jumps if isinstance(a, fx.Node)]
        return
    for table, only_sign in ((_JUMPS, False), (_SIGNS, True)):
        place = table.get(packet)
        if place is not None and place < len(node.args) and isinstance(node.args[place], fx.Node):
            yield node.args[place], only_sign  # type: ignore[misc]
    place = _pole(node, packet)
    if place is not None and place < len(node.args) and isinstance(node.args[place], fx.Node):
        yield node.args[place], False  # type: ignore[misc]
    if place is None and packet not in _SIGNS and _is_discrete(t.val[u]):  # argmax, sort, casts to whole numbers
        yield from [(a, False) for a in node.all_input_nodes if _is_float(a.meta.get("val"))]


def _pole(node: fx.Node, packet: Any) -> int | None:
    if packet is aten.pow:
        exponent = node.args[1]
        negative = isinstance(exponent, fx.Node) or (isinstance(exponent, (int, float)) and exponent < 0)
        return 0 if negative else None
    return _POLES.get(packet)


def _passes_on(node: fx.Node) -> bool:
    """Is a small error of the result one of the arguments'?"""
    target = node.target
    packet = getattr(target, "overloadpacket", None)
    if not isinstance(target, _torch.OpOverload) or packet in _NEVER_ZERO:
        return False
    return torch.Tag.pointwise in target.tags or packet in _COPIES


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _is_discrete(value: Any) -> bool:
    values = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(v, torch.Tensor) and not _is_float(v) for v in values)
