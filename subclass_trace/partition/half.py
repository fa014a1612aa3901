"""One of the two programs that a joint graph is split into: a list of the joint graph's own nodes.

No graph is copied to run it: the eager back end writes its code from the list. A graph module for a
compiler is made on demand (`Half.module`). A graph module that another partitioner made is a half
as well (`Half.of_module`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.fx as fx

from ..capture.graphs import output_args, placeholders
from ..torch_api.graphs import graph_module


class Half:
    """The forward or the backward.

    Attributes:
        owner: the module that the attributes of ``get_attr`` nodes are read from.
        inputs: placeholders and saved values, in the order in which they are passed.
        body: what is computed, in order.
        outputs: nodes, and constants.
        merged: a node of the joint graph that was found equal to an earlier one -> that one.
        cloned: places of outputs of which a clone is returned.
    """

    def __init__(
        self,
        owner: fx.GraphModule,
        inputs: Sequence[fx.Node],
        body: Sequence[fx.Node],
        outputs: Sequence[Any],
        merged: Mapping[fx.Node, fx.Node],
        cloned: Collection[int] = (),
    ) -> None:
        self.owner, self.inputs, self.body, self.outputs = (
            owner,
            list(inputs),
            list(body),
            list(outputs),
        )
        self.merged, self.cloned = merged, cloned
        self._descriptors: tuple[Sequence[Any], Sequence[Any]] | None = None

    @classmethod
    def of_module(cls, module: fx.GraphModule) -> Half:
        """A finished graph module."""
        body = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
        half = cls(module, placeholders(module.graph), body, output_args(module.graph), {})
        half.__dict__["module"] = module
        return half

    @property
    def is_plain(self) -> bool:
        """Is the list all there is to run? Else the graph module says more."""
        return not self.cloned

    @cached_property
    def module(self) -> fx.GraphModule:
        """A graph module of its own, with the names, values and other metadata of the joint
        graph."""
        graph = fx.Graph()
        values = {}
        for node in self.inputs:
            values[node] = graph.placeholder(node.name)
            values[node].meta = dict(node.meta)
        merged = self.merged

        def value(node: fx.Node) -> fx.Node:
            found: fx.Node = values[merged.get(node, node)]
            return found

        for node in self.body:
            values[node] = graph.node_copy(node, value)
        outputs = [value(o) if isinstance(o, fx.Node) else o for o in self.outputs]
        graph.output([clone_of(graph, o) if k in self.cloned else o for k, o in enumerate(outputs)])
        module = graph_module(self.owner, graph)
        if self._descriptors is not None:
            _describe(module, *self._descriptors)
        return module

    def describe(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Say what each input and each output is (`plan.descriptors`)."""
        self._descriptors = inputs, outputs
        if (made := self.__dict__.get("module")) is not None:
            _describe(made, inputs, outputs)

    @property
    def results(self) -> list[Any]:
        """The outputs that a caller gets: nodes of the joint graph, or of the module where that
        adds some."""
        return self.outputs if self.is_plain else output_args(self.module.graph)

    @property
    def examples(self) -> list[Any]:
        """The example values of the inputs."""
        return [n.meta.get("val") for n in self.inputs]


def _describe(module: fx.GraphModule, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    for node, descriptor in zip(placeholders(module.graph), inputs, strict=True):
        node.meta["descriptor"] = descriptor
    module.meta["descriptors"] = tuple(outputs)


def clone_of(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """A clone of a node's value, inserted where the graph inserts."""
    clone = graph.call_function(torch.ops.aten.clone.default, (node,))
    clone.meta.update(node.meta)
    with node.meta["val"].fake_mode:
        clone.meta["val"] = torch.ops.aten.clone.default(node.meta["val"])
    return clone


@dataclass(frozen=True, eq=False)
class Partitioned:
    """Two programs and what is saved between them.

    Attributes:
        first: the forward, with outputs ``[*forward outputs, *saved]``.
        second: the backward; its inputs are named after saved values and tangents.
        saved: the `trace_name` of each saved value, in the order of the forward's outputs.
        backward_inputs: for each backward placeholder that of the saved value that it takes, or the
            name of the tangent.
        extra: names among ``saved`` that the partitioner did not ask for (docs/notes/tangents.md).
    """

    first: Half
    second: Half
    saved: tuple[str, ...]
    backward_inputs: tuple[str, ...]
    extra: frozenset[str]

    @property
    def forward(self) -> fx.GraphModule:
        """The forward as a graph module, made on demand."""
        return self.first.module

    @property
    def backward(self) -> fx.GraphModule:
        """The backward as a graph module, made on demand."""
        return self.second.module
