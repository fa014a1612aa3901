"""Do the graphs that a partitioner returned fit the joint graph that it got?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx

from ..capture.graphs import output_args, placeholders, where
from ..errors import VerificationError

_FIX = "return graphs as functorch.compile's partitioners do: (*outputs, *saved), and all gradients"


def named(node: fx.Node) -> str:
    """A node for a message: its name, and where the user's code made it."""
    place = where(node)
    return f"{node.name} at {place}" if place else node.name


def check_form(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Are these two graphs whose outputs are lists?

    Raises:
        VerificationError: one has no output node, or returns something else.
    """
    for which, module in (("forward", forward), ("backward", backward)):
        last = next(iter(reversed(module.graph.nodes)), None)
        outputs = last.args[0] if last is not None and last.op == "output" and last.args else None
        if not isinstance(outputs, (list, tuple)):
            raise _error(f"{which} does not return a list", which, "an output node with a list", repr(outputs))


def check_fit(
    promised: Sequence[Any], forward: fx.GraphModule, backward: fx.GraphModule, num_forward: int, primals: Sequence[str]
) -> None:
    """Do the two graphs return what the joint graph does (``promised``), of values that are their own?

    Raises:
        VerificationError: they lack outputs, save what is no node, take unknown inputs, or an output is another value.
    """
    outputs, gradients = output_args(forward.graph), output_args(backward.graph)
    count = len(promised) - num_forward
    if len(outputs) < num_forward:
        missing = next((p for p in promised[len(outputs) :] if isinstance(p, fx.Node)), None)
        path = named(missing) if missing is not None else "forward"
        raise _error("forward lacks outputs", path, f"{num_forward} or more", len(outputs))
    if len(gradients) != count:
        raise _error("backward lacks gradients", "backward", count, len(gradients))
    unknown = [n for n in placeholders(forward.graph) if n.name not in primals]
    if unknown:
        got = [named(n) for n in unknown]
        raise _error("forward takes unknown inputs", got[0], f"some of {list(primals)}", got)
    for saved in outputs[num_forward:]:
        if not isinstance(saved, fx.Node):
            raise _error("forward saves what is no node", "forward", "nodes of the graph", [saved])
    for which, module, found in (("forward", forward, outputs), ("backward", backward, gradients)):
        for node in found:
            if isinstance(node, fx.Node) and (node.graph is not module.graph or "val" not in node.meta):
                what = "of another graph" if node.graph is not module.graph else "without an example value in meta"
                raise _error(f"{which} returns a node {what}", named(node), f"a node of the {which}", node.name)
    for kind, pairs in (
        ("result", zip(promised[:num_forward], outputs, strict=False)),
        ("gradient", zip(promised[num_forward:], gradients, strict=True)),
    ):
        for number, (want, got) in enumerate(pairs):
            if _described(want) != _described(got):
                path = named(want) if isinstance(want, fx.Node) else f"{kind} {number}"
                what = f"{kind} {number} is not the joint graph's"
                raise _error(what, path, _described(want) or repr(want), _described(got) or repr(got))


def _described(value: Any) -> str | None:
    """What a node computes, as far as a partitioner must not change it; None for a constant."""
    val = value.meta.get("val") if isinstance(value, fx.Node) else None
    if isinstance(val, torch.Tensor):
        sizes = [n if type(n) is int else "?" for n in val.shape]  # reading a symbol could make a guard
        return f"{str(val.dtype).removeprefix('torch.')}{sizes} on {val.device}"
    return type(val).__name__ if isinstance(value, fx.Node) else None


def _error(what: str, path: str, expected: object, got: object) -> VerificationError:
    return VerificationError(f"the partitioner's {what}", path=path, expected=str(expected), got=str(got), fix=_FIX)
