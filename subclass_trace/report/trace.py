"""`Trace`: the graphs of a specialization as code, each input and output by what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx as fx

from ..plan import Plan, SavedValue, ValueOutput, ViewOutput
from ..subclass.spec import Spec, leaf_paths
from .code import graph_code
from .names import input_names, output_names, result_paths, saved_name, value_names
from .text import describe


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """What a region would be compiled from. ``print`` it.

    Attributes:
        function: name of the traced function.
        joint, forward, backward: dense graphs; ``joint`` and ``backward`` are None when no result is differentiable.
        plan: what the run time would do around the graphs.
        spec: path -> spec, of every input, and of every result that is made or viewed.
        names: placeholder of any of the graphs -> what it is.
        results: what each output of the forward graph is.
        gradients: what each output of the backward graph is.
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
        outputs: Sequence[str] = self.gradients if name == "backward" else self.results
        if name == "joint":
            hidden = [""] * self.graphs[name].meta.get("draws", 0)  # drawn or done, and read by nobody
            outputs = (*self.results[: len(self.results) - len(self.saved)], *hidden, *self.gradients)
        return graph_code(self.graphs[name].graph, name, self.names, outputs)

    def __str__(self) -> str:
        codes = "\n\n".join(self.code(name) for name in self.graphs)
        return f"trace of {self.function}\n\n{describe(self.plan)}\n\n{codes}"

    def __repr__(self) -> str:
        return f"<Trace of {self.function}: {', '.join(self.graphs)}>"


def trace_of(name: str, entry: Any) -> Trace:
    """What a specialization of the function ``name`` was compiled from."""
    plan, graphs = entry.plan, entry.graphs
    saved = {row.name: saved_name(row) for row in plan.gradients.saved}
    names = {**saved, **input_names(plan)}  # a saved input is called what it is
    gradients: list[str] = []
    backwards = () if entry.program.backwards is None else entry.program.backwards.compiled
    if backwards:  # none where it is refused, when a call asks for it
        first = backwards[0]
        values = value_names(plan)
        live = zip(plan.gradients.differentiable, first.tangents, strict=True)
        tangents = [p for k, s in live if s is not None for p in leaf_paths(s, f"tangent of {values[k]}")]
        names.update(zip(first.tangent_names, tangents, strict=True))
        for number, grad in zip(plan.gradients.differentiated, first.grads, strict=True):
            if grad is not None:
                gradients += leaf_paths(grad, f"gradient of {plan.inputs.rows[number].path}")
    spec: dict[str, Spec] = {str(row.path): row.spec for row in plan.inputs.rows}
    for path, output in zip(result_paths(plan), plan.results.outputs, strict=True):
        if isinstance(output, (ValueOutput, ViewOutput)):
            spec[path] = output.spec
    results = tuple(output_names(plan))
    return Trace(name, graphs.joint, graphs.forward, graphs.backward, plan, spec, names, results, tuple(gradients))
