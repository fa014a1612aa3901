"""Running a tape in anomaly mode: node by node, with eager's checks, messages and forward stacks.

Whether anomaly mode is on is no part of the tape: it is asked in each run.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx

from .._torch import tape as _door
from .graph import Tape
from .order import walk
from .program import plain

Tensor = torch.Tensor


def run_checked(tape: Tape, values: list[Any], roots: Sequence[Any], only: Sequence[Any] | None) -> list[Any]:
    """Run the tape's graph as it is.

    Raises:
        RuntimeError: a node returned NaN; a warning shows the forward's stack, as in eager mode.
    """
    env: dict[fx.Node, Any] = {}
    given = iter(values)
    for node in tape.graph.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(given)
        elif node.op == "get_attr":
            env[node] = getattr(tape.graph, str(node.target))
        elif node.op == "output":
            return list(fx.map_arg(list(node.args[0]), env.__getitem__))
        else:
            args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
            try:
                env[node] = node.target(*plain(args), **plain(kwargs))
                if torch.is_anomaly_check_nan_enabled() and _is_result(node):
                    _check(tape, node, env[node])
            except Exception:
                _warn(tape, node, roots, only)
                raise
    raise AssertionError("a graph without an output")


def _is_result(node: fx.Node) -> bool:
    return node.meta.get("kind") == "validate" or node.meta.get("note") == "node post-hook"


def _check(tape: Tape, node: fx.Node, results: Sequence[Any]) -> None:
    for i, result in enumerate(results):
        if isinstance(result, Tensor) and bool(result.isnan().any()):
            name = tape.nodes[node.meta["node"]].name
            raise RuntimeError(f"Function '{name}' returned nan values in its {i}th output.")


def _warn(tape: Tape, node: fx.Node, roots: Sequence[Any], only: Sequence[Any] | None) -> None:
    if node.meta.get("node", -1) < 0:
        return
    row = tape.nodes[node.meta["node"]]
    trace = None
    if roots and row.number:
        trace = _door.forward_traceback(walk(roots, only).nodes[row.number])
    if trace is None:
        text = "No forward pass information available. Enable detect anomaly during forward pass for more information."
    else:
        text = "Traceback of forward call that caused the error:\n" + "".join(trace)
    warnings.warn(f"Error detected in {row.name}. {text}", stacklevel=2)
