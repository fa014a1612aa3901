"""The plan of a captured region: what `capture` knows, as the run time keeps it."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx as fx

from .. import verify
from ..capture.capture import Captured
from ..capture.graphs import primal_number
from ..capture.session import Session
from ..errors import UnsupportedError
from ..partition.half import Half
from ..plan import (
    InputPlan,
    LeafPrimal,
    OutputPlan,
    Plan,
    PlanGradients,
    PlanInputs,
    PlanResults,
    Primal,
    SavedValue,
    SizePrimal,
    SymbolPlan,
    ValueOutput,
    ViewOutput,
    ViewStep,
)
from ..subclass.flatten import guarded_spec
from ..subclass.spec import WrapperSpec, is_ragged, leaf_count, leaf_spans
from ..torch_api.fakes import DATA_DEPENDENT_ERRORS
from ..torch_api.kinds import storage_key
from ..torch_api.modes import CallLog, enable_python_dispatcher
from ..torch_api.operators import OpOverload
from ..torch_api.repairs.strided_shards import numbers_as_split_factors
from ..torch_api.symbols import (
    argument_symbol,
    ragged_parts,
    shape_conditions,
    size_symbol,
    unbound_symbols_set_aside,
)
from ..torch_api.trees import pytree
from ..verify import proof
from .sizes import freeze, to_expr

Tensor = torch.Tensor
_ABSOLUTE = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default)


def make_plan(
    captured: Captured,
    forward: Half,
    saved: tuple[SavedValue, ...],
    *,
    in_program: bool = False,
    by_autograd: bool = False,
) -> Plan:
    """The plan; sizes are expressions over the symbols that a call binds. `with_conditions` has
    still to be called.

    Args:
        in_program, by_autograd: see `PlanMutations` and `PlanGradients`.
    """
    inputs, symbols = tuple(_inputs(captured)), tuple(_symbols(captured))
    watched_inputs, watched_values = _watched(captured, forward, len(saved))
    values = tuple(map(freeze, captured.results.values))
    return Plan(
        inputs=PlanInputs(
            rows=inputs,
            leaf_count=len(captured.inputs.leaf_primals),
            primals=tuple(_primals(captured, forward)),
            symbols=symbols,
            conditions=(),
            offsets_matter=captured.reads.offsets
            or any(n.target in _ABSOLUTE for n in captured.session.recorder.graph.nodes),
            described=captured.described,
        ),
        results=PlanResults(
            values=values,
            outputs=tuple(_freeze_output(o, captured) for o in captured.results.outputs),
            recipe=captured.recipes.result,
            detach_values=detached_values(captured, forward),
            size_outputs=captured.results.size_outputs,
            shared=captured.results.shared,
            unbacked=captured.results.unbacked,
            described=captured.results.described,
            paths=captured.results.paths,
        ),
        mutations=replace(captured.mutations, in_program=in_program),
        side_effects=captured.recipes.effects,
        gradients=PlanGradients(
            differentiable=captured.differentiable,
            differentiated=captured.differentiated,
            saved=saved,
            watched_inputs=watched_inputs,
            watched_values=watched_values,
            by_autograd=by_autograd,
        ),
    )


def with_conditions(plan: Plan, captured: Captured) -> Plan:
    """The plan with what the trace, and the back end, have assumed of the symbols, though some may
    be constant by now."""
    known = shape_conditions(captured.session.shape_env, number_symbols(plan.inputs.symbols))
    if verify.SPARES:
        known = proof.needed(known, plan.inputs.symbols)
    return replace(plan, inputs=replace(plan.inputs, conditions=tuple(known)))


def _inputs(captured: Captured) -> list[InputPlan]:
    return [
        InputPlan(
            path=i.path,
            spec=guarded_spec(freeze(i.spec), i.path),
            leaves=i.leaves,
            position=i.position,
            of_gradient=i.gradient_of is not None,
            grad_dtype=i.grad_dtype,
            facts=captured.reads.facts(number),
        )
        for number, i in enumerate(captured.inputs.rows)
    ]


def _primals(captured: Captured, forward: Half) -> list[Primal]:
    place = {p: k for k, p in enumerate(captured.inputs.leaf_primals)}
    rows: list[Primal] = []
    for node in forward.inputs:
        number = primal_number(node)
        if number in captured.inputs.sizes:
            rows.append(SizePrimal(to_expr(captured.inputs.sizes[number])))
        else:
            rows.append(LeafPrimal(place[number]))
    return rows


def _symbols(captured: Captured) -> list[SymbolPlan]:
    rows: dict[Any, SymbolPlan] = {}

    def note(symbol: Any, *where: Any) -> None:
        if symbol is not None:
            rows.setdefault(symbol, SymbolPlan(symbol, *where))

    # First: where a size was found to be equal to a number, that is checked with the size.
    for position, n in captured.session.arguments.items():
        note(argument_symbol(n), "flat", position)
    for k, t in enumerate(captured.inputs.originals):
        for d, n in enumerate(t.shape):
            note(size_symbol(n), "leaf", k, f".shape[{d}]")
    for k, t in enumerate(captured.inputs.originals):  # a slice of something that grows
        for d, n in enumerate(t.stride()):
            note(size_symbol(n), "leaf", k, f".stride({d})")
        note(size_symbol(t.storage_offset()), "leaf", k, ".storage_offset()")
    for number, i in enumerate(captured.inputs.rows):
        for d, n in enumerate(i.spec.size):  # type: ignore[union-attr]
            note(size_symbol(n), "input", number, f".shape[{d}]")
            if is_ragged(n) and (ragged := ragged_parts(n)) is not None:
                note(ragged[0], "input", number, f".shape[{d}]", True)
    return list(rows.values())


def number_symbols(rows: Sequence[SymbolPlan]) -> frozenset[Any]:
    """The symbols that are numbers."""
    return frozenset(row.symbol for row in rows if not row.ragged)


def detached_values(captured: Captured, forward: Half) -> frozenset[int]:
    """Positions of outputs that are made objects of their own.

    They are, or share memory with, a graph input or an earlier output; or they are dense values
    that the graph happens to compute as views: autograd would protect a view that comes out of a
    Function from in-place operations, and would take another tensor for its base.
    """
    values = captured.results.values
    kept = () if captured.tape is not None else captured.results.views
    rows = zip(values, leaf_spans(values), strict=True)
    plain = {
        span.start
        for k, (spec, span) in enumerate(rows)
        if not isinstance(spec, WrapperSpec) and k not in kept
    }
    seen = {storage_key(n.meta["val"]) for n in forward.inputs}
    out = set()
    for k, node in enumerate(forward.outputs[: sum(map(leaf_count, values))]):
        if (memory := storage_key(node.meta.get("val"))) is not None:
            if memory in seen or (k in plain and _is_view(node)):
                out.add(k)
            seen.add(memory)
    return frozenset(out)


def _is_view(node: fx.Node) -> bool:
    made: Any = node.args[0] if node.target is operator.getitem else node
    return isinstance(made.target, OpOverload) and made.target.is_view


def _freeze_output(o: OutputPlan, captured: Captured) -> OutputPlan:
    if isinstance(o, ViewOutput):
        (whole,) = o.steps
        return replace(o, spec=freeze(o.spec), steps=_view_steps(whole.operation, captured.session))
    if isinstance(o, ValueOutput):
        return replace(o, spec=freeze(o.spec))
    return o


def _view_steps(replay: Any, session: Session) -> tuple[ViewStep, ...]:
    """The operations of autograd's function of a view, which is run once on the traced base and
    seen from above.

    It remembers the symbols that it was traced with: their expressions instead, which may be
    numbers by now, where the region has read one that has to fit other sizes.

    Raises:
        UnsupportedError: they are not a chain of operations of one tensor each.
    """
    base = replay.__self__._base
    made: Any = None
    aside = unbound_symbols_set_aside(session.shape_env)
    numbers = numbers_as_split_factors()  # as while it was traced, which has guarded them
    # the class reads a number, as it will of a call's base
    with contextlib.suppress(*DATA_DEPENDENT_ERRORS):
        # Without the dispatcher, DTensor looks for the symbols in its cache. The code of a class
        # may make tensors.
        with (
            aside,
            numbers,
            torch.no_grad(),
            session.mode,
            enable_python_dispatcher(),
            CallLog() as log,
        ):
            made = replay(base)
    steps: list[ViewStep] = []
    for operation, args, kwargs, out in reversed(log.calls):
        gives = (made is None and not steps) or made is out
        parts = [*map(id, out)] if isinstance(out, (list, tuple)) else []
        if not gives and id(made) not in parts:
            continue
        which = None if gives else parts.index(id(made))
        rest, named = pytree.tree_map(to_expr, (tuple(args[1:]), tuple(kwargs.items())))
        if any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves((rest, named))):
            break
        steps.append(ViewStep(operation, rest, named, which))
        made = args[0]
    if made is not base:
        raise UnsupportedError(
            "a result is a view of another kind than operations of its base make",
            code="view-as-result",
            fix="return a clone of it",
        )
    return tuple(reversed(steps))


def _watched(
    captured: Captured, forward: Half, saved: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The inputs and the values that are wrappers, and of which a leaf is saved.

    Operations on a wrapper do not move its leaf's version counter, so that a change by the caller
    between forward and backward would go unnoticed: the counter of the wrapper is compared as well.
    """
    outputs = [n.meta.get("val") if isinstance(n, fx.Node) else None for n in forward.outputs]
    kept = {*map(storage_key, outputs[len(outputs) - saved :])} - {None}
    if not kept:
        return (), ()
    there = {str(n.target) for n in forward.inputs if storage_key(n.meta["val"]) in kept}
    changed = {m.input for m in captured.mutations.rows}
    inputs = [
        number
        for number, row in enumerate(captured.inputs.rows)
        if isinstance(row.spec, WrapperSpec) and number not in changed
        if not there.isdisjoint(
            f"primals_{captured.inputs.leaf_primals[k] + 1}" for k in row.leaves
        )
    ]
    replaced = {m.value for m in captured.mutations.rows}
    specs = captured.results.values
    values = [
        k
        for k, (spec, span) in enumerate(zip(specs, leaf_spans(specs), strict=True))
        if isinstance(spec, WrapperSpec) and k not in replaced
        if not kept.isdisjoint(map(storage_key, outputs[span]))
    ]
    return tuple(inputs), tuple(values)
