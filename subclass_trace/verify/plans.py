"""Rules of a plan: it fits the graph."""

from __future__ import annotations

from typing import Any

import torch.fx as fx

from ..plan import Plan
from .graphs import require


def verify_plan(forward: fx.GraphModule, plan: Plan) -> None:
    """The forward graph takes what the plan's primals give, and returns what the plan reads from it."""
    nodes = list(forward.graph.find_nodes(op="placeholder"))
    what, got = "the graph takes another number of inputs than the plan gives", [n.name for n in nodes]
    require(len(nodes) == len(plan.inputs.primals), what, "forward.inputs", expected=len(plan.inputs.primals), got=got)
    outputs: list[Any] = list(forward.graph.output_node().args[0])  # type: ignore[arg-type]
    count = plan.results.forward_leaves + plan.results.size_outputs + len(plan.gradients.saved)
    what = "the graph returns another number of values"
    require(len(outputs) == count, what, "forward.outputs", expected=count, got=len(outputs))
