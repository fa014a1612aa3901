"""From a capture to a program: partition, compile the graphs, make the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx as fx

from .. import _torch, verify
from ..backends import Backend, compile_with
from ..capture.aliasing import alias_pattern
from ..capture.graphs import is_drawn, output_args, placeholders
from ..capture.inputs import Argument
from ..capture.region import Captured
from ..partition.interface import Partitioned, Partitioner, partition, save_all
from ..partition.saved import saved_table
from ..plan import (
    BasePrimal,
    InputPlan,
    LeafPrimal,
    MutationPlan,
    OutputPlan,
    Plan,
    Primal,
    SavedValue,
    SizePrimal,
    SymbolPlan,
    ValueOutput,
    ViewOutput,
)
from ..subclass.context import snapshot
from ..subclass.flatten import leaves_of
from ..subclass.spec import WrapperSpec, leaf_count
from .backward import Backwards, CompiledBackward
from .reference import Program
from .sizes import freeze, to_expr

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Graphs:
    """The graphs of a specialization. ``joint`` and ``backward`` are None when there is no backward."""

    joint: fx.GraphModule | None
    forward: fx.GraphModule
    backward: fx.GraphModule | None


def build_program(
    captured: Captured,
    arguments: Sequence[Argument],
    positions: Sequence[int | None],
    through_base: frozenset[int],
    backend: Backend,
    partitioner: Partitioner,
    keep_joint: bool = False,
    keep_input_mutations: bool = False,
) -> tuple[Program, Graphs]:
    """Partition and compile a capture.

    Args:
        positions: flat position -> number of the argument; None where it is no tensor.
        through_base: positions whose tensor is a view that its autograd base stands for.
        keep_joint: keep a copy of the joint graph (partitioners consume it).
        keep_input_mutations: without a backward, data is written back inside the graph, by ``copy_`` on its inputs.
    """
    if captured.tape is None:
        forward = captured.forward_graph()
        if keep_input_mutations:
            captured = replace(captured, mutations=write_back_in_graph(captured, forward))
        plan = _plan(captured, arguments, positions, through_base, forward, ())
        if verify.ENABLED:
            verify.verify_forward(forward, write_back=keep_input_mutations)
            verify.verify_plan(plan)
        call = compile_with(backend.inference, forward, _examples(forward), is_backward=False, name=backend.name)
        plan = replace(plan, conditions=tuple(_conditions(captured)))  # compiling may have added some
        return Program(plan, call, None), Graphs(None, forward, None)
    try:
        guess = captured.tape.guess()
        traced = captured.tape.trace(guess)
    except Exception:  # whatever it is, eager would raise it in the backward, if there ever is one
        return _without_backward(captured, arguments, positions, through_base, backend)
    if verify.ENABLED:
        verify.verify_joint(traced.joint, num_forward=traced.num_forward, tangents=traced.tangents)
    kept = _copy(traced.joint) if keep_joint else None
    parts = partition(
        traced.joint,
        num_forward=traced.num_forward,
        draws=traced.draws,
        tangents=traced.tangents,
        partitioner=partitioner,
        serve=captured.saved_by_autograd,
        written=_written(captured),
        static=[captured.leaf_primals[k] for k in _static_leaves(captured, arguments)],
    )
    saved = saved_table(parts, _primal_paths(captured))
    plan = _plan(captured, arguments, positions, through_base, parts.forward, saved)
    if verify.ENABLED:
        visible = traced.num_forward - traced.draws
        verify.verify_partition(parts, num_forward=visible, tangents=traced.tangents, written=_written(captured))
        verify.verify_plan(plan)
        verify.verify_inputs(parts.forward, plan)
    call = compile_with(backend.forward, parts.forward, _examples(parts.forward), is_backward=False, name=backend.name)
    compile_backward = _backward_compiler(backend)
    first = _first_backward(parts, traced, guess, compile_backward)
    plan = replace(plan, conditions=tuple(_conditions(captured)))  # compiling may have added some
    known = frozenset(row.symbol for row in plan.symbols)
    backwards = Backwards(captured.tape, frozenset(parts.saved), compile_backward, _output_paths(plan), known)
    backwards.add(first)
    return Program(plan, call, backwards), Graphs(kept, parts.forward, parts.backward)


def _without_backward(
    captured: Captured,
    arguments: Sequence[Argument],
    positions: Sequence[int | None],
    through_base: frozenset[int],
    backend: Backend,
) -> tuple[Program, Graphs]:
    """A region whose guessed backward cannot be traced: it saves what eager saves, and tries again in the backward."""
    assert captured.tape is not None
    forward = captured.forward_graph(sorted(captured.saved_by_autograd))
    # Which results eager keeps cannot always be read off (an output that a node saves is unpacked as a new object), so
    # whatever cannot be computed again is saved as well; inputs cost nothing.
    fixed = {n.name for n in forward.graph.nodes if n.op == "placeholder" or is_drawn(n)}
    parts = save_all(forward, captured.saved_by_autograd | fixed, _written(captured))
    saved = saved_table(parts, _primal_paths(captured))
    call = compile_with(backend.forward, forward, _examples(forward), is_backward=False, name=backend.name)
    plan = _plan(captured, arguments, positions, through_base, forward, saved)
    compile_backward = _backward_compiler(backend)
    known = frozenset(row.symbol for row in plan.symbols)
    names = frozenset(parts.saved)
    backwards = Backwards(captured.tape, names, compile_backward, _output_paths(plan), known)
    return Program(plan, call, backwards), Graphs(None, forward, None)


def _backward_compiler(backend: Backend) -> Callable[[fx.GraphModule], Callable[[list[Any]], Sequence[Any]]]:
    def compile_backward(graph: fx.GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
        return compile_with(backend.backward, graph, _examples(graph), is_backward=True, name=backend.name)

    return compile_backward


def _first_backward(parts: Partitioned, traced: Any, guess: Sequence[Any], compile_backward: Any) -> CompiledBackward:
    number = {name: k for k, name in enumerate(traced.tangents)}
    inputs = tuple(("tangent", number[n]) if n in number else ("saved", n) for n in parts.backward_inputs)
    return CompiledBackward(
        tangents=tuple(map(freeze, guess)),
        create_graph=False,
        inputs=inputs,
        call=compile_backward(parts.backward),
        graph=parts.backward,
        grads=tuple(None if g is None else freeze(g) for g in traced.grads),
        next=None,
        differentiable=(),
        tangent_names=traced.tangents,
    )


def _examples(graph: fx.GraphModule) -> list[Any]:
    return [n.meta.get("val") for n in placeholders(graph.graph)]


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return _torch.graph_module(module, graph)


# ---------------------------------------------------------------------------------------------- the plan
def _plan(
    captured: Captured,
    arguments: Sequence[Argument],
    positions: Sequence[int | None],
    through_base: frozenset[int],
    forward: fx.GraphModule,
    saved: tuple[SavedValue, ...],
) -> Plan:
    inputs = tuple(_inputs(captured, arguments))
    return Plan(
        inputs=inputs,
        positions=tuple(positions),
        through_base=through_base,
        assignments=captured.assignments,
        leaf_count=len(captured.leaf_primals),
        primals=tuple(_primals(captured, forward)),
        symbols=tuple(_symbols(captured)),
        conditions=tuple(_conditions(captured)),
        values=tuple(freeze(v) for v in captured.values),
        detach_values=_detach(forward, sum(map(leaf_count, captured.values))),
        size_outputs=len(captured.size_outputs),
        mutations=tuple(map(_freeze_mutation, captured.mutations)),
        outputs=tuple(map(_freeze_output, captured.outputs)),
        out_tree=captured.result,
        differentiable=captured.differentiable,
        differentiated=captured.differentiated,
        grad_mode_after=captured.grad_mode_after,
        saved=saved,
        offsets_matter=_offsets_matter(captured),
        watched_inputs=_watched(captured, inputs, saved),
    )


def _inputs(captured: Captured, arguments: Sequence[Argument]) -> list[InputPlan]:
    rows = []
    written = {m.input for m in captured.mutations if m.differentiable}
    for number, (i, a) in enumerate(zip(captured.inputs, arguments, strict=True)):
        is_leaf = i.is_leaf if number in written else None
        rows.append(InputPlan(i.path, freeze(i.spec, snapshot), i.leaves, is_leaf, a.position, a.take_base))
    for c in captured.closed_over:
        rows.append(InputPlan(c.path, freeze(c.spec, snapshot), c.leaves, None, None, constant=c.value))
    return rows


def _primals(captured: Captured, forward: fx.GraphModule) -> list[Primal]:
    place = {p: k for k, p in enumerate(captured.leaf_primals)}
    rows: list[Primal] = []
    for node in placeholders(forward.graph):
        number = int(str(node.target).rsplit("_", 1)[1]) - 1
        base = node.meta.get("alias_base")
        if base is not None:
            members, numel, dtype = base
            rows.append(BasePrimal(tuple(place[m] for m in members), to_expr(numel), dtype))
        elif number in captured.size_primals:
            rows.append(SizePrimal(to_expr(captured.size_primals[number])))
        else:
            rows.append(LeafPrimal(place[number]))
    return rows


def _symbols(captured: Captured) -> list[SymbolPlan]:
    rows: dict[Any, SymbolPlan] = {}

    def note(size: Any, kind: str, leaf: int | None, inp: int | None, dim: int) -> None:
        symbol = _torch.size_symbol(size)
        if symbol is not None:
            rows.setdefault(symbol, SymbolPlan(symbol, kind, leaf, inp, dim))

    strided = [(k, t) for k, t in enumerate(captured.originals) if t.layout is torch.strided]
    for k, t in enumerate(captured.originals):
        for d, n in enumerate(t.shape):
            note(n, "size", k, None, d)
    for k, t in strided:
        for d, n in enumerate(t.stride()):
            note(n, "stride", k, None, d)
        note(t.storage_offset(), "storage_offset", k, None, 0)
    for number, i in enumerate(captured.inputs):
        for d, n in enumerate(i.spec.size):  # type: ignore[union-attr]
            note(n, "size", None, number, d)
    return list(rows.values())


def _conditions(captured: Captured) -> list[Any]:
    """What the trace assumed of the symbols."""
    known = {row.symbol for row in _symbols(captured)}
    return [c for c in _torch.shape_conditions(captured.session.shape_env, known) if c.free_symbols <= known]


def _offsets_matter(captured: Captured) -> bool:
    absolute = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default)
    return any(n.target in absolute for n in captured.session.recorder.graph.nodes)


def _detach(forward: fx.GraphModule, count: int) -> frozenset[int]:
    """Positions of outputs that are, or share memory with, a graph input or an earlier output: made distinct objects."""
    seen = {_storage(n.meta["val"]) for n in placeholders(forward.graph) if isinstance(n.meta["val"], Tensor)}
    out = set()
    for k, node in enumerate(output_args(forward.graph)[:count]):
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.layout is torch.strided:
            if _storage(value) in seen:
                out.add(k)
            seen.add(_storage(value))
    return frozenset(out)


def _storage(value: Tensor) -> Any:
    return value.untyped_storage()._cdata if value.layout is torch.strided else id(value)


def _freeze_mutation(m: MutationPlan) -> MutationPlan:
    return replace(m, metadata=None if m.metadata is None else freeze(m.metadata))


def _freeze_output(o: OutputPlan) -> OutputPlan:
    if isinstance(o, ViewOutput):
        return replace(o, spec=freeze(o.spec))
    if isinstance(o, ValueOutput):
        aliases = tuple(None if a is None else (a[0], to_expr(a[1])) for a in o.aliases)
        return replace(o, spec=freeze(o.spec), aliases=aliases)
    return o


def write_back_in_graph(captured: Captured, forward: fx.GraphModule) -> tuple[MutationPlan, ...]:
    """Append ``copy_`` nodes for the data that inputs get, where nothing but data changes; returns what is left to do.

    An input that shares written memory with another one is one graph input together with it, and stays outside.
    """
    graph, outputs = forward.graph, output_args(forward.graph)
    inputs = {str(n.target): n for n in placeholders(graph) if "alias_base" not in n.meta}
    starts = [0]
    for spec in captured.values:
        starts.append(starts[-1] + leaf_count(spec))
    held = {_storage(n.meta["val"]) for n in placeholders(graph) if isinstance(n.meta["val"], Tensor)}
    rows = []
    end = next(iter(reversed(graph.nodes)))
    for m in captured.mutations:
        leaves = captured.all_inputs[m.input].leaves
        names = [f"primals_{captured.leaf_primals[leaves[k]] + 1}" for k in m.leaves]
        only_data = m.value is not None and not m.replaced and m.metadata is None and not m.differentiable
        values = [outputs[starts[m.value or 0] + k] for k in m.leaves]
        if not only_data or not all(n in inputs for n in names) or any(_storage(v.meta["val"]) in held for v in values):
            rows.append(m)
            continue
        for k, name in zip(m.leaves, names, strict=True):
            place = starts[m.value or 0] + k
            with graph.inserting_before(end):
                copy = graph.call_function(torch.ops.aten.copy_.default, (inputs[name], outputs[place]))
            copy.meta.update(inputs[name].meta)
            outputs[place] = copy
        # copy_ moves the version counter of a dense input by one itself; of a wrapper it sees the leaves only.
        dense = not isinstance(captured.all_inputs[m.input].spec, WrapperSpec)
        rows.append(replace(m, leaves=(), version_bumps=m.version_bumps - dense))
    end.args = (outputs,)
    forward.recompile()
    return tuple(rows)


# ---------------------------------------------------------------------------------------------- what is saved
def _written(captured: Captured) -> list[str]:
    """Graph inputs that the region writes."""
    leaves = {place for m in captured.mutations for k in m.leaves for place in [captured.all_inputs[m.input].leaves[k]]}
    numbers = {captured.leaf_primals[k] for k in leaves}
    numbers |= {n for group in captured.groups for n in group}
    return [f"primals_{n + 1}" for n in sorted(numbers)]


def _static_leaves(captured: Captured, arguments: Sequence[Argument]) -> list[int]:
    return [k for i, a in zip(captured.inputs, arguments, strict=True) if a.static for k in i.leaves]


def _primal_paths(captured: Captured) -> Mapping[str, str]:
    paths: dict[str, str] = {}
    for row in captured.all_inputs:
        for leaf, path in zip(row.leaves, _leaf_paths(row.spec, str(row.path)), strict=True):
            paths.setdefault(f"primals_{captured.leaf_primals[leaf] + 1}", path)
    return paths


def _leaf_paths(spec: Any, path: str) -> list[str]:
    if isinstance(spec, WrapperSpec):
        return [p for n, s in zip(spec.names, spec.inners, strict=True) for p in _leaf_paths(s, f"{path}.{n}")]
    return [path] if hasattr(spec, "dtype") else []


def _watched(captured: Captured, inputs: Sequence[InputPlan], saved: Sequence[SavedValue]) -> tuple[int, ...]:
    """Wrappers of which a leaf is saved as it is.

    Operations on a wrapper do not move its leaf's version counter, so that a change by the caller between forward and
    backward would go unnoticed: the wrapper is saved as well, and autograd checks its counter, as in eager.
    """
    kept = {row.name for row in saved}
    mutated = {m.input for m in captured.mutations}
    rows = []
    for number, row in enumerate(inputs):
        names = {f"primals_{captured.leaf_primals[k] + 1}" for k in row.leaves}
        if isinstance(row.spec, WrapperSpec) and number not in mutated and names & kept:
            rows.append(number)
    return tuple(rows)


def _output_paths(plan: Plan) -> list[str]:
    mutated = {m.value: plan.inputs[m.input].path for m in plan.mutations if m.value is not None}
    results = {o.value: k for k, o in enumerate(plan.outputs) if isinstance(o, ValueOutput)}
    return [str(mutated.get(k, f"result[{results.get(k, k)}]")) for k in plan.differentiable]


def alias_guard(captured: Captured, inputs: Sequence[Tensor]) -> tuple[Any, ...] | None:
    """The alias pattern, when it decided anything: something is written, or leaves share memory."""
    table: dict[int, Tensor] = {}
    for row, value in zip(captured.all_inputs, inputs, strict=True):
        table.update(zip(row.leaves, leaves_of(value), strict=True))
    pattern = alias_pattern(inputs, [table[k] for k in range(len(captured.leaf_primals))])
    return pattern if captured.mutations or len(pattern) > 1 else None
