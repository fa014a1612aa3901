"""The `torch.autograd.Function` of a specialization as source, with its backwards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ...data.describe import half_of
from ...runtime.backward import CompiledBackward
from ...runtime.program import Program
from ...subclass.spec import LeafSpec, OpaqueSpec, spec_leaves
from ...torch_api.symbols import expression_source
from .specs import kind_text, taken_apart, wrapped
from .text import class_text, graph_lines, refuse, sizes_text


def served_backwards(program: Program) -> list[CompiledBackward]:
    """Those that are no backwards of backwards."""
    found = () if program.backwards is None else program.backwards.compiled
    return [b for b in found if not b.when.create_graph]


def backward_lines(of: Any) -> Iterator[str]:
    """The backwards and the Function of a `SpecializationText`."""
    for k, backward in enumerate(of.backwards):
        when, path = backward.when, f"backward[{k}]"
        if when.autocast or when.dtensor or when.ranks:
            refuse("what a backward asks of its surroundings", path)
        yield from graph_lines(half_of(backward), f"backward_graph_{of.number}_{k}", of.constant)
        yield from ("", "", *_one(of, k, backward), "", "")
    yield from _function(of)


def _one(of: Any, k: int, b: CompiledBackward) -> Iterator[str]:
    n, path = of.number, f"backward[{k}]"
    yield f"def backward_{n}_{k}(ctx, saved, grads):"
    for line in of.unpack_sizes():
        yield f"    {line.replace('= sizes', '= ctx.sizes')}"
    for row in () if b.reads is None else b.reads.rows:
        if (line := of.row(row)) is not None:
            if row.place.root.kind != "const":  # the call is over
                refuse("what a backward reads of its call", row.place)
            yield f"    {line}"
    names, leaves = (f"t{k}" for k in itertools.count()), list[str]()
    for number, (value, spec) in enumerate(
        zip(of.plan.gradients.differentiable, b.tangents, strict=True)
    ):
        where = f"the gradient of value {value}"
        yield f"    g{number} = grads[{value}]"
        if spec is None:
            yield f"    need(g{number} is None, {where + ' is absent'!r})"
            continue
        yield f"    need(g{number} is not None, {where + ' is there'!r})"
        for line, held, name in [
            ("", spec, f"g{number}"),
            *taken_apart(spec, f"g{number}", where, names),
        ]:
            if line:
                yield f"    {line}"
                continue
            assert not isinstance(held, OpaqueSpec)
            leaf = isinstance(held, LeafSpec)
            cls = "torch.Tensor" if isinstance(held, LeafSpec) else class_text(held.cls, where)
            size = sizes_text(held.size, of.symbols, where)
            kind = kind_text(held, None, where)
            yield f"    check({name}, {cls}, {kind}, {size}, None, {where!r})"
            if leaf:
                leaves.append(f"{name}_fit")
                stride = sizes_text(held.stride, of.symbols, where)
                yield f"    {name}_fit = fit({name}, {stride})"
    for condition in b.when.conditions:
        yield f"    need({expression_source(condition, of.symbols)}, {str(condition)!r})"
    yield from ("", "    def ready():", "        with torch.no_grad():")
    known = {row.name: number for number, row in enumerate(of.plan.gradients.saved)}
    given = []
    for kind, key in b.inputs:
        if kind == "saved":
            given.append(f"saved[{known[str(key)]}]")
        else:
            given.append(leaves[key] if kind == "tangent" else of.symbols[key])
    yield f"            r = backward_graph_{n}_{k}({', '.join(given)})"
    flat = (f"r[{number}]" for number in itertools.count())
    for number, (spec, passed) in enumerate(zip(b.grads, b.passed, strict=True)):
        made = "None"
        if spec is not None:
            own = iter([next(flat) for _ in spec_leaves(spec)])
            made = wrapped(spec, own, of.symbols, f"{path}.gradient[{number}]")
        if passed is not None:
            made = f"{'g' if passed[0] == 'tangent' else 'd'}{passed[1]}"
        yield f"            d{number} = {made}"
    yield f"        return ({''.join(f'd{number}, ' for number in range(len(b.grads)))})"
    yield from ("", "    return ready")


def _function(of: Any) -> Iterator[str]:
    n, plan = of.number, of.plan
    rows, count = plan.gradients.saved, len(plan.gradients.differentiated)
    first = plan.results.forward_leaves
    saved = first + plan.results.size_outputs
    yield f"class Region_{n}(torch.autograd.Function):"
    yield "    @staticmethod"
    yield "    def forward(ctx, x, leaves, sizes, numbers, *inputs):"
    for line in of.unpack_sizes():
        yield f"        {line}"
    yield f"        o = forward_{n}({of.primals()})"
    yield f"        numbers[0] = o[{first}:{saved}]"
    tensors = [f"o[{saved + k}]" for k, row in enumerate(rows) if row.is_tensor]
    others = [f"o[{saved + k}]" for k, row in enumerate(rows) if not row.is_tensor]
    yield f"        ctx.save_for_backward({', '.join(tensors)})"
    yield f"        ctx.others, ctx.sizes = [{', '.join(others)}], sizes"
    values = of.values()
    for k, value in enumerate(values):
        yield f"        v{k} = {value}"
    spent = {*plan.gradients.differentiable, *plan.mutations.spent_values}
    fixed = [f"v{k}" for k in range(len(values)) if k not in spent]
    watched = [f"x[{k}]" for k in plan.gradients.watched_inputs]
    watched += [f"v{k}" for k in plan.gradients.watched_values]
    yield f"        ctx.watched = watch(({''.join(f'{name}, ' for name in watched)}))"
    yield "        ctx.set_materialize_grads(False)"
    if fixed:
        yield f"        ctx.mark_non_differentiable({', '.join(fixed)})"
    yield f"        return ({''.join(f'v{k}, ' for k in range(len(values)))})"
    yield ""
    yield "    @staticmethod"
    yield "    def backward(ctx, *grads):"
    yield "        if all(g is None for g in grads):"
    yield f"            return (None,) * {4 + count}"
    yield "        check_watched(ctx)"
    yield "        if torch.is_grad_enabled() or not no_autocast():"
    yield "            raise NoSpecialization('a backward under autocast, or one to differentiate')"
    yield "        tensors, others = iter(ctx.saved_tensors), iter(ctx.others)"
    kinds = "".join(f"next({'tensors' if row.is_tensor else 'others'}), " for row in rows)
    yield f"        saved = [{kinds}]"
    calls = "".join(f"backward_{n}_{k}, " for k in range(len(of.backwards)))
    made = f"first_that_serves(({calls}), (ctx, saved, grads), 'backward')"
    yield f"        return (None, None, None, None, *{made})"
