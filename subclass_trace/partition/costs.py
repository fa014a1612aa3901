"""What it costs to recompute a row, in seconds by a roofline.

Nothing is run to price a graph. The three constants of the roofline are fixed, so that every rank
and every run decides alike.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx
from torch.utils.flop_counter import flop_registry

from .table import GETITEM, VIEW, Table, hint

FLOPS_PER_SECOND, BYTES_PER_SECOND, LAUNCH_SECONDS = 2e10, 8e9, 3e-6  # one slow processor core


def seconds(t: Table, i: int) -> float:
    """The slower of arithmetic and memory traffic, and the start."""
    if t.view[i] or t.bits[i] & (VIEW | GETITEM) or t.nodes[i].op != "call_function":
        return 0.0
    if not isinstance(t.val[i], (torch.Tensor, tuple, list)):
        return 0.0
    moved = t.size[i] + sum([t.size[x] for x in t.ins[i]])
    return max(flops(t, i) / FLOPS_PER_SECOND, moved / BYTES_PER_SECOND) + LAUNCH_SECONDS


def flops(t: Table, i: int) -> float:
    """Floating-point operations of a row, as ``torch.utils.flop_counter`` counts them (matrix
    products, convolutions)."""
    node = t.nodes[i]
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is None:
        return 0.0

    def plain(n: fx.Node) -> Any:
        return _with_numbers(n.meta["val"])

    try:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), plain)
        return float(count(*args, **kwargs, out_val=_with_numbers(t.val[i])))
    # the formula does not know this form of the operation
    except (TypeError, ValueError, AssertionError, IndexError):
        return 0.0


def _with_numbers(value: Any) -> Any:
    """The value with the sizes of the traced call instead of symbols, so that a formula adds no
    guards."""
    if isinstance(value, torch.Tensor) and any(type(n) is not int for n in value.shape):
        return torch.empty([hint(n) for n in value.shape], dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)([_with_numbers(v) for v in value])
    return hint(value) if isinstance(value, torch.SymInt) else value
