"""Graph surgery on the recorder's graph: finish a joint graph, find what a backward needs, extract
a part.

`trace_name` is the link between copies: finishing is deterministic, so a value of the forward has
the same one in the joint graph of every backward that is traced later, whatever a pass calls its
node.
"""

from __future__ import annotations

import linecache
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from ..plan.descriptors import AnyDescriptor, Effect
from ..torch_api.graphs import graph_module
from ..torch_api.numbers import PYTHON_CLASSES, as_torch_symbol
from ..torch_api.operators import OpOverload, op_schema
from ..torch_api.repairs.recurrent import keep_workspaces
from .effects import is_collective, is_kept
from .functionalize import Functionalization
from .phase import Recording


def output_args(graph: fx.Graph) -> list[Any]:
    """The flat outputs of a graph."""
    return list(next(iter(reversed(graph.nodes))).args[0])


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    """The graph inputs in order."""
    return [n for n in graph.nodes if n.op == "placeholder"]


@dataclass(frozen=True, eq=False)
class TracedForward:
    """The end of a forward in the recorder's graph.

    Attributes:
        outputs: nodes, and constants, that it returns; ``descriptors``: what they are.
        boundary: its last node.
        served: nodes that stay in each joint graph, needed or not: what eager autograd keeps.
    """

    outputs: Sequence[Any]
    descriptors: tuple[AnyDescriptor, ...]
    boundary: fx.Node | None
    served: tuple[fx.Node, ...] = ()


def finish(
    recorder: Recording,
    forward: TracedForward,
    gradients: Sequence[Any] = (),
    descriptors: Sequence[AnyDescriptor] = (),
    *,
    functional: bool = True,
    passes: Callable[[fx.GraphModule], None] | None = None,
) -> fx.GraphModule:
    """The graph module of a trace, with outputs ``[*forward.outputs, *gradients]``: live nodes
    only, each with its origin and the outputs with descriptors. First and later joint graphs come
    from here, and a forward that has no backward.

    ``meta["draws"]`` says how many outputs at the end of the forward's are there only so that they
    are computed. ``meta["served"]``: the `trace_name` of each node in ``forward.served``.

    Args:
        gradients: what a backward gives, and ``descriptors`` of these; none: the graph is a forward
            alone.
        functional: else operations in place stay as they were recorded.
        passes: the graph goes through these.
    """
    if recorder.memory.any and functional:
        module, served = Functionalization(recorder).run(forward, gradients)
        _drop_dead(module.graph, served)
    else:
        nodes = _live_copy(recorder.graph, [*forward.outputs, *gradients], forward.served)
        module, served = (
            graph_module(recorder.root, nodes, "joint"),
            [n.name for n in forward.served],
        )
        recorder.memory.beside = None if recorder.memory.any else set(recorder.graph.nodes)
    draws = _keep_draws(module.graph, len(forward.outputs)) if gradients else 0
    described = (*forward.descriptors, *[Effect()] * draws, *descriptors)
    module.meta.update(draws=draws, served=served, descriptors=described)
    keep_workspaces(module.graph)
    _tell_origins(module.graph)
    for node in module.graph.nodes:
        if node.meta.get("partitioner_tag") not in LATE:
            node.meta["trace_name"] = node.name
    if passes is not None:
        passes(module)
    return module


def trace_name(node: fx.Node) -> str:
    """What a value is called in every graph of its trace. One that only its own graph knows (of a
    backward, or made by a pass) has a name that is no name of the trace."""
    name: str = node.meta.get("trace_name") or f"{node.name}'"
    return name


def _keep_draws(graph: fx.Graph, num_forward: int) -> int:
    """Make random numbers and collectives that nothing reads outputs of the forward, so that a
    partitioner keeps them."""
    outputs = output_args(graph)
    dead = [_first_tensor(graph, n) for n in list(graph.nodes) if _is_awaited(n) and not n.users]
    if dead:
        next(iter(reversed(graph.nodes))).args = (
            [*outputs[:num_forward], *dead, *outputs[num_forward:]],
        )
    return len(dead)


def _first_tensor(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """A tuple cannot be an output."""
    value: Any = node.meta.get("val")
    places = (
        [k for k, v in enumerate(value) if isinstance(v, torch.Tensor)]
        if type(value) in (tuple, list)
        else []
    )
    if not places:
        return node
    with graph.inserting_after(node):
        part = graph.call_function(operator.getitem, (node, places[0]))
    part.meta = {**node.meta, "val": value[places[0]]}
    return part


LATE = ("is_backward", "must_be_in_backward")


def is_draw(node: fx.Node) -> bool:
    """A forward node that runs for what it does: it moves the random generator, or it has effects
    (`effects`; the check behind ``linalg.inv`` raises). It is never dropped, and never run
    twice."""
    return node.meta.get("partitioner_tag") not in LATE and (is_random(node) or is_kept(node))


def _is_awaited(node: fx.Node) -> bool:
    """May it be that nothing reads it, and it runs nevertheless?"""
    early = node.meta.get("partitioner_tag") not in LATE
    return is_draw(node) or (early and is_collective(node))


def _runs(node: fx.Node) -> bool:
    return _is_awaited(node) or is_write(node)


def is_write(node: fx.Node) -> bool:
    """Does the operation write to an argument? In graphs as they were recorded."""
    return isinstance(node.target, OpOverload) and bool(op_schema(node.target).is_mutable)


def _live_copy(graph: fx.Graph, outputs: list[Any], also: Sequence[Any] = ()) -> fx.Graph:
    """A copy with what ``outputs`` need, and random draws. Primals stay, used or not: they are
    bound by position."""
    live: set[fx.Node] = set()
    todo = [n for n in [*outputs, *also] if isinstance(n, fx.Node)] + [
        n for n in graph.nodes if _runs(n)
    ]
    while todo:
        node = todo.pop()
        if node not in live:
            live.add(node)
            todo.extend(node.all_input_nodes)
    new = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        primal = node.op == "placeholder" and not str(node.target).startswith("tangents")
        if node in live or primal:
            # quicker than node_copy
            env[node] = copy = new.create_node(node.op, node.target, name=node.name)
            copy.args = fx.map_arg(node.args, env.__getitem__)
            if node.kwargs:
                copy.kwargs = fx.map_arg(node.kwargs, env.__getitem__)
            copy.meta.update(node.meta)
    new.output([env[n] if isinstance(n, fx.Node) else n for n in outputs])
    return new


def _drop_dead(graph: fx.Graph, keep: Collection[str]) -> None:
    """Erase what nothing reads. Tangents may be left over from a backward that could not be
    traced."""
    for node in reversed(list(graph.nodes)):
        dead_tangent = node.op == "placeholder" and str(node.target).startswith("tangents")
        dead = (
            node.name not in keep and not _runs(node) and node.op in ("call_function", "get_attr")
        )
        if not node.users and (dead or dead_tangent):
            graph.erase_node(node)


#: what a node tells of where it comes from
_ORIGIN = ("stack_trace", "nn_module_stack", "custom")


def _tell_origins(graph: fx.Graph) -> None:
    """Turn recorded frames into text, and numbers of the region into torch's symbols; a backward
    node is told the origin of its forward node (by ``seq_nr``)."""
    cache: dict[Any, str] = {}
    of_sequence: dict[int, dict[str, Any]] = {}
    for node in graph.nodes:
        meta = node.meta
        if type(number := meta.get("val")) in PYTHON_CLASSES:  # inductor would fix one of ours
            meta["val"] = as_torch_symbol(number)
        if frames := meta.pop("frames", None):
            if frames not in cache:
                cache[frames] = "".join(_frame_text(code, line) for code, line in reversed(frames))
            meta["stack_trace"] = cache[frames]
        if meta.get("phase") == "backward":
            meta.update(of_sequence.get(meta["seq_nr"], ()))
        elif "seq_nr" in meta:  # a branch of a higher order operator has none
            of_sequence.setdefault(
                meta["seq_nr"], {name: meta[name] for name in _ORIGIN if name in meta}
            )


def _frame_text(code: Any, line: int) -> str:
    text = linecache.getline(code.co_filename, line).strip()
    return f'  File "{code.co_filename}", line {line}, in {code.co_name}\n    {text}\n'


def where(node: fx.Node) -> str | None:
    """``file:line`` of the user's code that a node comes from."""
    trace = node.meta.get("stack_trace")
    if not trace:
        return None
    last = [t for t in trace.splitlines() if t.startswith("  File ")][-1]
    name, number = last.split('"')[1], last.split("line ")[1].split(",")[0]
    return f"{name}:{number}"


def primal_number(node: fx.Node) -> int:
    """Which graph input of the forward it is: 0 for ``primals_1``."""
    return int(str(node.target).rpartition("_")[2]) - 1


def module_path(node: fx.Node) -> str | None:
    """The innermost module whose code a node comes from, as the user reaches it:
    ``self.layers[0]``."""
    return next(reversed(node.meta.get("nn_module_stack") or {}), None)


def is_random(node: fx.Node) -> bool:
    """Does the node draw random numbers from a global generator?"""
    return (
        isinstance(node.target, OpOverload)
        and torch.Tag.nondeterministic_seeded in node.target.tags
    )


def is_drawn(node: fx.Node) -> bool:
    """A draw, or one of its results: an operation with several results is saved by result, since a
    tuple is no tensor."""
    part = node.target is operator.getitem and isinstance(node.args[0], fx.Node)
    return is_draw(node.args[0]) if part else is_draw(node)  # type: ignore[arg-type]


def read_by_backward(graph: fx.Graph) -> frozenset[str]:
    """The forward's tensors that operations of the backward read: what the autograd nodes that
    issued them hold."""
    late = [
        n
        for n in graph.nodes
        if n.meta.get("partitioner_tag") == "is_backward" and n.op == "call_function"
    ]
    read = {
        i for n in late for i in n.all_input_nodes if i.meta.get("partitioner_tag") != "is_backward"
    }
    rest = (n for n in read if not str(n.target).startswith("tangents"))
    return frozenset(n.name for n in rest if isinstance(n.meta.get("val"), torch.Tensor))


def needed(
    outputs: Iterable[Any], have: Collection[str], *, allow_random: bool = False
) -> tuple[set[fx.Node], set[str]]:
    """The nodes to compute for ``outputs`` when the nodes named in ``have`` are given.

    Returns them and the names of what is missing: graph inputs that are not given, and forward
    nodes that draw random numbers (drawing again would give others), unless ``allow_random``.
    """
    todo = [n for n in outputs if isinstance(n, fx.Node)]
    nodes: set[fx.Node] = set()
    missing: set[str] = set()
    while todo:
        node = todo.pop()
        if node in nodes:
            continue
        nodes.add(node)
        if node.name in have:
            continue
        redraw = not allow_random and is_drawn(node)
        if node.op == "placeholder" or redraw:
            missing.add(node.name)
            continue
        todo.extend(node.all_input_nodes)
    return nodes, missing


def extract(joint: fx.GraphModule, outputs: Sequence[Any], inputs: Sequence[str]) -> fx.GraphModule:
    """The part of ``joint`` that computes ``outputs`` from the nodes named in ``inputs``, which
    become its inputs in order.

    Every name must be a node of ``joint``; `needed` must have found nothing missing.
    """
    nodes, _ = needed(outputs, set(inputs), allow_random=True)
    by_name = {n.name: n for n in joint.graph.nodes}
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for name in inputs:
        node = by_name[name]
        env[node] = graph.placeholder(name)
        env[node].meta.update(node.meta)
    for node in joint.graph.nodes:
        if node in nodes and node not in env and node.op != "output":
            env[node] = graph.node_copy(node, env.__getitem__)
    graph.output([env[n] if isinstance(n, fx.Node) else n for n in outputs])
    return graph_module(joint, graph)
