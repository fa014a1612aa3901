"""What a pass has to leave as it was: inputs, types and aliasing of outputs, the order of effects;
and well-formed nodes.

>>> import torch, subclass_trace as st
>>> def forgets(graph):
...     node, _ = graph.outputs[0]
...     graph.graph.output_node().args = ([],)
>>> st.compile(lambda x: x.exp(), passes=[forgets])(torch.ones(2))
Traceback (most recent call last):
...
subclass_trace.errors.PassError: a pass has changed how many values the graph returns
  where:    forgets
  expected: 1
  got:      0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from ..capture.aliasing import byte_range
from ..capture.effects import is_collective, is_kept
from ..capture.graphs import is_random, output_args, placeholders
from ..errors import PassError
from ..torch_api.kinds import storage_key
from ..torch_api.operators import HigherOrderOperator, OpOverload, op_schema
from ..torch_api.trees import pytree
from .graph import value_of


@dataclass(frozen=True, eq=False)
class Before:
    """What a graph was before a pass.

    Attributes:
        nodes: node -> its operation and arguments.
        inputs: their names; ``outputs``: the types of what it returns; ``shared``: which of them
            lie in one memory, and in whose.
        effects: what is called for what it does, in order; ``collectives``: the same.
    """

    nodes: dict[fx.Node, tuple[Any, ...]]
    inputs: list[str]
    outputs: list[str]
    shared: list[int]
    effects: list[str]
    collectives: list[str]

    @classmethod
    def of(cls, graph: fx.Graph) -> Before:
        """As the graph is now."""
        nodes = {n: (n.target, n.args, dict(n.kwargs)) for n in graph.nodes}
        results = output_args(graph)
        inputs = [str(n.target) for n in placeholders(graph)]
        return cls(
            nodes,
            inputs,
            [*map(_type, results)],
            _shared(graph, results),
            _effects(graph),
            _collectives(graph),
        )


def check(graph: fx.Graph, before: Before, name: str, *, reorders: bool) -> None:
    """Compare a graph with what it was before a pass of this name, and find out what new nodes
    give.

    Args:
        reorders: the pass may merge collectives, and call them in another order.

    Raises:
        PassError: something is not as it has to be; the path names the pass and the node.
    """
    try:
        graph.lint()
        output_args(graph)
    except Exception as error:
        raise PassError(
            "a pass has left a broken graph", path=name, got=f"{type(error).__name__}: {error}"
        ) from error
    for node in () if reorders else graph.nodes:  # torch's own merging writes into one buffer
        if node not in before.nodes or before.nodes[node] != (
            node.target,
            node.args,
            dict(node.kwargs),
        ):
            _check_node(node, name)
    _fill_in(graph, before, name)
    now = Before.of(graph)
    _same("the inputs of the graph", name, before.inputs, now.inputs)
    _same("how many values the graph returns", name, len(before.outputs), len(now.outputs))
    ends = output_args(graph)
    for k, (was, made) in enumerate(zip(before.outputs, now.outputs, strict=True)):
        _same("the type of a value that the graph returns", f"{name}: {ends[k]}", was, made)
    _same("which values of the graph share memory", name, before.shared, now.shared)
    _same(
        "what is called for its effect, or draws random numbers", name, before.effects, now.effects
    )
    if not reorders:
        _same("the order of collectives", name, before.collectives, now.collectives)
    known: dict[str, fx.Node] = {}
    # a value of the trace is one node: a copy's metadata made another one of it
    for node in graph.nodes:
        if (traced := node.meta.get("trace_name")) is not None and known.setdefault(
            traced, node
        ) is not node:
            (node if node not in before.nodes else known[traced]).meta.pop("trace_name")


def _check_node(node: fx.Node, name: str) -> None:
    """A node that a pass has made or changed is an operation of torch's that writes nothing, on
    nodes and plain values."""
    path, target = f"{name}: {node.name}", node.target
    if node.op != "call_function":
        if node.op in ("call_method", "call_module"):
            raise PassError(
                "a pass has made no operation", path=path, expected="call_function", got=node.op
            )
        return
    known = isinstance(target, (OpOverload, HigherOrderOperator))
    if not (known or getattr(target, "__module__", None) in ("_operator", "math", "torch")):
        expected, fix = (
            "torch.ops.aten.mul.Tensor and the like",
            "make a custom operation of it (torch.library.custom_op)",
        )
        raise PassError(
            "a pass calls what is no operation", path=path, expected=expected, got=target, fix=fix
        )
    if isinstance(target, OpOverload) and op_schema(target).is_mutable:
        fix = "use the form that gives a new tensor; inputs are written at the end of a call alone"
        raise PassError(
            "a pass has made an operation that writes to its arguments",
            path=path,
            got=target,
            fix=fix,
        )
    held = [
        a for a in pytree.tree_leaves((node.args, dict(node.kwargs))) if isinstance(a, torch.Tensor)
    ]
    if held:
        fix = "graph.constant(name, tensor) gives a node"
        raise PassError(
            "a pass has put a tensor among the arguments of an operation",
            path=path,
            got=type(held[0]),
            fix=fix,
        )


def _same(what: str, path: str, expected: object, got: object) -> None:
    if expected != got:
        if isinstance(expected, list) and isinstance(got, list):
            gone, new = [x for x in expected if x not in got], [x for x in got if x not in expected]
            expected, got = (gone, new) if gone or new else (expected, got)
        raise PassError(
            f"a pass has changed {what}", path=path, expected=str(expected), got=str(got)
        )


def _fill_in(graph: fx.Graph, before: Before, name: str) -> None:
    """What nodes give that the pass has made or changed, and those that read them."""
    changed: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if before.nodes.get(node) == (
            node.target,
            node.args,
            dict(node.kwargs),
        ) and changed.isdisjoint(node.all_input_nodes):
            continue
        if "unbacked_bindings" in node.meta:
            continue
        changed.add(node)
        node.meta.setdefault("partitioner_tag", "is_forward")
        try:
            node.meta["val"] = value_of(node)
        except Exception as error:
            got = f"{node.target}: {type(error).__name__}: {error}"
            raise PassError(
                "a pass has made an operation that cannot be", path=f"{name}: {node.name}", got=got
            ) from error


def _type(result: Any) -> str:
    value = result.meta.get("val") if isinstance(result, fx.Node) else result
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{[*value.shape]}, strides {[*value.stride()]}, {value.device}"
    return type(value).__name__ if isinstance(result, fx.Node) else repr(value)


def _shared(graph: fx.Graph, results: Sequence[Any]) -> list[int]:
    """For inputs and results: the first of them whose memory it touches."""
    values: list[Any] = [
        n.meta.get("val") if isinstance(n, fx.Node) else None
        for n in (*placeholders(graph), *results)
    ]
    seen: dict[Any, list[tuple[int, Any]]] = {}
    found = []
    for k, value in enumerate(values):
        key = storage_key(value)
        mine = None if key is None else byte_range(value)
        others = [] if key is None else seen.setdefault(key, [])
        found.append(next((number for number, other in others if other.overlaps(mine)), k))
        others.append((k, mine))
    return found


def _effects(graph: fx.Graph) -> list[str]:
    return [str(n.target) for n in graph.nodes if is_kept(n) or is_random(n)]


def _collectives(graph: fx.Graph) -> list[str]:
    found = filter(is_collective, graph.nodes)
    return [f"{n.target} of {n.args[-1]}" for n in found if "wait_tensor" not in str(n.target)]
