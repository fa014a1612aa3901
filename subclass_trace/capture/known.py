"""Numbers inside tensors: symbols, but where they follow from constants (``torch.tensor(3).item()``, DTensor's offsets)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api
from ..errors import DataDependentError
from .graphs import is_random, is_write
from .user_code import quoted

Tensor = torch.Tensor
aten = torch.ops.aten
_MOST_NODES, _MOST_ELEMENTS = 100, 100_000


class _Unknown(Exception):
    """The value depends on a call."""


def known_value(recorder: Any, t: Tensor) -> Tensor | None:
    """The value of a traced tensor that is computed of small constants alone; else None."""
    node = recorder.node_of(t)
    try:
        with torch_api.no_modes(), torch.no_grad():
            return _value(recorder, node, {}) if isinstance(node, fx.Node) else None
    except _Unknown:
        return None


def _value(recorder: Any, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    if node not in known:
        held = node.meta.get("val")
        tensors = [v for v in (held if isinstance(held, (list, tuple)) else [held]) if isinstance(v, Tensor)]
        fixed = node.op == "get_attr" or (node.op == "call_function" and not is_random(node) and not is_write(node))
        small = all(_is_small(v) and not recorder.was_written(v) for v in tensors)
        if len(known) > _MOST_NODES or not (fixed and small and tensors):
            raise _Unknown
        if node.op == "get_attr":
            known[node] = getattr(recorder.root, str(node.target))
        else:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: _value(recorder, n, known))
            known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return known[node]


def _is_small(t: Tensor) -> bool:
    static = all(type(n) is int for n in t.shape)
    return static and t.layout is torch.strided and t.numel() <= _MOST_ELEMENTS and t.device.type != "meta"


def known_answer(recorder: Any, func: Any, args: Sequence[Any]) -> Any:
    """The result of an operation that tells a number, where it depends on constants alone; else None."""
    if not all(isinstance(a, Tensor) and recorder.knows(a) for a in args):
        return None
    values = [known_value(recorder, a) for a in args]
    if any(v is None for v in values):
        return None
    with torch_api.no_modes():
        return func(*values)


def number_inside(recorder: Any, t: Tensor, record: Callable[[Tensor], Any]) -> Any:
    """``t.item()``: a number that only the call knows, as a symbol of the graph, unless it follows from constants.

    ``record`` makes the symbol.

    Raises:
        DataDependentError: a number that has no symbol, or whose use is control flow.
    """
    known = known_answer(recorder, aten._local_scalar_dense.default, (t,))
    if known is not None:
        return known
    if t.dtype is torch.bool:
        if not recorder.asks_for_numbers:  # control flow
            raise _branches(t, recorder.user_line())
        with recorder:
            t = t.to(torch.int64)
        return record(t) != 0
    return record(t)


def _branches(t: Tensor, line: str | None) -> DataDependentError:
    code = quoted(line)
    return DataDependentError(
        "the region branches on the value inside a tensor (`if`, `while`, `and`, `assert` or bool() of a tensor)",
        path=line,
        expected="branches that follow from Python values and sizes: the graph is made once, for all values",
        got=f"a tensor of shape {tuple(t.shape)}{f', in {code}' if code else ''}",
        fix="choose with torch.where(condition, a, b), branch with torch.cond, or compute the condition outside "
        "of the region and pass it as a Python bool, which is guarded",
    )
