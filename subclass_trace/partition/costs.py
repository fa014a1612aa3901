"""What it costs to compute a row again: floating-point operations, and seconds by a roofline.

Nothing is run to price a graph. The three constants of the roofline are fixed, so that every rank and every run decides alike.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx as fx
from torch.utils.flop_counter import flop_registry

from .table import GETITEM, VIEW, Table, hint

FLOPS_PER_SECOND, BYTES_PER_SECOND, LAUNCH_SECONDS = 2e10, 8e9, 3e-6  # one slow processor core


def work(t: Table, i: int) -> tuple[float, float]:
    """Floating-point operations of a row, and seconds: the slower of arithmetic and memory traffic, and the start."""
    if t.view[i] or t.bits[i] & (VIEW | GETITEM) or t.nodes[i].op != "call_function":
        return 0.0, 0.0
    count = flops(t, i)
    if not isinstance(t.val[i], (torch.Tensor, tuple, list)):
        return count, 0.0
    moved = t.size[i] + sum([t.size[x] for x in t.ins[i]])
    return count, max(count / FLOPS_PER_SECOND, moved / BYTES_PER_SECOND) + LAUNCH_SECONDS


aten = torch.ops.aten
#: matrix products: which argument is the left factor
_PRODUCTS: dict[Any, int] = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten.baddbmm.default: 1}


def flops(t: Table, i: int) -> float:
    """Floating-point operations of a row, as ``torch.utils.flop_counter`` counts them (matrix products, convolutions)."""
    node = t.nodes[i]
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is None or node.op != "call_function":
        return 0.0

    left = _PRODUCTS.get(node.target)
    if left is not None:  # most of all rows that count; the general way takes 20 microseconds
        inner = t.val[t.row[node.args[left]]].shape[-1]  # type: ignore[index]
        return 2.0 * hint(inner) * (t.size[i] // int(t.val[i].dtype.itemsize))
    if node.target is aten.convolution.default and not node.args[6]:  # transposed ones go the general way
        kernel = t.val[t.row[node.args[1]]].shape[1:]  # type: ignore[index]
        return 2.0 * math.prod(map(hint, kernel)) * (t.size[i] // int(t.val[i].dtype.itemsize))

    def plain(n: fx.Node) -> Any:
        return _with_numbers(n.meta["val"])

    try:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), plain)
        return float(count(*args, **kwargs, out_val=_with_numbers(t.val[i])))
    except (TypeError, ValueError, AssertionError, IndexError):  # the formula does not know this form of the operation
        return 0.0


def _with_numbers(value: Any) -> Any:
    """The value with the sizes of the traced call instead of symbols, so that a formula adds no guards."""
    if isinstance(value, torch.Tensor) and any(type(n) is not int for n in value.shape):
        return torch.empty([hint(n) for n in value.shape], dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)([_with_numbers(v) for v in value])
    return hint(value) if isinstance(value, torch.SymInt) else value
