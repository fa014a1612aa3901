"""Reports as plain text: `describe` one specialization, `explain` all of a region.

>>> import torch, subclass_trace as st
>>> from subclass_trace.zoo import TwoTensor
>>> double = st.compile(lambda x: (x * 2, x.shape[0]))
>>> _ = double(TwoTensor(torch.ones(3), torch.zeros(3)))
>>> print(double.specializations[0].report())
inputs: 1, dense leaves: 2
  args[0]    TwoTensor  float32[3]
  args[0].a  primals_1  float32[3]
  args[0].b  primals_2  float32[3]
results: 1
  result[0]  value  TwoTensor float32[3]
no backward: no result is differentiable
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..plan import InputOutput, Plan, SizeOutput, ValueOutput, ViewOutput
from ..plan.descriptors import Size
from ..subclass.spec import LeafSpec, OpaqueSpec, Spec, WrapperSpec
from ..torch_api.texts import text_of
from .names import saved_where, seconds_text, type_text

_ROWS = 40
_WIDEST = 72
Row = tuple[str, ...]


def describe(plan: Plan) -> str:
    """A readable account of one specialization: inputs, dynamic sizes, changed inputs, results,
    what is saved."""
    return "\n".join(
        [*[_table(title, rows) for title, rows in tables(plan) if rows], _gradient_text(plan)]
    )


def tables(plan: Plan) -> list[tuple[str, list[Row]]]:
    """What there is to say, as tables with their titles."""
    saved = plan.gradients.saved
    return [
        (
            f"inputs: {len(plan.inputs.rows)}, dense leaves: {plan.inputs.leaf_count}",
            [*_inputs(plan)],
        ),
        ("dynamic sizes", [*_symbols(plan)]),
        ("changed inputs", [*_changes(plan)]),
        (f"results: {len(plan.results.outputs)}", [*_results(plan)]),
        (
            f"saved for the backward: {len(saved)}, {saved_bytes(plan)} beyond the inputs",
            [*_saved(plan)],
        ),
    ]


def _table(title: str, rows: Sequence[Row]) -> str:
    cut = [tuple(_cell(k, cell) for k, cell in enumerate(row)) for row in rows[:_ROWS]]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cut
    ]
    more = [f"... and {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
    return "\n".join([title, *[f"  {line}" for line in (*lines, *more)]])


def _cell(column: int, text: str) -> str:
    if len(text) <= _WIDEST:
        return text
    # Paths and lines stand in the first column: their end says more than their beginning.
    return f"...{text[3 - _WIDEST :]}" if column == 0 else f"{text[: _WIDEST - 3]}..."


# ---- the tables
def _inputs(plan: Plan) -> Iterator[Row]:
    primals = (k for k, d in enumerate(plan.inputs.described) if not isinstance(d, Size))
    names = {leaf: f"primals_{k + 1}" for leaf, k in enumerate(primals)}

    def walk(spec: Spec, path: str, places: Iterator[int]) -> Iterator[Row]:
        if isinstance(spec, OpaqueSpec):
            yield path, "opaque", text_of(spec.value)
            return
        kind = names.get(next(places), "") if isinstance(spec, LeafSpec) else spec.cls.__qualname__
        yield (
            path,
            kind,
            type_text(spec.dtype, spec.size) + (", requires grad" if spec.requires_grad else ""),
        )
        if isinstance(spec, WrapperSpec):
            for name, inner in zip(spec.names, spec.inners, strict=True):
                yield from walk(inner, f"{path}.{name}", places)
            if (context := text_of(spec.context)) not in ("None", "{}"):
                yield path, "context", context

    for row in plan.inputs.rows:
        yield from walk(row.spec, str(row.path), iter(row.leaves))


def _symbols(plan: Plan, flat: Sequence[object] = ()) -> Iterator[Row]:
    leaves = [str(d) for d in plan.inputs.described if not isinstance(d, Size)]
    owners = {"leaf": leaves, "input": [str(row.path) for row in plan.inputs.rows]}
    for s in plan.inputs.symbols:
        if s.kind in owners:
            owner: object = owners[s.kind][s.number]
        else:
            owner = flat[s.number] if flat else f"flat argument {s.number}"
        yield str(s.symbol), f"{owner}{s.attribute}"


def _changes(plan: Plan) -> Iterator[Row]:
    for m in plan.mutations.rows:
        yield (
            str(plan.inputs.rows[m.input].path),
            "data, autograd history" if m.differentiable else "data",
        )


def _results(plan: Plan) -> Iterator[Row]:
    for path, o in zip(map(str, plan.results.paths), plan.results.outputs, strict=True):
        if isinstance(o, ValueOutput):
            grad = ", differentiable" if o.value in plan.gradients.differentiable else ""
            yield path, "value", _class_and_type(o.spec) + grad
        elif isinstance(o, ViewOutput):
            base = (
                str(plan.inputs.rows[o.base].path) if o.of_input else plan.results.described[o.base]
            )
            yield path, f"view of {base}", _class_and_type(o.spec)
        elif isinstance(o, InputOutput):
            yield (
                path,
                "input",
                next(str(row.path) for row in plan.inputs.rows if row.position == o.position),
            )
        elif isinstance(o, SizeOutput):
            yield path, "size", f"number {o.index}"
        else:
            yield path, type(o).__name__.removesuffix("Output").lower(), ""


def _class_and_type(spec: Any) -> str:
    return (
        f"{spec.cls.__qualname__ if isinstance(spec, WrapperSpec) else 'Tensor'} "
        f"{type_text(spec.dtype, spec.size)}"
    )


def _saved(plan: Plan) -> Iterator[Row]:
    for row in plan.gradients.saved:
        kind = type_text(row.dtype, row.shape) if row.is_tensor else row.dtype
        yield (
            saved_where(row),
            row.short_operation,
            kind,
            f"{row.bytes:,} B" if row.bytes else "-",
            row.reason,
        )


def saved_bytes(plan: Plan) -> str:
    """``1,024 B``"""
    return f"{sum(row.bytes for row in plan.gradients.saved):,} B"


def _gradient_text(plan: Plan) -> str:
    if not plan.trains:
        return "no backward: no result is differentiable"
    names = plan.results.described
    paths = [str(plan.inputs.rows[k].path) for k in plan.gradients.differentiated]
    shown = [*paths[:6], *([f"{len(paths) - 6} more"] if len(paths) > 6 else [])]
    how = ", by autograd itself" if plan.gradients.by_autograd else ""
    return (
        f"backward{how}: from "
        f"{', '.join(str(names[k]) for k in plan.gradients.differentiable)} to {', '.join(shown)}"
    )


# ---- all specializations
def misses_text(entry: Any) -> str:
    """A line for each earlier specialization: the guard that failed as code, and what it met."""
    return "\n".join(f"[{k}] {why.guard}  # {why}" for k, why in enumerate(entry.misses))


def guards_of(entry: Any) -> list[str]:
    """What a call is asked, as code: what the generated entry checks, and what holds of the dicts
    that code names."""
    state = [row.code for row in entry.state.fixed]
    return [*dict.fromkeys([*entry.guards, *state])]


def explain(entries: Sequence[Any], eager_calls: Mapping[str, int]) -> str:
    """Why each specialization exists, what it guards, what it saves; and which calls ran eagerly.

    Args:
        entries: the specializations of a region, oldest first.
        eager_calls: reason -> how many calls ran without a specialization for it.
    """
    parts = [
        f"{len(entries)} specializations",
        *[_entry(k, entry) for k, entry in enumerate(entries)],
    ]
    if eager_calls:
        parts.append(
            "\n".join(
                [
                    "calls that ran eagerly",
                    *[f"  {n} call{'s' * (n != 1)}: {why}" for why, n in eager_calls.items()],
                ]
            )
        )
    return "\n\n".join(parts)


def remarks(entries: Sequence[Any], inlined: Mapping[str, str]) -> str:
    """What is not portable, or for one rank alone, and why; functions of ``torch.compile`` that are
    part of it."""
    rows = []
    for k, entry in enumerate(entries):
        if gaps := entry.not_portable:
            rows.append(f"[{k}] is not portable: {'; '.join(gaps)}")
        if reads := entry.all_rank_reads:
            rows.append(f"[{k}] is for this rank alone: the trace has read {'; '.join(reads)}")
    rows += [
        f"{name}, a function of torch.compile(backend={backend!r}), is a part of it: its own code "
        "does not run"
        for name, backend in inlined.items()
    ]
    return "".join(f"\n\n{row}" for row in rows)


def _entry(number: int, entry: Any) -> str:
    plan, ambient = entry.plan, entry.ambient
    rows = [("made for", entry.reason)]
    rows += [("guard", f"[{k}] {why.guard}") for k, why in enumerate(entry.misses)]
    rows.append(("seconds", seconds_text(entry.seconds)))
    rows.append(("inputs", f"{len(plan.inputs.rows)}, dense leaves: {plan.inputs.leaf_count}"))
    rows.append(("grad mode", "on" if ambient.grad else "off"))
    if ambient.autocast:
        rows.append(("autocast", str(ambient.autocast)))
    if plan.inputs.symbols:  # torch traces a size of 0 or 1 as a number; a symbol is at least 2
        rows.append(
            (
                "sizes",
                ", ".join(
                    f"{name} = {source}" for name, source in _symbols(plan, entry.state.flat)
                ),
            )
        )
        rows.append(("where", "; ".join(map(str, plan.inputs.conditions)) or "none"))
    if entry.proof is not None:
        rows.append(("proved", str(entry.proof)))
    kept = (
        "by autograd itself"
        if plan.gradients.by_autograd
        else f"{len(plan.gradients.saved)} saved, {saved_bytes(plan)}"
    )
    rows.append(("backward", kept if plan.trains else "none"))
    rows += [("pass", str(record)) for record in entry.passes]
    return "\n".join([f"[{number}]", *[f"  {name + ':':<10} {text}" for name, text in rows]])
