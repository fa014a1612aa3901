"""The table of what is saved for the backward: what it is, where it was made, how many bytes."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
import torch.fx as fx

from ..capture.graphs import output_args, where
from ..plan import SavedValue
from .interface import Partitioned


def saved_table(parts: Partitioned, paths: Mapping[str, str]) -> tuple[SavedValue, ...]:
    """One row per saved value, in order. ``paths`` names graph inputs.

    Bytes are counted once per storage, for dynamic sizes as in the traced call. Inputs cost nothing: the caller holds
    them anyway.
    """
    rows = []
    seen: set[int] = set()
    given = [n.meta.get("val") for n in parts.forward.graph.nodes if n.op == "placeholder"]
    inputs = {v.untyped_storage()._cdata for v in given if isinstance(v, torch.Tensor)}
    nodes = {n.name: n for n in parts.forward.graph.nodes}
    values = output_args(parts.forward.graph)[-len(parts.saved) :] if parts.saved else []
    for name, value in zip(parts.saved, values, strict=True):
        node, val = nodes.get(name, value), value.meta.get("val")
        tensor = isinstance(val, torch.Tensor)
        size = 0
        if tensor and value.op != "placeholder":
            key = val.untyped_storage()._cdata
            size = 0 if key in seen or key in inputs else _hint(val.numel()) * val.element_size()
            seen.add(key)
        reason = "other tangents" if name in parts.extra else "partition"
        operation = _operation(node)
        shape = tuple(map(_number, val.shape)) if tensor else ()
        dtype = str(val.dtype).removeprefix("torch.") if tensor else "int"
        rows.append(SavedValue(name, tensor, paths.get(name), where(node), operation, shape, dtype, size, reason))
    return tuple(rows)


def _operation(node: fx.Node) -> str:
    if node.op == "placeholder":
        return "input"
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return f"{node.args[0].target}[{node.args[1]}]"
    return str(node.target)


def _hint(n: int | torch.SymInt) -> int:
    """The value in the traced call; reading it must not become a guard."""
    return int(n.node.hint or 0) if isinstance(n, torch.SymInt) else n


def _number(n: object) -> object:
    return n if isinstance(n, int) else str(n)
