"""The table of what is saved for the backward: what it is, where it was made, how many bytes."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence

import torch
import torch.fx as fx

from ..capture.graphs import module_path, primal_number, trace_name, where
from ..plan import SavedValue
from ..plan.descriptors import AnyDescriptor, Descriptor
from ..torch_api.kinds import storage_key
from .interface import Partitioned


def saved_table(
    parts: Partitioned, described: Sequence[Descriptor], copied: Collection[str] = ()
) -> tuple[SavedValue, ...]:
    """One row per saved value, in order.

    Bytes are counted once per storage, for dynamic sizes as in the traced call. Inputs and results
    cost nothing: the
    caller holds them anyway. ``described``: what each graph input is; ``copied`` are results that
    no caller gets.
    """
    rows = []
    seen: set[int | None] = set()
    half = parts.first
    given = [n.meta.get("val") for n in half.inputs]
    results = half.outputs[: len(half.outputs) - len(parts.saved)]
    held = [n.meta.get("val") for n in results if isinstance(n, fx.Node) and n.name not in copied]
    inputs = {*map(storage_key, (*given, *held))}
    nodes = {trace_name(n): n for n in (*half.inputs, *half.body)}
    values = half.results[-len(parts.saved) :] if parts.saved else []
    for name, value in zip(parts.saved, values, strict=True):
        node, val = nodes.get(name, value), value.meta.get("val")
        tensor = isinstance(val, torch.Tensor)
        size = 0
        if tensor and value.op != "placeholder":
            key = storage_key(val)
            size = 0 if key in seen or key in inputs else _hint(val.untyped_storage().nbytes())
            seen.add(key)
        reason = "other tangents" if name in parts.extra else "partition"
        operation = _operation(node)
        shape = tuple(map(_number, val.shape)) if tensor else ()
        dtype = str(val.dtype).removeprefix("torch.") if tensor else "int"
        path = str(described[primal_number(node)]) if node.op == "placeholder" else None
        place = where(node) or (module_path(node) if tensor else f"size {val}")
        rows.append(SavedValue(name, tensor, path, place, operation, shape, dtype, size, reason))
    return tuple(rows)


def describe_halves(
    parts: Partitioned,
    saved: Sequence[SavedValue],
    inputs: Mapping[str, AnyDescriptor],
    results: Sequence[AnyDescriptor],
    gradients: Sequence[AnyDescriptor],
) -> None:
    """Say of both programs what they take and give.

    Args:
        inputs: name of each placeholder of the joint graph -> what it is.
        results, gradients: what the outputs of the joint graph are.
    """
    known = {**{row.name: row for row in saved}, **inputs}  # a saved input is called what it is
    parts.first.describe([inputs[str(n.target)] for n in parts.first.inputs], [*results, *saved])
    parts.second.describe([known[name] for name in parts.backward_inputs], gradients)


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
