"""What a plan says, as tables of text. `text` renders them.

In: a `Plan`. Out: `Table` objects. Paths name everything: ``args[0].weight.a`` is a leaf of an input, ``result[1].b``
one of a result.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..plan import (
    ConstantOutput,
    InputOutput,
    InputPlan,
    LeafPrimal,
    MutationPlan,
    OutputPlan,
    Plan,
    SameOutput,
    SavedValue,
    SizeOutput,
    SizePrimal,
    ValueOutput,
    ViewOutput,
)
from ..plan.values import Recipe, accessors
from ..subclass.spec import LeafSpec, OpaqueSpec, Spec, WrapperSpec, leaf_count

_WIDEST_CONSTANT = 60


@dataclass(frozen=True)
class Table:
    """A titled table. ``right`` are the columns of numbers; ``hidden`` rows were cut off at the end."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    hidden: int = 0

    def cut(self, limit: int | None) -> Table:
        """The first ``limit`` rows."""
        if limit is None or len(self.rows) <= limit:
            return self
        return Table(self.title, self.columns, self.rows[:limit], self.right, self.hidden + len(self.rows) - limit)


# ---------------------------------------------------------------------------------------------- words
def shape_text(size: Iterable[Any]) -> str:
    """``[2, s0]``"""
    return f"[{', '.join(map(str, size))}]"


def dtype_text(dtype: object) -> str:
    """``float32``"""
    return str(dtype).removeprefix("torch.")


def bytes_text(count: int) -> str:
    """``1.5 KiB``"""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """``1 input``, ``2 inputs``"""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def constant_text(value: object) -> str:
    """A short ``repr`` on one line; never raises."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an author's __repr__ may raise anything
        text = f"<{type(value).__qualname__}>"
    return text if len(text) <= _WIDEST_CONSTANT else f"{text[: _WIDEST_CONSTANT - 3]}..."


# ---------------------------------------------------------------------------------------------- names and paths
def primal_names(plan: Plan) -> list[str]:
    """The placeholder of each of ``plan.inputs.primals``: leaves of arguments, sizes, leaves of closed-over tensors."""
    names, sizes = [], 0
    for k, primal in enumerate(plan.inputs.primals):
        later = [p.leaf for p in plan.inputs.primals[k:] if not isinstance(p, SizePrimal)]
        place = min(later, default=plan.inputs.leaf_count) if isinstance(primal, SizePrimal) else primal.leaf
        names.append(f"primals_{place + sizes + 1}")
        sizes += isinstance(primal, SizePrimal)
    return names


def leaf_names(plan: Plan) -> list[str]:
    """The graph input of each dense leaf: its own, or the one that it shares with leaves of overlapping memory."""
    names = [""] * plan.inputs.leaf_count
    for primal, name in zip(plan.inputs.primals, primal_names(plan), strict=True):
        if isinstance(primal, LeafPrimal):
            names[primal.leaf] = name
    return names


def leaf_paths(spec: Spec, path: str) -> list[str]:
    """The path of each leaf of a value, in flatten order."""
    if isinstance(spec, WrapperSpec):
        return [p for n, s in zip(spec.names, spec.inners, strict=True) for p in leaf_paths(s, f"{path}.{n}")]
    return [path] if isinstance(spec, LeafSpec) else []


def input_names(plan: Plan) -> dict[str, str]:
    """Placeholder -> what it is: the paths of its leaves, or the size that it is."""
    paths: list[list[str]] = [[] for _ in range(plan.inputs.leaf_count)]
    for row in plan.inputs.rows:
        for place, path in zip(row.leaves, leaf_paths(row.spec, str(row.path)), strict=True):
            paths[place].append(path)
    out = {}
    for primal, name in zip(plan.inputs.primals, primal_names(plan), strict=True):
        if isinstance(primal, SizePrimal):
            out[name] = f"size {primal.size}"
        else:
            out[name] = " and ".join(paths[primal.leaf])
    return out


def result_paths(plan: Plan) -> list[str]:
    """The path of each flat result: ``result``, ``result[0]``, ``result['loss']``; then of what is only assigned."""
    paths: dict[int, str] = {}
    for text, made in [("result", plan.results.recipe), *_assigned(plan)]:
        for number, path in accessors(made, text):
            paths.setdefault(number, path)
    return [paths.get(k, "not returned") for k in range(len(plan.results.outputs))]


def _assigned(plan: Plan) -> Iterator[tuple[str, Recipe]]:
    for effect in plan.side_effects:
        known = effect.how == "put" and isinstance(effect.keys[0], (str, int, float))
        key = f"[{effect.keys[0]!r}]" if known else "[...]" if effect.how == "put" else ""
        yield from ((f"assigned: {effect.holder.path}{key}", made) for made in effect.values)


def value_names(plan: Plan) -> list[str]:
    """What each forward value is: a result, the new contents of an input, or an intermediate that views are made of."""
    names: dict[int, str] = {}
    for path, o in zip(result_paths(plan), plan.results.outputs, strict=True):
        if isinstance(o, ValueOutput):
            names.setdefault(o.value, path)
    for m in plan.mutations.rows:
        if m.value is not None:
            names.setdefault(m.value, f"new {plan.inputs.rows[m.input].path}")
    return [names.get(k, f"intermediate {k}") for k in range(len(plan.results.values))]


def output_names(plan: Plan) -> list[str]:
    """What each output of the forward graph is."""
    leaves = [
        p for name, spec in zip(value_names(plan), plan.results.values, strict=True) for p in leaf_paths(spec, name)
    ]
    sizes = [f"size {k}" for k in range(plan.results.size_outputs)]
    return [*leaves, *sizes, *map(saved_name, plan.gradients.saved)]


def location_text(location: str) -> str:
    """``file:line``, relative to the current directory if it lies there."""
    return location.removeprefix(os.getcwd() + os.sep)


def saved_name(row: SavedValue) -> str:
    """What a saved value is: ``saved: args[0].a``, or ``saved: relu at model.py:10``."""
    if row.path is not None:
        return f"saved: {row.path}"
    return f"saved: {_operation(row)}{f' at {location_text(row.where)}' if row.where else ''}"


def _operation(row: SavedValue) -> str:
    return row.operation.removeprefix("aten.").removesuffix(".default")


def recipe(spec: Spec, outputs: Iterable[int]) -> str:
    """How a value is made of forward outputs: ``TwoTensor(a=out[0], b=out[1])``. Opaque attributes are left out."""
    numbers = iter(outputs)

    def text(s: Spec) -> str:
        if isinstance(s, LeafSpec):
            return f"out[{next(numbers)}]"
        if isinstance(s, OpaqueSpec):
            return ""
        parts = [(n, text(i)) for n, i in zip(s.names, s.inners, strict=True)]
        inner = ", ".join(f"{n}={part}" for n, part in parts if part)
        return f"{s.cls.__qualname__}({inner})"

    return text(spec)


# ---------------------------------------------------------------------------------------------- inputs
def input_table(plan: Plan) -> Table:
    """One block of rows per input: its class, then its leaves, opaque attributes and contexts."""
    names = leaf_names(plan)
    rows = []
    for row in plan.inputs.rows:
        first, *rest = _input_block(row, names)
        rows += [(str(row.path), *first[1:]), *rest]
    for primal, name in zip(plan.inputs.primals, primal_names(plan), strict=True):
        if isinstance(primal, SizePrimal):
            rows.append((f"size {primal.size}", "int", "", "", "", name))
    title = f"{count_text(len(plan.inputs.rows), 'input')}, {count_text(plan.inputs.leaf_count, 'dense leaf', 'dense leaves')}"
    return Table(title, ("input", "class", "shape", "dtype", "grad", "graph input"), tuple(rows))


def _input_block(row: InputPlan, names: Sequence[str]) -> list[tuple[str, ...]]:
    places = iter(row.leaves)

    def walk(spec: Spec, name: str, grad: str) -> list[tuple[str, ...]]:
        if isinstance(spec, OpaqueSpec):
            return [(name, "opaque", constant_text(spec.value), "", "", "")]
        leaf = names[next(places)] if isinstance(spec, LeafSpec) else ""
        cls = "Tensor" if isinstance(spec, LeafSpec) else spec.cls.__qualname__
        rows: list[tuple[str, ...]] = [(name, cls, shape_text(spec.size), dtype_text(spec.dtype), grad, leaf)]
        if isinstance(spec, WrapperSpec):
            indent = "  " * ((len(name) - len(name.lstrip())) // 2 + 1)
            for inner_name, inner in zip(spec.names, spec.inners, strict=True):
                rows += walk(inner, f"{indent}.{inner_name}", "")
            if spec.context is not None and not (type(spec.context) is dict and not spec.context):
                rows.append((f"{indent}context", "", constant_text(spec.context), "", "", ""))
        return rows

    return walk(row.spec, "", "yes" if row.requires_grad else "")


def symbol_table(plan: Plan) -> Table:
    """Where each dynamic size comes from in a call."""
    paths: dict[int, str] = {}
    for row in plan.inputs.rows:
        for place, path in zip(row.leaves, leaf_paths(row.spec, str(row.path)), strict=True):
            paths.setdefault(place, path)
    rows = []
    for s in plan.inputs.symbols:
        if s.kind == "argument":
            rows.append((str(s.symbol), f"flat argument {s.dim}"))
            continue
        owner = paths[s.leaf] if s.leaf is not None else str(plan.inputs.rows[s.input].path)  # type: ignore[index]
        kind = "size" if s.kind == "ragged" else s.kind
        source = f"{owner}.{kind}()" if s.kind in ("storage_offset", "item") else f"{owner}.{kind}({s.dim})"
        rows.append((str(s.symbol), source))
    return Table(count_text(len(rows), "dynamic size"), ("size", "is"), tuple(rows))


# ---------------------------------------------------------------------------------------------- mutations and results
def _starts(plan: Plan) -> list[int]:
    out, start = [], 0
    for spec in plan.results.values:
        out.append(start)
        start += leaf_count(spec)
    return out


def _value_recipe(plan: Plan, value: int, spec: Spec) -> str:
    start = _starts(plan)[value]
    return recipe(spec, range(start, start + leaf_count(spec)))


def mutation_table(plan: Plan) -> Table:
    """What the region does to its inputs."""
    rows = []
    for m in plan.mutations.rows:
        source = _value_recipe(plan, m.value, plan.results.values[m.value])
        rows.append((str(plan.inputs.rows[m.input].path), "; ".join(_changes(plan, m)), source))
    return Table(f"{count_text(len(rows), 'input')} changed", ("input", "change", "new contents"), tuple(rows))


def _changes(plan: Plan, m: MutationPlan) -> list[str]:
    spec = plan.inputs.rows[m.input].spec
    paths = leaf_paths(spec, "")
    out = []
    if m.leaves:
        out.append("data" if paths == [""] else f"data of {', '.join(paths[k] for k in m.leaves)}")
    if m.differentiable:
        out.append("new autograd history")
    return out


def result_table(plan: Plan) -> Table:
    """What each result is, and how it is put together."""
    names = value_names(plan)
    rows = [(path, *_result(plan, o, names)) for path, o in zip(result_paths(plan), plan.results.outputs, strict=True)]
    columns = ("result", "kind", "class", "shape", "dtype", "grad", "made of")
    return Table(count_text(len(rows), "result"), columns, tuple(rows))


def _result(plan: Plan, o: OutputPlan, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(o, ConstantOutput):
        return ("constant", type(o.value).__qualname__, "", "", "", constant_text(o.value))
    if isinstance(o, SizeOutput):
        return ("size", "int", "", "", "", f"out[{plan.results.forward_leaves + o.index}]")
    if isinstance(o, InputOutput):
        number = plan.inputs.positions[o.position]
        row = plan.inputs.rows[number if number is not None else 0]
        return ("input itself", *_class_and_meta(row.spec), "yes" if row.requires_grad else "", str(row.path))
    if isinstance(o, ViewOutput):
        base = _base_text(plan, o, names)
        return ("view", *_class_and_meta(o.spec), "yes" if o.requires_grad else "", f"view operations on {base}")
    if isinstance(o, SameOutput):
        return ("same object", "", "", "", "", f"result {o.result}")
    grad = "yes" if o.value in plan.gradients.differentiable else ""
    return ("value", *_class_and_meta(o.spec), grad, _value_recipe(plan, o.value, o.spec))


def _base_text(plan: Plan, o: ViewOutput, names: Sequence[str]) -> str:
    return str(plan.inputs.rows[o.base].path) if o.of_input else names[o.base]


def _class_and_meta(spec: Spec) -> tuple[str, str, str]:
    if isinstance(spec, OpaqueSpec):
        return (type(spec.value).__qualname__, "", "")
    cls = spec.cls.__qualname__ if isinstance(spec, WrapperSpec) else "Tensor"
    return (cls, shape_text(spec.size), dtype_text(spec.dtype))


# ---------------------------------------------------------------------------------------------- saved activations
def saved_table(plan: Plan) -> Table:
    """What is kept for the backward: origin, operation, shape, bytes, reason."""
    rows = []
    for row in plan.gradients.saved:
        origin = row.path or location_text(row.where or "?")
        shape = shape_text(row.shape) if row.is_tensor else ""
        size = bytes_text(row.bytes) if row.bytes else "-"
        rows.append((origin, _operation(row), shape, row.dtype, size, row.reason))
    total = bytes_text(sum(row.bytes for row in plan.gradients.saved))
    title = f"saved for the backward: {count_text(len(plan.gradients.saved), 'value')}, {total} beyond the inputs"
    return Table(title, ("origin", "operation", "shape", "dtype", "bytes", "reason"), tuple(rows), right=(4,))
