"""Writing the operations of a dense graph on a tape."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx

from .steps import Step

aten = torch.ops.aten


def paste(capture: Any, graph: fx.GraphModule, args: Sequence[Any], *, reshape: bool = False) -> list[Any]:
    """Write the operations of a dense graph. ``args`` are the steps (or constants) for its inputs.

    Args:
        reshape: gradients may have other strides than those that the graph was traced with: ``view`` becomes
            ``reshape``.

    Returns: steps or constants for its outputs.
    """
    env: dict[fx.Node, Any] = {}
    given = iter(args)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(given)
        elif node.op == "output":
            return list(fx.map_arg(list(node.args[0]), env.__getitem__))
        elif node.op == "get_attr":
            constant = operator.attrgetter(str(node.target))(graph)
            env[node] = Step("input", None, meta={"value": constant}, note=str(node.target))
        else:
            target: Any = node.target
            if reshape and target is aten.view.default:
                target = aten.reshape.default
            values, keywords = (_map(v, env) for v in (node.args, node.kwargs))
            where = {k: node.meta[k] for k in ("stack_trace", "seq_nr") if k in node.meta}
            kind = "part" if target is operator.getitem else "inlined"
            env[node] = capture.write(kind, target, values, keywords, meta=where)
    raise AssertionError("a graph without an output")


def _map(value: Any, env: dict[fx.Node, Any]) -> Any:
    # not fx.map_arg: it would turn lists into immutable ones, and cannot put a list or None for a node
    if isinstance(value, fx.Node):
        return env[value]
    if isinstance(value, (list, tuple)):
        items = [_map(v, env) for v in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {k: _map(v, env) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(_map(value.start, env), _map(value.stop, env), _map(value.step, env))
    return value
