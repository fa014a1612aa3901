"""What a pass is given: a dense graph, with ways to find its nodes by what they are and to put in
new ones."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
import torch.fx as fx

from ..capture.graphs import output_args, placeholders
from ..errors import PassError
from ..plan.descriptors import AnyDescriptor
from ..torch_api.graphs import fake_mode_of
from ..torch_api.modes import no_modes
from ..torch_api.repairs.fake_kernels import fake_kernels
from ..torch_api.trees import pytree


class JointGraph:
    """The graph of a region: forward and backward in one, or a forward alone, before it is
    partitioned.

    Each input and output says what it is (`plan.descriptors`); ``node.meta`` of each operation has
    ``val`` (a fake tensor), ``phase`` ("forward" or "backward"), and where the user's code gives
    them ``nn_module_stack``, ``stack_trace`` and ``custom`` (of `torch.fx.traceback.annotate`);
    ``recompute`` is what checkpoints say, and `memory_policy`.

    Attributes:
        module: the graph module; ``graph``: its graph, to be changed in place.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module

    @property
    def graph(self) -> fx.Graph:
        """The graph itself."""
        return self.module.graph

    @property
    def inputs(self) -> list[tuple[fx.Node, AnyDescriptor]]:
        """The placeholders, with what they are."""
        return [(node, node.meta["descriptor"]) for node in placeholders(self.graph)]

    @property
    def outputs(self) -> list[tuple[Any, AnyDescriptor]]:
        """What the graph returns (nodes, or constants), with what it is."""
        return list(zip(output_args(self.graph), self.module.meta["descriptors"], strict=True))

    @property
    def modules(self) -> list[str]:
        """The paths of the modules whose code the nodes come from, as ``named_modules`` has
        them."""
        return [*dict.fromkeys(path for node in self.graph.nodes for path in module_paths(node))]

    def find(
        self, module: str = "*", operation: str = "*", phase: str | None = None
    ) -> Iterator[fx.Node]:
        """The operations in their order.

        Args:
            module: a pattern (``layers.*.attention``): nodes of such a module, or of one inside of
                it.
            operation: a pattern (``aten.mm.default``).
            phase: "forward" or "backward"; None: both.
        """
        for node in self.graph.nodes:
            if node.op == "call_function" and (phase is None or node.meta.get("phase") == phase):
                if fnmatch.fnmatchcase(str(node.target), operation) and in_module(node, module):
                    yield node

    def insert(self, like: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A new operation right after ``like``, with the origin of that; what it gives is found out
        with fake tensors."""
        held = [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        if held:
            fix = "graph.constant(name, tensor) gives a node"
            raise PassError(
                "a tensor among the arguments of an operation",
                path=target,
                got=type(held[0]),
                fix=fix,
            )
        with self.graph.inserting_after(like):
            node = self.graph.call_function(target, args, kwargs)
        own = ("val", "trace_name", "unbacked_bindings", "recompute", "ac_graph_id")
        node.meta = {k: v for k, v in like.meta.items() if k not in own}
        if like.op == "placeholder":
            node.meta = {"partitioner_tag": "is_forward", "phase": "forward"}
        node.meta["val"] = value_of(node)
        return node

    def constant(self, name: str, value: torch.Tensor) -> fx.Node:
        """A tensor that the graph holds, as a node in front of all operations."""
        mode = fake_mode_of(self.graph)
        setattr(self.module, name, value)
        last = placeholders(self.graph)[-1:]
        with self.graph.inserting_after(*last) if last else self.graph.inserting_before():
            node = self.graph.create_node("get_attr", name)
        node.meta = {"partitioner_tag": "is_forward", "phase": "forward"}
        with no_modes():
            node.meta["val"] = (
                value if mode is None else mode.from_tensor(value, static_shapes=True)
            )
        return node

    def replace(self, old: fx.Node, new: fx.Node) -> None:
        """``new`` stands for the value of ``old``, in this graph and for backwards that are traced
        later."""
        old.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
        if (name := old.meta.pop("trace_name", None)) is not None:
            new.meta["trace_name"] = name


#: what changes a graph in place
Pass: TypeAlias = Callable[[JointGraph], Any]


def module_paths(node: fx.Node) -> list[str]:
    """The modules whose code a node comes from, outermost first."""
    return [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]


def in_module(node: fx.Node, pattern: str) -> bool:
    """Does a node come from a module of this path, or from one inside of it?"""
    return pattern == "*" or any(fnmatch.fnmatchcase(path, pattern) for path in module_paths(node))


def value_of(node: fx.Node) -> Any:
    """What an operation gives, with fake tensors."""
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))
    mode = fake_mode_of(node.graph)
    target: Any = fake_kernels().get(node.target, node.target)
    with no_modes(), torch.no_grad(), contextlib.nullcontext() if mode is None else mode:
        return target(*args, **kwargs)
