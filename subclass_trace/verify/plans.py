"""Rules of a plan: everything that it refers to exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.fx as fx

from ..plan import (
    BasePrimal,
    GradientOutput,
    InputOutput,
    LeafPrimal,
    MutationPlan,
    OutputPlan,
    Plan,
    SizeOutput,
    SizePrimal,
    SymbolPlan,
    ValueAlias,
    ValueOutput,
    ViewOutput,
)
from ..plan.side_effects import recipes_of
from ..plan.values import outputs_of
from ..subclass.spec import LeafSpec, OpaqueSpec, RaggedSize, SizeExpr, Spec, WrapperSpec, leaf_count, spec_leaves
from .requirement import require


def verify_plan(plan: Plan) -> None:
    """Every reference inside a plan exists, and every size can be computed from the sizes of a call."""
    _plan_inputs(plan)
    _plan_positions(plan)
    _plan_graphs(plan)
    for k, row in enumerate(plan.symbols):
        _plan_symbol(plan, k, row)
    _plan_primals(plan)
    _plan_values(plan)
    for k, mutation in enumerate(plan.mutations):
        _plan_mutation(plan, f"mutations[{k}]", mutation)
    twice = len({m.input for m in plan.mutations}) == len(plan.mutations)
    got = [m.input for m in plan.mutations]
    require(twice, "an input is changed by two rows", "mutations", expected="one row per input", got=got)
    needed = outputs_of(plan.result).union(*[outputs_of(r) for e in plan.side_effects for r in recipes_of(e)])
    for number in sorted(needed):
        _exists(number, len(plan.outputs), "an output that a recipe needs", "result")
    for k, output in enumerate(plan.outputs):
        _plan_output(plan, f"outputs[{k}]", output)
    for k, alias in enumerate(plan.aliases):
        _plan_alias(plan, f"aliases[{k}]", alias)
    _plan_autograd(plan)
    _plan_sizes(plan)


def _exists(number: object, count: int, what: str, path: str) -> None:
    inside = isinstance(number, int) and 0 <= number < count
    require(inside, f"{what} does not exist", path, expected=f"a number below {count}", got=number)


def _plan_inputs(plan: Plan) -> None:
    """Every input has one place in the leaf table per leaf, and every place is filled."""
    filled: set[int] = set()
    for k, row in enumerate(plan.inputs):
        path, count = f"inputs[{k}] {row.path}", leaf_count(row.spec)
        expected = f"{count} places"
        require(
            len(row.leaves) == count, "an input's leaves do not fit its spec", path, expected=expected, got=row.leaves
        )
        for place in row.leaves:
            _exists(place, plan.leaf_count, "a leaf", path)
        filled.update(row.leaves)
        _exists(row.position, len(plan.positions), "a position", path)
    empty = sorted(set(range(plan.leaf_count)) - filled)
    require(not empty, "a place in the leaf table is never filled", "leaf_count", expected="inputs for all", got=empty)


def _plan_positions(plan: Plan) -> None:
    """Flat positions and inputs refer to each other."""
    for position, number in enumerate(plan.positions):
        if number is not None:
            _exists(number, len(plan.inputs), "an input", f"positions[{position}]")
    for k, row in enumerate(plan.inputs):
        if not row.of_gradient:
            back = plan.positions[row.position]
            require(back == k, "a position belongs to another input", f"inputs[{k}] {row.path}", expected=k, got=back)


def _plan_graphs(plan: Plan) -> None:
    """The inputs exist whose autograd graphs are compared."""
    for k, rows in enumerate(plan.apart):
        for number in (n for numbers in rows for n in numbers):
            _exists(number, len(plan.inputs), "an input", f"apart[{k}]")


def _plan_symbol(plan: Plan, k: int, row: SymbolPlan) -> None:
    """A symbol is read from a dimension that exists."""
    path = f"symbols[{k}] {row.symbol}"
    if row.kind == "argument":
        _exists(row.dim, len(plan.positions), "a position", path)
        number = plan.positions[row.dim]
        require(number is None, "a symbol is read from a tensor", path, expected="a number", got=f"input {number}")
        return
    kinds = ("size", "stride", "storage_offset", "item", "ragged", "argument")
    require(row.kind in kinds, "a symbol comes from an unknown kind of number", path, expected=kinds, got=row.kind)
    one = (row.leaf is None) != (row.input is None)
    got = f"leaf={row.leaf}, input={row.input}"
    require(one, "a symbol has no single source", path, expected="a leaf or an input", got=got)
    if row.leaf is not None:
        _exists(row.leaf, plan.leaf_count, "a leaf", path)
        spec: Any = _leaf_specs(plan)[row.leaf]
    else:
        _exists(row.input, len(plan.inputs), "an input", path)
        spec = plan.inputs[row.input].spec  # type: ignore[index]
    if row.kind not in ("storage_offset", "item"):
        _exists(row.dim, len(spec.size), "a dimension", path)


def _leaf_specs(plan: Plan) -> dict[int, LeafSpec]:
    return {place: spec for row in plan.inputs for place, spec in zip(row.leaves, spec_leaves(row.spec), strict=True)}


def _plan_primals(plan: Plan) -> None:
    """Graph inputs are leaves that exist, each once."""
    seen: set[int] = set()
    for k, primal in enumerate(plan.primals):
        path = f"primals[{k}]"
        members = primal.members if isinstance(primal, BasePrimal) else ()
        members = (primal.leaf,) if isinstance(primal, LeafPrimal) else members
        for leaf in members:
            _exists(leaf, plan.leaf_count, "a leaf", path)
            require(
                leaf not in seen, "a leaf is two graph inputs", path, expected="one graph input", got=f"leaf {leaf}"
            )
            seen.add(leaf)


def _plan_values(plan: Plan) -> None:
    """Positions that are detached are outputs of the forward."""
    for k in plan.detach_values:
        _exists(k, plan.forward_leaves, "a forward output", "detach_values")


def _plan_mutation(plan: Plan, path: str, m: MutationPlan) -> None:
    """A mutation changes leaves that its input has, from a value that has as many."""
    _exists(m.input, len(plan.inputs), "an input", path)
    row = plan.inputs[m.input]
    path, count = f"{path} {row.path}", leaf_count(row.spec)
    for leaf in (*m.leaves, *m.replaced):
        _exists(leaf, count, "a leaf of the input", path)
    idle = sorted(set(m.in_program) - set(m.leaves))
    require(not idle, "the program writes a leaf that keeps its data", path, expected=m.leaves, got=idle)
    both = sorted(set(m.leaves) & set(m.replaced))
    require(not both, "a leaf is both copied into and replaced", path, expected="one of them", got=both)
    moves = set(m.replaced) if m.metadata is None else {*m.replaced, *m.leaves}
    require(moves.issuperset(m.memory), "memory of a leaf that stays", path, expected="leaves that move", got=m.memory)
    for value in m.memory.values():
        _exists(value, len(plan.values), "a forward value", path)
    strange = sorted(set(m.replaced.values()) - {"data", "attribute"})
    require(not strange, "a leaf is replaced in an unknown way", path, expected="data or attribute", got=strange)
    if m.value is None:
        needs = m.leaves or m.replaced or m.differentiable
        require(not needs, "a mutation has no new contents", path, expected="a forward value", got=None)
        return
    _exists(m.value, len(plan.values), "a forward value", path)
    held = leaf_count(plan.values[m.value])
    require(held == count, "new contents do not fit the input", path, expected=f"{count} leaves", got=held)


def _plan_output(plan: Plan, path: str, o: OutputPlan) -> None:
    """A result refers to something that the call has."""
    if isinstance(o, SizeOutput):
        _exists(o.index, plan.size_outputs, "a symbolic number", path)
    elif isinstance(o, InputOutput):
        _exists(o.position, len(plan.positions), "a position", path)
        tensor = plan.positions[o.position] is not None
        require(tensor, "the result is an argument that is no tensor", path, expected="a tensor", got=o.position)
    elif isinstance(o, GradientOutput):
        _exists(o.input, len(plan.inputs), "an input", path)
        known = plan.inputs[o.input].of_gradient
        require(known, "the result is an input that is no gradient", path, expected="a gradient", got=o.input)
    elif isinstance(o, ViewOutput):
        count = len(plan.inputs) if o.of_input else len(plan.values)
        _exists(o.base, count, "the base of a view", path)
        require(callable(o.replay), "a view cannot be replayed", path, expected="a function", got=o.replay)
    elif isinstance(o, ValueOutput):
        _exists(o.value, len(plan.values), "a forward value", path)
        count = leaf_count(o.spec)
        held = leaf_count(plan.values[o.value])
        require(held == count, "the result does not fit its value", path, expected=f"{count} leaves", got=held)


def _plan_alias(plan: Plan, path: str, row: ValueAlias) -> None:
    """A value that shares memory, and what it shares it with, exist."""
    _exists(row.value, len(plan.values), "a forward value", path)
    count = leaf_count(plan.values[row.value])
    fits = len(row.leaves) == count
    require(fits, "aliases do not fit the value", path, expected=count, got=len(row.leaves))
    if row.holder is not None:
        _exists(row.holder[0], len(plan.inputs), "an input", path)
    for alias in row.leaves:
        if alias is None:
            continue
        if alias.value is None:
            _exists(alias.leaf, plan.leaf_count, "a leaf", path)
        else:
            _exists(alias.value, len(plan.values), "a forward value", path)
            _exists(alias.leaf, leaf_count(plan.values[alias.value]), "a leaf", path)


def _plan_autograd(plan: Plan) -> None:
    """Differentiable values and differentiated inputs exist; saved names are distinct."""
    for k in plan.differentiable:
        _exists(k, len(plan.values), "a forward value", "differentiable")
    starts = {m.input for m in plan.mutations if m.starts_grad}
    for k in plan.differentiated:
        _exists(k, len(plan.inputs), "an input", "differentiated")
        row = plan.inputs[k]
        path = f"differentiated {row.path}"
        wanted = row.requires_grad or k in starts
        require(
            wanted, "an input gets a gradient unasked", path, expected="requires_grad=True", got="requires_grad=False"
        )
    for k in plan.watched_inputs:
        _exists(k, len(plan.inputs), "an input", "watched_inputs")
    for k in plan.watched_values:
        _exists(k, len(plan.values), "a forward value", "watched_values")
    names = [row.name for row in plan.saved]
    require(len(set(names)) == len(names), "a value is saved twice", "saved", expected="distinct names", got=names)
    idle = bool(names) and not plan.trains
    require(not idle, "values are saved without a backward", "saved", expected="nothing", got=names)


def _plan_sizes(plan: Plan) -> None:
    """Sizes are ints, or expressions over symbols that a call binds; no size of the trace is left."""
    bound = {row.symbol for row in plan.symbols} | {symbol for symbol, _ in plan.unbacked}
    require(
        len(bound) == len(plan.symbols) + len(plan.unbacked),
        "a symbol is bound twice",
        "symbols",
        expected="distinct",
        got=plan.symbols,
    )
    for path, size in _all_sizes(plan):
        if isinstance(size, RaggedSize):
            continue
        known = isinstance(size, (int, SizeExpr)) and not isinstance(size, torch.SymInt)
        require(known, "a size of the trace is left", path, expected="an int or a SizeExpr", got=repr(size))
        if isinstance(size, SizeExpr):
            free = sorted(map(str, size.expr.free_symbols - bound))
            require(
                not free, "a size uses a symbol that no call binds", path, expected=sorted(map(str, bound)), got=free
            )
    for k, condition in enumerate(plan.conditions):
        free = sorted(map(str, condition.free_symbols - bound))
        path = f"conditions[{k}]"
        require(
            not free, "a condition uses a symbol that no call binds", path, expected=sorted(map(str, bound)), got=free
        )


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
        if isinstance(primal, SizePrimal):
            yield f"primals[{k}]", primal.size
        elif isinstance(primal, BasePrimal):
            yield f"primals[{k}]", primal.numel


def _spec_sizes(spec: Spec, path: str, leaves: bool) -> Iterator[tuple[str, Any]]:
    """Sizes that the run time evaluates: of a forward value those of wrappers alone, since its leaves have theirs."""
    if isinstance(spec, OpaqueSpec) or (isinstance(spec, LeafSpec) and not leaves):
        return
    sizes: Iterable[Any] = (*spec.size, *spec.stride)
    if isinstance(spec, LeafSpec):
        sizes = (*sizes, spec.storage_offset)
    yield from ((path, n) for n in sizes)
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
