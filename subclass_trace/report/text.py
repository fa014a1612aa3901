"""Reports as plain text: `describe` one specialization, `explain` all of a region.

>>> import torch, subclass_trace as st
>>> from subclass_trace.zoo import TwoTensor
>>> double = st.compile(lambda x: (x * 2, x.shape[0]))
>>> _ = double(TwoTensor(torch.ones(3), torch.zeros(3)))
>>> print(double.specializations[0].report())
1 input, 2 dense leaves
  input    class      shape  dtype    grad  graph input
  args[0]  TwoTensor  [3]    float32
    .a     Tensor     [3]    float32        primals_1
    .b     Tensor     [3]    float32        primals_2
<BLANKLINE>
1 result
  result     kind   class      shape  dtype    grad  made of
  result[0]  value  TwoTensor  [3]    float32        TwoTensor(a=out[0], b=out[1])
<BLANKLINE>
no backward: no result is differentiable
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..plan import Plan
from ..runtime.guards import autocast_text
from ..subclass.spec import WrapperSpec
from .tables import (
    Table,
    bytes_text,
    constant_text,
    count_text,
    input_table,
    mutation_table,
    result_table,
    saved_table,
    symbol_table,
    value_names,
)

_NOTHING: Mapping[Any, str] = MappingProxyType({})
_ROWS = 40
_WIDEST = 72


def describe(plan: Plan, full: bool = False) -> str:
    """A readable account of one specialization.

    Args:
        plan: what is described.
        full: do not cut long tables.
    """
    parts = [render(t.cut(None if full else _ROWS)) for t in plan_tables(plan)]
    return "\n\n".join([*parts, gradient_text(plan)])


def plan_tables(plan: Plan) -> list[Table]:
    """The tables of a plan that have rows: inputs, dynamic sizes, changed inputs, results, saved activations."""
    tables = [input_table(plan), symbol_table(plan), mutation_table(plan), result_table(plan), saved_table(plan)]
    return [t for t in tables if t.rows]


def gradient_text(plan: Plan) -> str:
    """One sentence on the backward."""
    if not plan.trains:
        return "no backward: no result is differentiable"
    names = value_names(plan)
    paths = [str(plan.inputs.rows[k].path) for k in plan.gradients.differentiated]
    shown = [*paths[:6], *([f"{len(paths) - 6} more"] if len(paths) > 6 else [])]
    return f"backward: from {', '.join(names[k] for k in plan.gradients.differentiable)} to {', '.join(shown)}"


def render(table: Table) -> str:
    """A table as aligned text."""
    rows = [table.columns, *[tuple(_cell(k, c) for k, c in enumerate(row)) for row in table.rows]]
    widths = [max(len(row[k]) for row in rows) for k in range(len(table.columns))]
    lines = [table.title]
    for row in rows:
        cells = [
            c.rjust(w) if k in table.right else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    if table.hidden:
        lines.append(f"  ... and {count_text(table.hidden, 'more row')} (full=True shows all)")
    return "\n".join(lines)


def _cell(column: int, text: str) -> str:
    if len(text) <= _WIDEST:
        return text
    # Paths and lines stand in the first column: their end says more than their beginning.
    return f"...{text[3 - _WIDEST :]}" if column == 0 else f"{text[: _WIDEST - 3]}..."


# ---------------------------------------------------------------------------------------------- all specializations
def explain(entries: Sequence[Any], eager_calls: Mapping[str, int], fixed: Mapping[str, str] = _NOTHING) -> str:
    """Why each specialization exists, what it guards, what it saves; and which calls ran eagerly.

    Args:
        entries: the specializations of a region, oldest first.
        eager_calls: reason -> how many calls ran without a specialization for it.
        fixed: what is no symbol in any of them -> why.
    """
    parts = [f"{count_text(len(entries), 'specialization')}"]
    parts += [_entry(k, entry) for k, entry in enumerate(entries)]
    sizes = [f"  {place}: the code asks for {why}" for place, why in fixed.items()]
    if sizes:
        parts.append(
            "\n".join(["sizes and numbers that are no symbols, each with a specialization of its own", *sizes[:_ROWS]])
        )
    if eager_calls:
        rows = [f"  {count_text(n, 'call')}: {reason}" for reason, n in eager_calls.items()]
        parts.append("\n".join(["calls that ran eagerly", *rows]))
    return "\n\n".join(parts)


def advice(fixed: Mapping[str, str] = _NOTHING) -> str:
    """What to do against ever more specializations (see `explain`)."""
    rows = [f"{place}: {why}" for place, why in fixed.items()]
    if not rows:
        return "make what changes a tensor instead of a Python value, mark its size dynamic, or raise the limit"
    return (
        f"let no code need a size as a number ({'; '.join(rows[:_ROWS])}): compute this outside of the region and pass it "
        "as a tensor, or pad the tensors to a few sizes; or raise the limit"
    )


def _entry(number: int, entry: Any) -> str:
    plan: Plan = entry.plan
    wrappers = sum(isinstance(row.spec, WrapperSpec) for row in plan.inputs.rows)
    leaves = count_text(plan.inputs.leaf_count, "dense leaf", "dense leaves")
    rows = [
        ("made for", entry.reason),
        ("inputs", f"{count_text(len(plan.inputs.rows), 'tensor')} ({count_text(wrappers, 'wrapper')}), {leaves}"),
        ("guards", "; ".join(_guards(entry.guards))),
        *_dynamic(plan),
        ("backward", _backward(entry)),
    ]
    return "\n".join([f"[{number}]", *[f"  {name + ':':<10} {text}" for name, text in rows]])


def _guards(guards: Any) -> list[str]:
    ambient = guards.ambient
    rows = [f"grad mode {'on' if ambient.grad else 'off'}", f"default dtype {ambient.dtype}".replace("torch.", "")]
    if ambient.inference:
        rows.append("inference mode")
    if ambient.autocast:
        rows.append(f"autocast {autocast_text(ambient.autocast)}")
    if ambient.deterministic:
        rows.append("deterministic algorithms")
    known = guards.state.arguments_by_value()
    if known:
        rows.append(f"{count_text(len(known), 'argument')} by value ({', '.join(map(constant_text, known[:6]))})")
    if guards.alias is not None:
        rows.append("which inputs share memory")
    return rows


def _dynamic(plan: Plan) -> list[tuple[str, str]]:
    if not plan.inputs.symbols:
        return []
    sizes = ", ".join(f"{name} = {source}" for name, source in symbol_table(plan).rows)
    conditions = "; ".join(map(str, plan.inputs.conditions)) or "none"
    # Torch traces a size of 0 or 1 as a number; a symbol is at least 2.
    own = (
        " (0 and 1 get specializations of their own)" if any(s.kind != "argument" for s in plan.inputs.symbols) else ""
    )
    return [("sizes", f"{sizes}{own}"), ("where", conditions)]


def _backward(entry: Any) -> str:
    plan: Plan = entry.plan
    if not plan.trains:
        return "none"
    size = bytes_text(sum(row.bytes for row in plan.gradients.saved))
    compiled = getattr(getattr(entry.program, "backwards", None), "compiled", ())
    made = f"; {count_text(len(compiled), 'backward')} compiled" if compiled else ""
    return f"{count_text(len(plan.gradients.saved), 'value')} saved, {size} beyond the inputs{made}"
