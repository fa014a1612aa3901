"""Rules of a plan: everything that it refers to exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx as fx

from ..plan import (
    BasePrimal,
    GradientOutput,
    InputOutput,
    LeafPrimal,
    OutputPlan,
    Plan,
    SizeOutput,
    SizePrimal,
    SymbolPlan,
    ValueOutput,
    ViewOutput,
)
from ..plan.side_effects import recipes_of
from ..plan.values import outputs_of
from ..subclass.spec import LeafSpec, OpaqueSpec, RaggedSize, SizeExpr, Spec, WrapperSpec, leaf_count, spec_leaves
from .graphs import require

#: a number that the plan refers to, how many there are, what it is the number of, and where the plan refers to it
Reference = tuple[Any, int, str, str]


def verify_plan(plan: Plan) -> None:
    """Every reference inside a plan exists, counts fit, and every size can be computed from the sizes of a call."""
    for number, count, what, path in _references(plan):
        inside = isinstance(number, int) and 0 <= number < count
        require(inside, f"{what} does not exist", path, expected=f"a number below {count}", got=number)
    _fits(plan)
    _unique(plan)
    _sizes(plan)


def _references(plan: Plan) -> Iterator[Reference]:
    inputs, leaves, values = len(plan.inputs), plan.leaf_count, len(plan.values)
    for k, row in enumerate(plan.inputs):
        path = f"inputs[{k}] {row.path}"
        yield row.position, len(plan.positions), "a position", path
        yield from ((place, leaves, "a leaf", path) for place in row.leaves)
    for k, number in enumerate(plan.positions):
        if number is not None:
            yield number, inputs, "an input", f"positions[{k}]"
    for k, primal in enumerate(plan.primals):
        members = primal.members if isinstance(primal, BasePrimal) else ()
        members = (primal.leaf,) if isinstance(primal, LeafPrimal) else members
        yield from ((leaf, leaves, "a leaf", f"primals[{k}]") for leaf in members)
    for k, symbol in enumerate(plan.symbols):
        yield from _of_symbol(plan, symbol, f"symbols[{k}] {symbol.symbol}")
    for k, m in enumerate(plan.mutations):
        path = f"mutations[{k}]"
        yield m.input, inputs, "an input", path
        count = leaf_count(plan.inputs[m.input].spec)
        yield from ((leaf, count, "a leaf of the input", path) for leaf in m.leaves)
        if m.value is not None:
            yield m.value, values, "a forward value", path
    needed = outputs_of(plan.result).union(*[outputs_of(r) for e in plan.side_effects for r in recipes_of(e)])
    yield from ((k, len(plan.outputs), "an output that a recipe needs", "result") for k in sorted(needed))
    for k, output in enumerate(plan.outputs):
        yield from _of_output(plan, output, f"outputs[{k}]")
    for k, alias in enumerate(plan.aliases):
        yield alias.value, values, "a forward value", f"aliases[{k}]"
        if alias.holder is not None:
            yield alias.holder[0], inputs, "an input", f"aliases[{k}]"
        for a in alias.leaves:
            if a is not None and a.value is None:
                yield a.leaf, leaves, "a leaf", f"aliases[{k}]"
            elif a is not None:
                yield a.value, values, "a forward value", f"aliases[{k}]"
                yield a.leaf, leaf_count(plan.values[a.value]), "a leaf", f"aliases[{k}]"  # type: ignore[index]
    yield from ((k, plan.forward_leaves, "a forward output", "detach_values") for k in plan.detach_values)
    for name in ("differentiated", "watched_inputs"):
        yield from ((k, inputs, "an input", name) for k in getattr(plan, name))
    for name in ("differentiable", "watched_values"):
        yield from ((k, values, "a forward value", name) for k in getattr(plan, name))


def _of_symbol(plan: Plan, row: SymbolPlan, path: str) -> Iterator[Reference]:
    if row.kind == "argument":
        yield row.dim, len(plan.positions), "a position", path
        return
    one = (row.leaf is None) != (row.input is None)
    got = f"leaf={row.leaf}, input={row.input}"
    require(one, "a symbol has no single source", path, expected="a leaf or an input", got=got)
    if row.leaf is not None:
        yield row.leaf, plan.leaf_count, "a leaf", path
        spec: Any = _leaf_specs(plan)[row.leaf]
    else:
        yield row.input, len(plan.inputs), "an input", path
        spec = plan.inputs[row.input].spec  # type: ignore[index]
    if row.kind not in ("storage_offset", "item"):
        yield row.dim, len(spec.size), "a dimension", path


def _of_output(plan: Plan, o: OutputPlan, path: str) -> Iterator[Reference]:
    if isinstance(o, SizeOutput):
        yield o.index, plan.size_outputs, "a symbolic number", path
    elif isinstance(o, InputOutput):
        yield o.position, len(plan.positions), "a position", path
    elif isinstance(o, GradientOutput):
        yield o.input, len(plan.inputs), "an input", path
    elif isinstance(o, ViewOutput):
        yield o.base, len(plan.inputs if o.of_input else plan.values), "the base of a view", path
    elif isinstance(o, ValueOutput):
        yield o.value, len(plan.values), "a forward value", path


def _leaf_specs(plan: Plan) -> dict[int, LeafSpec]:
    return {place: spec for row in plan.inputs for place, spec in zip(row.leaves, spec_leaves(row.spec), strict=True)}


def _fits(plan: Plan) -> None:
    """What is made of a spec has as many leaves as that."""
    for k, row in enumerate(plan.inputs):
        count, path = leaf_count(row.spec), f"inputs[{k}] {row.path}"
        right = len(row.leaves) == count
        require(right, "an input's leaves do not fit its spec", path, expected=f"{count} places", got=row.leaves)
        back = k if row.of_gradient else plan.positions[row.position]
        require(back == k, "a position belongs to another input", path, expected=k, got=back)
    for k, m in enumerate(plan.mutations):
        path, count = f"mutations[{k}]", leaf_count(plan.inputs[m.input].spec)
        needs = m.leaves or m.differentiable
        require(m.value is not None or not needs, "a mutation has no new contents", path, expected="a value", got=None)
        held = count if m.value is None else leaf_count(plan.values[m.value])
        require(held == count, "new contents do not fit the input", path, expected=f"{count} leaves", got=held)
    for k, o in enumerate(plan.outputs):
        if isinstance(o, ValueOutput):
            count, held = leaf_count(o.spec), leaf_count(plan.values[o.value])
            require(held == count, "the result does not fit its value", f"outputs[{k}]", expected=count, got=held)
    for k, alias in enumerate(plan.aliases):
        count, held = leaf_count(plan.values[alias.value]), len(alias.leaves)
        require(held == count, "aliases do not fit the value", f"aliases[{k}]", expected=count, got=held)


def _unique(plan: Plan) -> None:
    """Each place is filled, each input is changed by one row, each leaf is one graph input, each saved name is there once."""
    empty = sorted(set(range(plan.leaf_count)) - {place for row in plan.inputs for place in row.leaves})
    require(not empty, "a place in the leaf table is never filled", "leaf_count", expected="inputs for all", got=empty)
    for what, path, numbers in (
        ("an input is changed by two rows", "mutations", [m.input for m in plan.mutations]),
        ("a leaf is two graph inputs", "primals", [p.leaf for p in plan.primals if isinstance(p, LeafPrimal)]),
        ("a value is saved twice", "saved", [row.name for row in plan.saved]),
        ("a symbol is bound twice", "symbols", [row.symbol for row in plan.symbols]),
    ):
        require(len(set(numbers)) == len(numbers), what, path, expected="each once", got=numbers)
    starts = {m.input for m in plan.mutations if m.starts_grad}
    unasked = [k for k in plan.differentiated if not plan.inputs[k].requires_grad and k not in starts]
    require(not unasked, "an input gets a gradient unasked", "differentiated", expected="requires_grad", got=unasked)
    idle = bool(plan.saved) and not plan.trains
    require(not idle, "values are saved without a backward", "saved", expected="nothing", got=plan.saved)


def _sizes(plan: Plan) -> None:
    """Sizes are ints, or expressions over symbols that a call binds; no size of the trace is left."""
    bound = {row.symbol for row in plan.symbols} | {symbol for symbol, _ in plan.unbacked}
    for path, size in _all_sizes(plan):
        known = isinstance(size, (int, SizeExpr, RaggedSize)) and not isinstance(size, torch.SymInt)
        require(known, "a size of the trace is left", path, expected="an int or a SizeExpr", got=repr(size))
        free = size.expr.free_symbols - bound if isinstance(size, SizeExpr) else None
        require(not free, "a size uses a symbol that no call binds", path, expected=sorted(map(str, bound)), got=free)
    for k, condition in enumerate(plan.conditions):
        free = condition.free_symbols - bound
        what = "a condition uses a symbol that no call binds"
        require(not free, what, f"conditions[{k}]", expected=sorted(map(str, bound)), got=free)


def _all_sizes(plan: Plan) -> Iterator[tuple[str, Any]]:
    for k, row in enumerate(plan.inputs):
        yield from _spec_sizes(row.spec, f"inputs[{k}] {row.path}", leaves=True)
    for k, value in enumerate(plan.values):
        yield from _spec_sizes(value, f"values[{k}]", leaves=False)
    for k, m in enumerate(plan.mutations):
        if m.metadata is not None:
            yield from _spec_sizes(m.metadata, f"mutations[{k}].metadata", leaves=True)
    for k, o in enumerate(plan.outputs):
        if isinstance(o, ValueOutput):
            yield from _spec_sizes(o.spec, f"outputs[{k}]", leaves=False)
    for k, alias in enumerate(plan.aliases):
        yield from _spec_sizes(alias.spec, f"aliases[{k}]", leaves=True)
        yield from ((f"aliases[{k}]", a.delta) for a in alias.leaves if a is not None)
    for k, primal in enumerate(plan.primals):
        if not isinstance(primal, LeafPrimal):
            yield f"primals[{k}]", primal.size if isinstance(primal, SizePrimal) else primal.numel


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
    nodes = [n for n in forward.graph.nodes if n.op == "placeholder"]
    require(
        len(nodes) == len(plan.primals),
        "the graph takes another number of inputs than the plan gives",
        "forward.inputs",
        expected=len(plan.primals),
        got=[n.name for n in nodes],
    )
    specs = _leaf_specs(plan)
    for node, primal in zip(nodes, plan.primals, strict=True):
        value = node.meta["val"]
        if isinstance(primal, SizePrimal):
            expected, got = "a number", _kind(value)
        elif isinstance(primal, BasePrimal):
            expected, got = f"{primal.dtype} of rank 1", _kind(value)
        else:
            spec = specs[primal.leaf]
            expected, got = f"{spec.dtype} of rank {len(spec.size)}", _kind(value)
        same = expected == got
        require(same, "a graph input differs from its leaf", f"forward.{node.name}", expected=expected, got=got)
    outputs = list(forward.graph.output_node().args[0])  # type: ignore[arg-type]
    count = plan.forward_leaves + plan.size_outputs + len(plan.saved)
    where = "forward.outputs"
    require(
        len(outputs) == count, "the graph returns another number of values", where, expected=count, got=len(outputs)
    )
    leaves = [leaf for spec in plan.values for leaf in spec_leaves(spec)]
    for k, (node, leaf) in enumerate(zip(outputs, leaves, strict=False)):
        expected, got = f"{leaf.dtype} of rank {len(leaf.size)}", _kind(node.meta["val"])
        path = f"{where}[{k}]"
        require(expected == got, "an output differs from the plan's value", path, expected=expected, got=got)


def _kind(value: Any) -> str:
    return f"{value.dtype} of rank {value.dim()}" if isinstance(value, torch.Tensor) else "a number"
