"""`Trace`: the graphs of a specialization as code, each input and output by what it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.fx as fx

from ..capture.graphs import placeholders
from ..plan import Plan, SavedValue, ValueOutput, ViewOutput
from ..subclass.spec import Spec
from .code import graph_code
from .text import describe


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """What a region would be compiled from. ``print`` it.

    Attributes:
        function: name of the traced function.
        joint, forward, backward: dense graphs; ``joint`` and ``backward`` are None when no result
            is differentiable.
        plan: what the run time would do around the graphs.
        spec: path -> spec, of every input, and of every result that is made or viewed.
        names: placeholder of any of the graphs -> what it is.
        results: what each output of the forward graph is.
        gradients: what each output of the backward graph is.
        by_autograd: the eager back end, where no partitioner is asked for, leaves this backward to
            autograd itself: the region is a few small operations, and their history is what the
                function leaves.
    """

    function: str
    joint: fx.GraphModule | None
    forward: fx.GraphModule
    backward: fx.GraphModule | None
    plan: Plan
    spec: Mapping[str, Spec]
    names: Mapping[str, str]
    results: tuple[str, ...]
    gradients: tuple[str, ...]
    by_autograd: bool = False

    @property
    def saved(self) -> tuple[SavedValue, ...]:
        """What would be saved for the backward."""
        return self.plan.gradients.saved

    @property
    def graphs(self) -> dict[str, fx.GraphModule]:
        """The graphs that there are: "joint", "forward", "backward"."""
        found = {"joint": self.joint, "forward": self.forward, "backward": self.backward}
        return {name: graph for name, graph in found.items() if graph is not None}

    def code(self, name: str) -> str:
        """The graph of this name as readable code.

        Raises:
            KeyError: there is no such graph.
        """
        return graph_code(self.graphs[name], name)

    def __str__(self) -> str:
        codes = "\n\n".join(self.code(name) for name in self.graphs)
        left = (
            "\n(the eager back end leaves this backward to autograd, unless a partitioner is "
            "asked for)"
        )
        return (
            f"trace of {self.function}\n\n{describe(self.plan)}{left * self.by_autograd}\n\n{codes}"
        )

    def __repr__(self) -> str:
        return f"<Trace of {self.function}: {', '.join(self.graphs)}>"


def trace_of(name: str, entry: Any) -> Trace:
    """What a specialization of the function ``name`` was compiled from."""
    plan, graphs = entry.plan, entry.graphs
    found = [g for g in (graphs.forward, graphs.joint, graphs.backward) if g is not None]
    names = {n.name: str(n.meta["descriptor"]) for g in found for n in placeholders(g.graph)}
    spec: dict[str, Spec] = {str(row.path): row.spec for row in plan.inputs.rows}
    for path, output in zip(map(str, plan.results.paths), plan.results.outputs, strict=True):
        if isinstance(output, (ValueOutput, ViewOutput)):
            spec[path] = output.spec
    results = (*map(str, graphs.forward.meta["descriptors"]),)
    gradients = () if graphs.backward is None else (*map(str, graphs.backward.meta["descriptors"]),)
    by_autograd = graphs.by_autograd and not plan.gradients.by_autograd
    return Trace(
        name,
        graphs.joint,
        graphs.forward,
        graphs.backward,
        plan,
        spec,
        names,
        results,
        gradients,
        by_autograd,
    )
