"""Partitioners in the form of ``functorch.compile``'s, torch's own and those of users: two graph
modules come back.

What they get wrong where random numbers are drawn, or inputs overwritten, is mended here; what does
not fit is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..capture.graphs import is_draw, output_args, placeholders, trace_name, where
from ..capture.tape import TracedBackward
from ..errors import VerificationError
from ..torch_api.kinds import storage_key
from . import torch_partitioners
from .ancestry import also_saved, ancestry_of
from .half import Half, Partitioned, clone_of
from .rules import MUST_SAVE, RECOMPUTE

Tensor = torch.Tensor
Partitioner = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


def by_modules(
    traced: TracedBackward,
    partitioner: Partitioner,
    serve: Collection[str],
    written: Collection[str],
    static: Sequence[int],
) -> Partitioned:
    """Any partitioner in the form of ``functorch.compile``'s, which consumes the joint graph."""
    joint, num_forward = traced.joint, traced.num_forward
    traced_as = {n.name: trace_name(n) for n in joint.graph.nodes}
    _save_draws(joint.graph)
    ancestry = ancestry_of(joint.graph)
    promised, primals = output_args(joint.graph), [n.name for n in _primals(joint.graph)]
    inputs = [n.meta.get("val") for n in placeholders(joint.graph)]
    forward, backward = torch_partitioners.call(partitioner, joint, inputs, num_forward, static)
    _check_fit(promised, forward, backward, num_forward, primals)
    drawn = next((n for n in backward.graph.nodes if is_draw(n)), None)
    if drawn is not None:
        raise _error(
            "backward draws the forward's random numbers again",
            _named(drawn),
            "what is drawn is saved",
            drawn.name,
        )
    outputs = output_args(forward.graph)
    saved = [getattr(n, "name", repr(n)) for n in outputs[num_forward:]]
    backward_inputs = _bind(placeholders(backward.graph), saved, traced.tangents)
    by_name = {n.name: n for n in forward.graph.nodes}
    extra = also_saved(ancestry, serve, set(saved), written, by_name)
    extra_nodes = [by_name[n] for n in sorted(extra) if n in by_name]
    _set_outputs(
        forward,
        [
            *outputs[: num_forward - traced.draws],
            *_protected(forward, [*outputs[num_forward:], *extra_nodes], written),
        ],
    )
    known = {
        **dict(zip(saved, outputs[num_forward:], strict=True)),
        **{n.name: n for n in extra_nodes},
    }
    key = {
        name: n.meta.get("trace_name") or traced_as.get(n.name, trace_name(n))
        for name, n in known.items()
    }
    names, more = tuple(key.values()), frozenset(key[n.name] for n in extra_nodes)
    halves_ = Half.of_module(forward), Half.of_module(backward)
    return Partitioned(*halves_, names, tuple(key.get(n, n) for n in backward_inputs), more)


def _primals(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in placeholders(graph) if not n.name.startswith("tangents")]


def has_gradient(joint: fx.GraphModule, num_forward: int) -> bool:
    """Does a gradient depend on a tangent?"""
    todo = [n for n in output_args(joint.graph)[num_forward:] if isinstance(n, fx.Node)]
    seen: set[fx.Node] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "placeholder" and node.name.startswith("tangents"):
            return True
        todo.extend(node.all_input_nodes)
    return False


def _save_draws(graph: fx.Graph) -> None:
    """A checkpoint that asks to draw again gets the numbers saved: other numbers would come."""
    for node in graph.nodes:
        if is_draw(node) and node.meta.get("recompute") in RECOMPUTE:
            node.meta["recompute"] = MUST_SAVE


def _bind(nodes: Sequence[fx.Node], saved: Sequence[str], tangents: Sequence[str]) -> list[str]:
    known = {*saved, *tangents}
    names = [str(n.target) for n in nodes]
    if all(n in known for n in names):
        return names
    positional = [*saved, *tangents]
    if len(positional) != len(names) or any(
        n in known or n.startswith(("primals", "tangents")) for n in names
    ):
        strange = [n for n in nodes if str(n.target) not in known]
        raise VerificationError(
            "the partitioner's backward takes inputs that are neither saved values nor tangents",
            path=_named(strange[0]) if strange else None,
            expected=f"placeholders named after {sorted(known)}",
            got=names,
            fix="name the backward's placeholders after the forward's saved outputs and the "
            "tangents",
        )
    return positional


def _protected(
    forward: fx.GraphModule, saved: Sequence[fx.Node], written: Collection[str]
) -> list[fx.Node]:
    """Saved values, with a clone for each that shares memory with a written graph input."""
    if not written:
        return list(saved)
    given = [n.meta["val"] for n in placeholders(forward.graph) if str(n.target) in written]
    storages = {*map(storage_key, given)} - {None}
    end = next(iter(reversed(forward.graph.nodes)))
    out = []
    for node in saved:
        if storage_key(node.meta.get("val")) in storages:
            with forward.graph.inserting_before(end):
                clone = clone_of(forward.graph, node)
            out.append(clone)
        else:
            out.append(node)
    return out


def _set_outputs(module: fx.GraphModule, outputs: Sequence[Any]) -> None:
    end = next(iter(reversed(module.graph.nodes)))
    end.args = (list(outputs),)


# ---- what came back
_FIX = "return graphs as functorch.compile's partitioners do: (*outputs, *saved), and all gradients"


def _named(node: fx.Node) -> str:
    """A node for a message: its name, and where the user's code made it."""
    place = where(node)
    return f"{node.name} at {place}" if place else node.name


def _check_fit(
    promised: Sequence[Any],
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    num_forward: int,
    primals: Sequence[str],
) -> None:
    """Do the two graphs return as much as the joint graph does (``promised``), from its inputs?

    Raises:
        VerificationError: they do not return lists, lack outputs, save what is no node, or take
            unknown inputs.
    """
    ends = [next(iter(reversed(module.graph.nodes)), None) for module in (forward, backward)]
    lists = [
        list(end.args[0]) if end and end.args and isinstance(end.args[0], (list, tuple)) else None
        for end in ends
    ]
    outputs, gradients = lists
    if outputs is None or gradients is None:
        raise _error(
            "graphs do not return lists",
            "forward",
            "output nodes with lists",
            [str(e) for e in ends],
        )
    if len(outputs) < num_forward:
        raise _error("forward lacks outputs", "forward", f"{num_forward} or more", len(outputs))
    if len(gradients) != len(promised) - num_forward:
        raise _error(
            "backward lacks gradients", "backward", len(promised) - num_forward, len(gradients)
        )
    strange = [s for s in outputs[num_forward:] if not isinstance(s, fx.Node)]
    strange += [n for n in placeholders(forward.graph) if n.name not in primals]
    if strange:
        raise _error(
            "forward saves or takes what it cannot",
            str(strange[0]),
            f"inputs {list(primals)}",
            strange,
        )


def _error(what: str, path: str, expected: object, got: object) -> VerificationError:
    return VerificationError(
        f"the partitioner's {what}", path=path, expected=str(expected), got=str(got), fix=_FIX
    )
