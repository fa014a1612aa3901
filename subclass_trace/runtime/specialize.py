"""From a capture to a program: partition, compile the graphs, make the plan."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx as fx

from .. import _torch, verify
from ..backends import Backend, Compiled
from ..backends.eager import compile_eager
from ..backends.inductor import compile_forward
from ..capture.aliasing import alias_pattern
from ..capture.graphs import is_drawn, output_args, placeholders
from ..capture.inputs import Argument
from ..capture.region import Captured
from ..errors import NeedsEager
from ..partition.half import Half
from ..partition.interface import Partitioned, Partitioner, partition, save_all
from ..partition.min_cut import MinCut
from ..partition.rules import Facts
from ..partition.saved import saved_table
from ..plan import (
    BasePrimal,
    Detached,
    InputPlan,
    LeafPrimal,
    MutationPlan,
    OutputPlan,
    Plan,
    Primal,
    RaggedOutput,
    Replay,
    SavedValue,
    SizePrimal,
    SymbolicView,
    SymbolPlan,
    ValueAlias,
    ValueOutput,
    ViewOutput,
)
from ..subclass.context import snapshot
from ..subclass.flatten import leaves_of
from ..subclass.spec import WrapperSpec, is_ragged, leaf_count
from .backward import Backwards, CompiledBackward
from .compiling import backward_compiler, compile_half, forward_program
from .reference import Program
from .sizes import freeze, to_expr

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Graphs:
    """The graphs of a specialization, as graph modules that are made when they are asked for.

    ``joint`` and ``backward`` are None when there is no backward.
    """

    joint: fx.GraphModule | None
    first: Half
    second: Half | None

    @property
    def forward(self) -> fx.GraphModule:
        """The forward."""
        return self.first.module

    @property
    def backward(self) -> fx.GraphModule | None:
        """The backward."""
        return None if self.second is None else self.second.module


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
        keep_joint: keep the joint graph (a copy of it, where the partitioner consumes it).
        keep_input_mutations: without a backward, data is written back inside the graph, by ``copy_`` on its inputs.
    """
    if captured.tape is None:
        forward = captured.forward_graph()
        if keep_input_mutations:
            captured = replace(captured, mutations=write_back_in_graph(captured, forward))
        half = Half.of_module(forward)
        _name_inputs(half, captured)
        plan = _plan(captured, arguments, positions, through_base, half, ())
        if verify.ENABLED:
            verify.verify_forward(forward, write_back=keep_input_mutations)
            verify.verify_plan(plan)
        call, plan = forward_program(backend, backend.inference, half, plan)
        plan = replace(plan, conditions=tuple(_conditions(captured)))  # compiling may have added some
        return Program(plan, call, None), Graphs(None, half, None)
    try:
        guess = captured.tape.guess()
        traced = captured.tape.trace(guess)
    except NeedsEager:
        raise
    except Exception:  # whatever it is, eager would raise it in the backward, if there ever is one
        return _without_backward(captured, arguments, positions, through_base, backend)
    if verify.ENABLED:
        verify.verify_joint(traced.joint, num_forward=traced.num_forward, tangents=traced.tangents)
    ours = isinstance(partitioner, MinCut)
    kept = (traced.joint if ours else _copy(traced.joint)) if keep_joint else None
    partitioner = suited(partitioner, backend)
    parts = partition(
        traced.joint,
        num_forward=traced.num_forward,
        draws=traced.draws,
        late=traced.late,
        tangents=traced.tangents,
        partitioner=partitioner,
        serve=captured.served(traced.joint),
        written=_written(captured),
        static=[captured.leaf_primals[k] for k in _static_leaves(captured, arguments)],
        copied=_copied(captured, traced.joint),
    )
    saved = saved_table(parts, _primal_paths(captured), _copied(captured, traced.joint))
    plan = _plan(captured, arguments, positions, through_base, parts.first, saved)
    if verify.ENABLED:
        visible = traced.num_forward - traced.draws
        verify.verify_partition(parts, num_forward=visible, tangents=traced.tangents, written=_written(captured))
        verify.verify_plan(plan)
        verify.verify_inputs(parts.forward, plan)
    _name_inputs(parts.first, captured)
    call, plan = forward_program(backend, backend.forward, parts.first, plan)
    compile_backward = backward_compiler(backend, parts.packed)
    compiled = compile_half(backend, backend.backward, parts.second, is_backward=True)
    first = _first_backward(parts, traced, guess, compiled, captured.session.dtensor_modes())
    plan = replace(plan, conditions=tuple(_conditions(captured)))  # compiling may have added some
    known = _numbers(plan.symbols)
    names = frozenset(parts.saved)
    backwards = Backwards(captured.tape, names, compile_backward, _output_paths(plan), known, parts.twins)
    backwards.add(first)
    return Program(plan, call, backwards), Graphs(kept, parts.first, parts.second)


def suited(partitioner: Partitioner, backend: Backend) -> Partitioner:
    """A `MinCut` with what the back end decides decided."""
    if not isinstance(partitioner, MinCut):
        return partitioner
    eager = backend.forward is compile_eager and backend.backward is compile_eager
    return partitioner.for_backend(backend.forward is compile_forward, draws_as_written=eager)


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
    drawn = (n for n in forward.graph.nodes if is_drawn(n) and isinstance(n.meta.get("val"), Tensor))
    fixed = {n.name for n in (*placeholders(forward.graph), *drawn)}
    parts = save_all(forward, captured.served(forward) | fixed, _written(captured))
    saved = saved_table(parts, _primal_paths(captured))
    plan = _plan(captured, arguments, positions, through_base, parts.first, saved)
    call, plan = forward_program(backend, backend.forward, parts.first, plan)
    compile_backward = backward_compiler(backend)
    known = _numbers(plan.symbols)
    names = frozenset(parts.saved)
    backwards = Backwards(captured.tape, names, compile_backward, _output_paths(plan), known)
    return Program(plan, call, backwards), Graphs(None, parts.first, None)


def _first_backward(
    parts: Partitioned, traced: Any, guess: Sequence[Any], call: Compiled, modes: _torch.DTensorModes | None
) -> CompiledBackward:
    number = {name: k for k, name in enumerate(traced.tangents)}
    inputs = tuple(("tangent", number[n]) if n in number else ("saved", n) for n in parts.backward_inputs)
    return CompiledBackward(
        tangents=tuple(map(freeze, guess)),
        create_graph=False,
        inputs=inputs,
        call=call,
        grads=tuple(None if g is None else freeze(g) for g in traced.grads),
        next=None,
        differentiable=(),
        tangent_names=traced.tangents,
        passed=traced.passed,
        user_code=traced.user_code,
        by_layout=traced.by_layout,
        dtensor=modes,
        graph=parts.second,
    )


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
    forward: Half,
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
        saved_results=_saved_results(forward, captured, len(saved)),
        detach_values=_detach(forward, captured),
        size_outputs=len(captured.size_outputs),
        mutations=tuple(map(_freeze_mutation, captured.mutations)),
        outputs=tuple(_freeze_output(o, captured.session.recorder.has_read_numbers) for o in captured.outputs),
        out_tree=captured.result,
        containers=captured.containers,
        differentiable=captured.differentiable,
        differentiated=captured.differentiated,
        grad_mode_after=captured.grad_mode_after,
        saved=saved,
        offsets_matter=_offsets_matter(captured),
        aliases=tuple(map(_freeze_alias, captured.aliases)),
        unbacked=captured.unbacked,
        fresh_leaves=captured.fresh_leaves,
        inference=captured.inference,
        dangling=captured.dangling,
        detached=tuple(_freeze_detached(row, captured.session.recorder.has_read_numbers) for row in captured.detached),
        versions=captured.versions,
        independent=captured.independent,
        watched_inputs=_watched(captured, inputs, saved),
        unread=captured.session.reads.left_out(),
    )


def _inputs(captured: Captured, arguments: Sequence[Argument]) -> list[InputPlan]:
    rows = []
    written = {m.input for m in captured.mutations if m.differentiable}
    for number, (i, a) in enumerate(zip(captured.inputs, arguments, strict=True)):
        asked = captured.metadata.asked_of(number)
        is_leaf = i.is_leaf if number in written or asked.is_leaf else None
        spec = captured.session.reads.guarded(number, freeze(i.spec, snapshot))
        row = InputPlan(i.path, spec, i.leaves, is_leaf, a.position, a.take_base)
        is_parameter = i.is_parameter if asked.is_parameter else None
        rows.append(replace(row, is_parameter=is_parameter, no_gradient=asked.gradient, facts=asked.facts))
    for c in captured.closed_over:
        rows.append(InputPlan(c.path, freeze(c.spec, snapshot), c.leaves, None, None, constant=c.value))
    return rows


def _primals(captured: Captured, forward: Half) -> list[Primal]:
    place = {p: k for k, p in enumerate(captured.leaf_primals)}
    leaves = [*(i.leaves for i in captured.inputs), *(c.leaves for c in captured.closed_over)]
    moved = {leaves[m.input][k] for m in captured.mutations for k, how in m.replaced.items() if how == "data"}
    rows: list[Primal] = []
    for node in forward.inputs:
        number = int(str(node.target).rsplit("_", 1)[1]) - 1
        base = node.meta.get("alias_base")
        if base is not None:
            members, numel, dtype = base
            rows.append(BasePrimal(tuple(place[m] for m in members), to_expr(numel), dtype))
        elif number in captured.size_primals:
            rows.append(SizePrimal(to_expr(captured.size_primals[number])))
        else:
            rows.append(LeafPrimal(place[number], detached=place[number] in moved))
    return rows


def _symbols(captured: Captured) -> list[SymbolPlan]:
    rows: dict[Any, SymbolPlan] = {}

    def note(size: Any, kind: str, leaf: int | None, inp: int | None, dim: int) -> None:
        symbol = _torch.size_symbol(size)
        if symbol is not None:
            rows.setdefault(symbol, SymbolPlan(symbol, kind, leaf, inp, dim))

    # First: where a size was found to be equal to a number, that is checked with the size.
    for place, n in captured.session.arguments.items():
        symbol, position = _torch.own_symbol(n), place.position
        if symbol is not None:
            kind = "number" if position is None else "argument"
            rows.setdefault(symbol, SymbolPlan(symbol, kind, None, None, position or 0, place))
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
        for d, n in enumerate(i.spec.size):  # type: ignore[union-attr]
            ragged = _torch.ragged_parts(n) if is_ragged(n) else None
            if ragged is not None:
                rows.setdefault(ragged[0], SymbolPlan(ragged[0], "ragged", None, number, d))
    for k, n in enumerate(captured.leaf_primals):
        note(captured.session.items.get(f"primals_{n + 1}"), "item", k, None, 0)
    return list(rows.values())


def _numbers(rows: Sequence[SymbolPlan]) -> frozenset[Any]:
    """The symbols that are numbers: nested ints stand in no condition."""
    return frozenset(row.symbol for row in rows if row.kind != "ragged")


def _conditions(captured: Captured) -> list[Any]:
    """What the trace assumed of the symbols."""
    known = _numbers(_symbols(captured))
    return [c for c in _torch.shape_conditions(captured.session.shape_env, known) if c.free_symbols <= known]


def _offsets_matter(captured: Captured) -> bool:
    absolute = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default)
    if captured.groups and captured.session.dynamic:  # an offset may have the symbol of a size that it was equal to
        return True
    return captured.metadata.offsets or any(n.target in absolute for n in captured.session.recorder.graph.nodes)


def _detach(forward: Half, captured: Captured) -> frozenset[int]:
    """Positions of outputs that are made objects of their own.

    They are, or share memory with, a graph input or an earlier output; or they are dense values that the graph happens
    to compute as views: autograd would protect a view that comes out of a Function from in-place operations, and would
    take another tensor for its base.
    """
    plain, place = set(), 0
    for k, spec in enumerate(captured.values):
        if not isinstance(spec, WrapperSpec) and (captured.tape is not None or k not in captured.views):
            plain.add(place)
        place += leaf_count(spec)
    count = place
    seen = {_storage(n.meta["val"]) for n in forward.inputs if isinstance(n.meta["val"], Tensor)}
    out = set()
    for k, node in enumerate(forward.outputs[:count]):
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.layout is torch.strided:
            if _storage(value) in seen or (k in plain and _is_view(node)):
                out.add(k)
            seen.add(_storage(value))
    return frozenset(out)


def _is_view(node: fx.Node) -> bool:
    made: Any = node.args[0] if node.target is operator.getitem else node
    return isinstance(made.target, _torch.OpOverload) and made.target.is_view


def _saved_results(forward: Half, captured: Captured, saved: int) -> frozenset[int]:
    """The saved values, by place, that share memory with a differentiable result that is a plain tensor."""
    nodes = [n.meta.get("val") if isinstance(n, fx.Node) else None for n in forward.outputs]
    parts, plain = iter(nodes), set()
    for k, spec in enumerate(captured.values):
        own = [next(parts) for _ in range(leaf_count(spec))]
        if k in captured.differentiable and not isinstance(spec, WrapperSpec):
            plain |= {_storage(t) for t in own if isinstance(t, Tensor)}
    rows = enumerate(nodes[len(nodes) - saved :])
    return frozenset(k for k, t in rows if isinstance(t, Tensor) and _storage(t) in plain)


def _storage(value: Tensor) -> Any:
    return value.untyped_storage()._cdata if value.layout is torch.strided else id(value)


def _freeze_mutation(m: MutationPlan) -> MutationPlan:
    return replace(m, metadata=None if m.metadata is None else freeze(m.metadata))


def _freeze_output(o: OutputPlan, has_read_numbers: bool) -> OutputPlan:
    if isinstance(o, ViewOutput):
        return replace(o, spec=freeze(o.spec), replay=_freeze_replay(o.replay, has_read_numbers))
    if isinstance(o, RaggedOutput):
        return RaggedOutput(to_expr(o.size))
    return replace(o, spec=freeze(o.spec)) if isinstance(o, ValueOutput) else o


def _freeze_detached(row: Detached, has_read_numbers: bool) -> Detached:
    return replace(row, replay=_freeze_replay(row.replay, has_read_numbers))


def _freeze_replay(replay: Replay | None, has_read_numbers: bool) -> Replay | None:
    """Autograd's function of a view remembers the symbols that it was traced with: their expressions instead.

    That may be a number by now, where the region has read one that has to fit other sizes.
    """
    if isinstance(replay, SymbolicView):
        return replace(replay, sizes=tuple(map(to_expr, replay.sizes)))
    if replay is None:
        return None
    view = getattr(replay, "__self__", None)
    if not isinstance(view, Tensor) or view._base is None or not (has_read_numbers or _has_symbols(view, view._base)):
        return replay
    sizes: list[Any] = []
    symbols: list[bool] = []

    def note(n: Any) -> Any:
        sizes.append(to_expr(n))
        symbols.append(isinstance(n, torch.SymInt))
        return n

    try:
        with torch.no_grad(), _torch.enable_python_dispatcher():  # else DTensor looks for the symbols in its cache
            replay(view._base, symint_visitor_fn=note)  # type: ignore[call-arg]
    except _torch.DATA_DEPENDENT_ERRORS:  # the class reads a number, as it will of the base of the call
        if not all(type(n) is int for n in sizes):
            raise
    return SymbolicView(replay, tuple(sizes)) if any(symbols) else replay


def _has_symbols(*tensors: Tensor) -> bool:
    """In a size, a stride, or the place of a leaf (``x[:, k]`` has symbols nowhere else)."""
    if any(isinstance(n, torch.SymInt) for t in tensors for n in (*t.shape, *t.stride())):
        return True
    leaves = (leaf for t in tensors for leaf in leaves_of(t))
    return any(t.layout is torch.strided and isinstance(t.storage_offset(), torch.SymInt) for t in leaves)


def _freeze_alias(row: ValueAlias) -> ValueAlias:
    leaves = tuple(None if a is None else replace(a, delta=to_expr(a.delta)) for a in row.leaves)
    return replace(row, spec=freeze(row.spec), leaves=leaves)


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
        only_data = only_data and not m.stops_grad
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
    """Graph inputs that the region writes, or whose shape it changes: that moves the version of what is saved as well."""
    leaves = set()
    for m in captured.mutations:
        row = captured.all_inputs[m.input]
        # A write of no element moves the version, too; that of a wrapper is not its leaves'.
        moved = m.metadata is not None or (m.version_bumps and not isinstance(row.spec, WrapperSpec))
        leaves |= set(row.leaves if moved else [row.leaves[k] for k in (*m.leaves, *m.memory)])
    numbers = {captured.leaf_primals[k] for k in leaves}
    numbers |= {n for group in captured.groups for n in group}
    return [f"primals_{n + 1}" for n in sorted(numbers)]


def _copied(captured: Captured, joint: fx.GraphModule) -> set[str]:
    """Results that are new contents of inputs and nothing else: once they are written back, nobody holds them."""
    starts = [0]
    for spec in captured.values:
        starts.append(starts[-1] + leaf_count(spec))
    outputs = output_args(joint.graph)
    copied = {m.value for m in captured.mutations if m.value is not None and not m.replaced}
    copied -= {o.value for o in captured.outputs if isinstance(o, ValueOutput)}
    return {n.name for v in copied for n in outputs[starts[v] : starts[v + 1]] if isinstance(n, fx.Node)}


def facts_of(captured: Captured, arguments: Sequence[Argument], joint: fx.GraphModule) -> Facts:
    """What our partitioner is told beside the joint graph."""
    static = frozenset(f"primals_{captured.leaf_primals[k] + 1}" for k in _static_leaves(captured, arguments))
    written = frozenset(_written(captured))
    return Facts(written, static, frozenset(captured.served(joint)), frozenset(_copied(captured, joint)))


def _static_leaves(captured: Captured, arguments: Sequence[Argument]) -> list[int]:
    return [k for i, a in zip(captured.inputs, arguments, strict=True) if a.static for k in i.leaves]


def _primal_paths(captured: Captured) -> Mapping[str, str]:
    paths: dict[str, str] = {}
    for row in captured.all_inputs:
        for leaf, path in zip(row.leaves, _leaf_paths(row.spec, str(row.path)), strict=True):
            paths.setdefault(f"primals_{captured.leaf_primals[leaf] + 1}", path)
    return paths


def _name_inputs(half: Half, captured: Captured) -> None:
    """Errors of kernels name the inputs as the user would."""
    paths = _primal_paths(captured)
    for node in half.inputs:
        if node.name in paths:
            node.meta["path"] = paths[node.name]


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
    """The alias pattern, when it decided anything: something is written or compared, or leaves share memory."""
    table: dict[int, Tensor] = {}
    for row, value in zip(captured.all_inputs, inputs, strict=True):
        table.update(zip(row.leaves, leaves_of(value), strict=True))
    pattern = alias_pattern(inputs, [table[k] for k in range(len(captured.leaf_primals))])
    return pattern if captured.mutations or captured.metadata.storages or len(pattern) > 1 else None
