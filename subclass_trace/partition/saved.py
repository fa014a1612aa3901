"""The table of what is saved for the backward: what it is, where it was made, how many bytes."""

from __future__ import annotations

import operator
from collections.abc import Collection

import torch
import torch.fx as fx

from .. import torch_api
from ..capture.graphs import where
from ..plan import SavedValue
from .interface import Partitioned


def saved_table(parts: Partitioned, copied: Collection[str] = ()) -> tuple[SavedValue, ...]:
    """One row per saved value, in order.

    Bytes are counted once per storage, for dynamic sizes as in the traced call. Inputs and results cost nothing: the
    caller holds them anyway. ``copied`` are results that no caller gets.
    """
    rows = []
    seen: set[int | None] = set()
    half = parts.first
    given = [n.meta.get("val") for n in half.inputs]
    results = half.outputs[: len(half.outputs) - len(parts.saved)]
    held = [n.meta.get("val") for n in results if isinstance(n, fx.Node) and n.name not in copied]
    inputs = {*map(torch_api.storage_key, (*given, *held))}
    nodes = {n.name: n for n in (*half.inputs, *half.body)}
    values = half.results[-len(parts.saved) :] if parts.saved else []
    for name, value in zip(parts.saved, values, strict=True):
        node, val = nodes.get(name, value), value.meta.get("val")
        tensor = isinstance(val, torch.Tensor)
        size = 0
        if tensor and value.op != "placeholder":
            key = torch_api.storage_key(val)
            size = 0 if key in seen or key in inputs else _hint(val.untyped_storage().nbytes())
            seen.add(key)
        reason = "other tangents" if name in parts.extra else "partition"
        operation = _operation(node)
        shape = tuple(map(_number, val.shape)) if tensor else ()
        dtype = str(val.dtype).removeprefix("torch.") if tensor else "int"
        path = node.meta.get("path") if node.op == "placeholder" else None
        place = where(node) or (_module_of(node) if tensor else f"size {val}")
        rows.append(SavedValue(name, tensor, path, place, operation, shape, dtype, size, reason))
    return tuple(rows)


def _module_of(node: fx.Node) -> str | None:
    """Where no code of the user's runs (modules of torch's in a Sequential): the module of the nearest parameter."""
    seen, todo = {node}, [node]
    for n in todo:
        path = n.meta.get("path") if n.op == "placeholder" else None
        if path is not None and "." in path:
            return str(path).rpartition(".")[0]
        new = [i for i in n.all_input_nodes if i not in seen]
        seen.update(new)
        todo += new
    return next((f"of {n.meta['path']}" for n in todo if n.meta.get("path")), None)


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
