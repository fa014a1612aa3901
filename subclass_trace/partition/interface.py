"""One interface to every partitioner: a joint graph goes in, `Partitioned` comes out.

A partitioner is a function ``(joint, joint_inputs, *, num_fwd_outputs) -> (forward, backward)`` of two graph modules, as
in ``functorch.compile``. The forward's outputs are ``[*outputs, *saved]``; saved values follow the user's outputs and are
split off by count, never rewrapped (PyTorch PR 104483).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from .. import _torch
from ..capture.graphs import extract, is_draw, is_drawn, needed, output_args, placeholders
from ..errors import OptionError, VerificationError
from . import torch_partitioners

Tensor = torch.Tensor
Partitioner = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


@dataclass(frozen=True, eq=False)
class Partitioned:
    """Two programs and what is saved between them.

    Attributes:
        forward: outputs ``[*forward outputs, *saved]``.
        backward: its placeholders are named after saved values and tangents.
        saved: name of each saved value, in the order of the forward's outputs.
        backward_inputs: for each backward placeholder the name of the saved value or tangent that it takes.
        extra: names among ``saved`` that the partitioner did not ask for (docs/notes/tangents.md).
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    saved: tuple[str, ...]
    backward_inputs: tuple[str, ...]
    extra: frozenset[str]


def resolve_partitioner(choice: str | Partitioner, budget: float | None) -> Partitioner:
    """The partitioner for an option.

    Raises:
        OptionError: unknown name, or a budget outside [0, 1], or a budget with a partitioner that knows none.
    """
    if budget is not None and not (isinstance(budget, (int, float)) and 0 <= budget <= 1):
        raise OptionError("activation_memory_budget is out of range", expected="a number from 0 to 1", got=repr(budget))
    if callable(choice):
        found: Partitioner = choice
    elif choice in torch_partitioners.BY_NAME:
        found = torch_partitioners.BY_NAME[choice]
    else:
        close = difflib.get_close_matches(str(choice), torch_partitioners.BY_NAME, 1)
        raise OptionError(
            f"unknown partitioner {choice!r}",
            expected=f"one of {sorted(torch_partitioners.BY_NAME)}, or a callable",
            got=repr(choice),
            fix=f"did you mean {close[0]!r}?" if close else None,
        )
    if budget is None:
        return found
    if choice != "min_cut":
        raise OptionError(
            "activation_memory_budget needs the min_cut partitioner", expected="min_cut", got=repr(choice)
        )
    return torch_partitioners.min_cut_with_budget(budget)


def partition(
    joint: fx.GraphModule,
    *,
    num_forward: int,
    draws: int = 0,
    tangents: Sequence[str],
    partitioner: Partitioner,
    serve: Collection[str],
    written: Collection[str],
    static: Sequence[int],
) -> Partitioned:
    """Split ``joint`` (which is consumed).

    Args:
        num_forward: how many outputs are the forward's; the last ``draws`` of them are computed and dropped.
        serve: nodes that eager autograd would have saved. All of them must be computable from what is saved, so that a
            backward for other tangents is (docs/notes/tangents.md); values missing for it are saved too.
        written: graph inputs that the region writes. What is saved of their memory is cloned, since the write-back
            would change it (torch's own aot_function gets this wrong; docs/notes/flatten_first.md).
        static: numbers of graph inputs that are alive anyway (parameters and buffers).
    """
    ancestry = _ancestry(joint.graph)
    inputs = [n.meta.get("val") for n in placeholders(joint.graph)]
    whole = _copy(joint) if any(is_draw(n) for n in joint.graph.nodes) else None
    if _has_gradient(joint, num_forward):
        forward, backward = torch_partitioners.call(partitioner, joint, inputs, num_forward, static)
    else:  # every gradient is a constant: torch's partitioners expect one that depends on a tangent
        whole = whole or _copy(joint)
        nothing = extract(whole, output_args(whole.graph)[:num_forward], [n.name for n in _primals(whole.graph)])
        forward, backward = _draw_once(whole, nothing, num_forward, tangents)
    if whole is not None and any(is_draw(n) for n in backward.graph.nodes):
        forward, backward = _draw_once(whole, forward, num_forward, tangents)
    outputs = output_args(forward.graph)
    saved = [n.name for n in outputs[num_forward:]]
    backward_inputs = _bind(placeholders(backward.graph), saved, tangents)
    by_name = {n.name: n for n in forward.graph.nodes}
    extra = _missing(ancestry, serve, set(saved))
    if extra & set(written):
        extra = _without_written(ancestry, serve, set(saved), set(written), by_name)
    extra_nodes = [by_name[n] for n in sorted(extra) if n in by_name]
    _set_outputs(
        forward,
        [*outputs[: num_forward - draws], *_protected(forward, [*outputs[num_forward:], *extra_nodes], written)],
    )
    names = (*saved, *(n.name for n in extra_nodes))
    return Partitioned(forward, backward, names, tuple(backward_inputs), frozenset(n.name for n in extra_nodes))


def save_all(forward: fx.GraphModule, names: Collection[str], written: Collection[str]) -> Partitioned:
    """For a forward without a traced backward: save the nodes with these names (those that the graph has)."""
    by_name = {n.name: n for n in forward.graph.nodes}
    saved = sorted(n for n in names if n in by_name)
    _set_outputs(forward, [*output_args(forward.graph), *_protected(forward, [by_name[n] for n in saved], written)])
    return Partitioned(forward, forward, tuple(saved), (), frozenset())


def _primals(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in placeholders(graph) if not n.name.startswith("tangents")]


def _has_gradient(joint: fx.GraphModule, num_forward: int) -> bool:
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


def _draw_once(
    joint: fx.GraphModule, forward: fx.GraphModule, num_forward: int, tangents: Sequence[str]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The partitioner recomputes random numbers in the backward, which would draw others: save them instead."""
    by_name = {n.name: n for n in joint.graph.nodes}
    saved = [n.name for n in output_args(forward.graph)[num_forward:]]
    outputs = output_args(joint.graph)
    for _ in by_name:
        _, missing = needed(outputs[num_forward:], {*saved, *tangents})
        if not missing:
            break
        saved += sorted(missing)
    primals = [n.name for n in _primals(joint.graph)]
    nodes, _ = needed(outputs[num_forward:], {*saved, *tangents})
    saved = [n for n in saved if by_name[n] in nodes]  # with the draws at hand, some of the rest is not needed
    first = extract(joint, [*outputs[:num_forward], *[by_name[n] for n in saved]], primals)
    taken = [n for n in [*saved, *tangents] if by_name.get(n) in nodes]
    return first, extract(joint, outputs[num_forward:], taken)


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return _torch.graph_module(module, graph)


def _bind(nodes: Sequence[fx.Node], saved: Sequence[str], tangents: Sequence[str]) -> list[str]:
    known = {*saved, *tangents}
    names = [str(n.target) for n in nodes]
    if all(n in known for n in names):
        return names
    positional = [*saved, *tangents]
    if len(positional) != len(names) or any(n in known or n.startswith(("primals", "tangents")) for n in names):
        raise VerificationError(
            "the partitioner's backward takes inputs that are neither saved values nor tangents",
            expected=f"placeholders named after {sorted(known)}",
            got=names,
            fix="name the backward's placeholders after the forward's saved outputs and the tangents",
        )
    return positional


def _ancestry(graph: fx.Graph) -> dict[str, tuple[bool, tuple[str, ...]]]:
    """name -> (it cannot be computed again, names of its inputs); taken before a partitioner changes the graph."""
    table = {}
    for n in graph.nodes:
        fixed = n.op == "placeholder" or is_drawn(n)
        table[n.name] = (fixed, tuple(i.name for i in n.all_input_nodes))
    return table


def _missing(
    table: Mapping[str, tuple[bool, tuple[str, ...]]], want: Collection[str], have: Collection[str]
) -> set[str]:
    """What is not given among ``have``, cannot be computed again, and is needed for ``want``."""
    todo = [n for n in want if n in table]
    seen: set[str] = set()
    missing: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen or name in have:
            continue
        seen.add(name)
        fixed, inputs = table[name]
        if fixed:
            missing.add(name)
        else:
            todo.extend(inputs)
    return missing


def _without_written(
    table: Mapping[str, tuple[bool, tuple[str, ...]]],
    want: Collection[str],
    have: set[str],
    written: set[str],
    available: Collection[str],
) -> set[str]:
    """Like `_missing`, but a wanted value is saved itself where it would need the old contents of a written input."""
    extra: set[str] = set()
    for name in sorted(want):
        missing = _missing(table, [name], have | extra)
        extra |= {name} if missing & written and name in available else missing
    return extra


def _protected(forward: fx.GraphModule, saved: Sequence[fx.Node], written: Collection[str]) -> list[fx.Node]:
    """Saved values, with a clone for each that shares memory with a written graph input."""
    if not written:
        return list(saved)
    storages = {_storage(n) for n in placeholders(forward.graph) if str(n.target) in written}
    end = next(iter(reversed(forward.graph.nodes)))
    out = []
    for node in saved:
        if isinstance(node.meta.get("val"), Tensor) and _storage(node) in storages:
            with forward.graph.inserting_before(end):
                clone = forward.graph.call_function(torch.ops.aten.clone.default, (node,))
            clone.meta.update(node.meta)
            with node.meta["val"].fake_mode:
                clone.meta["val"] = torch.ops.aten.clone.default(node.meta["val"])
            out.append(clone)
        else:
            out.append(node)
    return out


def _storage(node: fx.Node) -> Any:
    return _torch.storage_ref(node.meta["val"])


def _set_outputs(module: fx.GraphModule, outputs: Sequence[Any]) -> None:
    end = next(iter(reversed(module.graph.nodes)))
    end.args = (list(outputs),)
