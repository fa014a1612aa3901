"""Rules of a plan: its parts fit each other and the graph, and no size of the trace is left in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx as fx

from ..plan import Plan, SizePrimal, ValueOutput
from ..subclass.spec import LeafSpec, OpaqueSpec, RaggedSize, SizeExpr, Spec, WrapperSpec, leaf_count, spec_leaves
from .graphs import require


def verify_plan(plan: Plan) -> None:
    """What is made of a spec has as many leaves as that, and every size can be computed from the sizes of a call."""
    for k, row in enumerate(plan.inputs.rows):
        count, path = leaf_count(row.spec), f"inputs[{k}] {row.path}"
        right = len(row.leaves) == count
        require(right, "an input's leaves do not fit its spec", path, expected=f"{count} places", got=row.leaves)
    for k, m in enumerate(plan.mutations.rows):
        path, count = f"mutations[{k}]", leaf_count(plan.inputs.rows[m.input].spec)
        held = leaf_count(plan.results.values[m.value])
        require(held == count, "new contents do not fit the input", path, expected=f"{count} leaves", got=held)
    _sizes(plan)


def _sizes(plan: Plan) -> None:
    """Sizes are ints, or expressions over symbols that a call binds; no size of the trace is left."""
    bound = {row.symbol for row in plan.inputs.symbols} | {symbol for symbol, _ in plan.results.unbacked}
    for path, size in _all_sizes(plan):
        known = isinstance(size, (int, SizeExpr, RaggedSize)) and not isinstance(size, torch.SymInt)
        require(known, "a size of the trace is left", path, expected="an int or a SizeExpr", got=repr(size))
        free = size.expr.free_symbols - bound if isinstance(size, SizeExpr) else None
        require(not free, "a size uses a symbol that no call binds", path, expected=sorted(map(str, bound)), got=free)
    for k, condition in enumerate(plan.inputs.conditions):
        free = condition.free_symbols - bound
        what = "a condition uses a symbol that no call binds"
        require(not free, what, f"conditions[{k}]", expected=sorted(map(str, bound)), got=free)


def _all_sizes(plan: Plan) -> Iterator[tuple[str, Any]]:
    for k, row in enumerate(plan.inputs.rows):
        yield from _spec_sizes(row.spec, f"inputs[{k}] {row.path}", leaves=True)
    for k, value in enumerate(plan.results.values):
        yield from _spec_sizes(value, f"values[{k}]", leaves=False)
    for k, o in enumerate(plan.results.outputs):
        if isinstance(o, ValueOutput):
            yield from _spec_sizes(o.spec, f"outputs[{k}]", leaves=False)
    for k, primal in enumerate(plan.inputs.primals):
        if isinstance(primal, SizePrimal):
            yield f"primals[{k}]", primal.size


def _spec_sizes(spec: Spec, path: str, leaves: bool) -> Iterator[tuple[str, Any]]:
    """Sizes that the run time evaluates: of a forward value those of wrappers alone, since its leaves have theirs."""
    if isinstance(spec, OpaqueSpec) or (isinstance(spec, LeafSpec) and not leaves):
        return
    offset = (spec.storage_offset,) if isinstance(spec, LeafSpec) else ()
    yield from ((path, n) for n in (*spec.size, *spec.stride, *offset))
    if isinstance(spec, WrapperSpec):
        for name, inner in zip(spec.names, spec.inners, strict=True):
            yield from _spec_sizes(inner, f"{path}.{name}", leaves)


def verify_inputs(forward: fx.GraphModule, plan: Plan) -> None:
    """The forward graph takes what the plan's primals give, and returns what the plan reads from it."""
    nodes = list(forward.graph.find_nodes(op="placeholder"))
    what, got = "the graph takes another number of inputs than the plan gives", [n.name for n in nodes]
    require(len(nodes) == len(plan.inputs.primals), what, "forward.inputs", expected=len(plan.inputs.primals), got=got)
    specs = {
        place: spec for row in plan.inputs.rows for place, spec in zip(row.leaves, spec_leaves(row.spec), strict=True)
    }
    for node, primal in zip(nodes, plan.inputs.primals, strict=True):
        if isinstance(primal, SizePrimal):
            expected = "a number"
        else:
            expected = f"{specs[primal.leaf].dtype} of rank {len(specs[primal.leaf].size)}"
        kind, path = _kind(node.meta["val"]), f"forward.{node.name}"
        require(kind == expected, "a graph input differs from its leaf", path, expected=expected, got=kind)
    outputs: list[Any] = list(forward.graph.output_node().args[0])  # type: ignore[arg-type]
    count, what = (
        plan.results.forward_leaves + plan.results.size_outputs + len(plan.gradients.saved),
        "the graph returns another number of values",
    )
    require(len(outputs) == count, what, "forward.outputs", expected=count, got=len(outputs))
    leaves = [leaf for spec in plan.results.values for leaf in spec_leaves(spec)]
    for k, (node, leaf) in enumerate(zip(outputs, leaves, strict=False)):
        expected, kind = f"{leaf.dtype} of rank {len(leaf.size)}", _kind(node.meta["val"])
        path = f"forward.outputs[{k}]"
        require(kind == expected, "an output differs from the plan's value", path, expected=expected, got=kind)


def _kind(value: Any) -> str:
    return f"{value.dtype} of rank {value.dim()}" if isinstance(value, torch.Tensor) else "a number"
