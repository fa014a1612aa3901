"""Numbers inside tensors that follow from constants (``torch.tensor(3).item()``, DTensor's
offsets): not a matter of a call."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx

from ..torch_api.modes import no_modes
from .graphs import is_random, is_write
from .phase import Recording

Tensor = torch.Tensor
_MOST_NODES, _MOST_ELEMENTS = 100, 100_000


class _Unknown(Exception):
    """The value depends on a call."""


def known_value(recorder: Recording, t: Tensor) -> Tensor | None:
    """The value of a traced tensor that is computed of small constants alone; else None."""
    node = recorder.node_of(t)
    try:
        with no_modes(), torch.no_grad():
            return _value(recorder, node, {}) if isinstance(node, fx.Node) else None
    except _Unknown:
        return None


def _value(recorder: Recording, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    if node not in known:
        held = node.meta.get("val")
        tensors = [
            v
            for v in (held if isinstance(held, (list, tuple)) else [held])
            if isinstance(v, Tensor)
        ]
        fixed = node.op == "get_attr" or (
            node.op == "call_function" and not is_random(node) and not is_write(node)
        )
        small = all(_is_small(v) and not recorder.memory.touches(v) for v in tensors)
        if len(known) > _MOST_NODES or not (fixed and small and tensors):
            raise _Unknown
        if node.op == "get_attr":
            known[node] = getattr(recorder.root, str(node.target))
        else:
            args, kwargs = fx.node.map_arg(
                (node.args, node.kwargs), lambda n: _value(recorder, n, known)
            )
            known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return known[node]


def _is_small(t: Tensor) -> bool:
    static = all(type(n) is int for n in t.shape)
    return (
        static
        and t.layout is torch.strided
        and t.numel() <= _MOST_ELEMENTS
        and t.device.type != "meta"
    )
