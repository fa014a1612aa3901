"""Names for what a plan talks of: ``args[0].weight.a`` is a leaf of an input, ``result[1].b`` one of a result."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ..plan import Plan, SavedValue, SizePrimal, ValueOutput
from ..plan.values import Recipe, accessors
from ..subclass.spec import leaf_paths


def type_text(dtype: object, size: Iterable[object]) -> str:
    """``float32[2, s0]``"""
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, size))}]"


def location_text(location: str) -> str:
    """``file:line``, relative to the current directory or the installed packages if it lies there."""
    return location.removeprefix(os.getcwd() + os.sep).rpartition(f"{os.sep}site-packages{os.sep}")[2]


def name_of(function: Any) -> str:
    """What people call a function: its name, of a module its class."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def place_of(function: Any) -> tuple[str, int, str]:
    """File, line and name of a function; of a module those of its ``forward``."""
    inner = function.func if isinstance(function, functools.partial) else function
    inner = inner.forward if isinstance(inner, torch.nn.Module) else inner
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    here = (code.co_filename, code.co_firstlineno) if code else ("<built-in>", 0)
    return *getattr(function, "traced_line", here), name_of(function)  # of a graph of Dynamo's: the user's


def function_text(function: Any) -> str:
    """``step (train.py:10)``"""
    file, line, name = place_of(function)
    return f"{name} ({location_text(file)}:{line})"


def seconds_text(seconds: Mapping[str, float]) -> str:
    """``0.03 s: trace 0.02, code generation 0.01``"""
    return f"{sum(seconds.values()):.3f} s: {', '.join(f'{name} {took:.3f}' for name, took in seconds.items())}"


def input_names(plan: Plan) -> dict[str, str]:
    """Placeholder of the forward graph -> what it is: the paths of its leaves, or the size that it is."""
    paths: list[list[str]] = [[] for _ in range(plan.inputs.leaf_count)]
    for row in plan.inputs.rows:
        for place, path in zip(row.leaves, leaf_paths(row.spec, str(row.path)), strict=True):
            paths[place].append(path)
    out, sizes = {}, 0
    for k, primal in enumerate(plan.inputs.primals):
        if isinstance(primal, SizePrimal):
            later = [p.leaf for p in plan.inputs.primals[k:] if not isinstance(p, SizePrimal)]
            out[f"primals_{min(later, default=plan.inputs.leaf_count) + sizes + 1}"] = f"size {primal.size}"
            sizes += 1
        else:
            out[f"primals_{primal.leaf + sizes + 1}"] = " and ".join(paths[primal.leaf])
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
        yield from ((f"assigned: {effect.place}{key}", made) for made in effect.values)


def value_names(plan: Plan) -> list[str]:
    """What each forward value is: a result, the new contents of an input, or an intermediate that views are made of."""
    names: dict[int, str] = {}
    for path, o in zip(result_paths(plan), plan.results.outputs, strict=True):
        if isinstance(o, ValueOutput):
            names.setdefault(o.value, path)
    for m in plan.mutations.rows:
        names.setdefault(m.value, f"new {plan.inputs.rows[m.input].path}")
    return [names.get(k, f"intermediate {k}") for k in range(len(plan.results.values))]


def output_names(plan: Plan) -> list[str]:
    """What each output of the forward graph is."""
    values = zip(value_names(plan), plan.results.values, strict=True)
    leaves = [path for name, spec in values for path in leaf_paths(spec, name)]
    sizes = [f"size {k}" for k in range(plan.results.size_outputs)]
    return [*leaves, *sizes, *map(saved_name, plan.gradients.saved)]


def operation_text(row: SavedValue) -> str:
    """``relu``"""
    return row.operation.removeprefix("aten.").removesuffix(".default")


def saved_where(row: SavedValue) -> str:
    """Where a saved value comes from: the path of an input, or the user's line that made it."""
    return row.path or location_text(row.where or "?")


def saved_name(row: SavedValue) -> str:
    """What a saved value is: ``saved: args[0].a``, or ``saved: relu at model.py:10``."""
    if row.path is not None:
        return f"saved: {row.path}"
    return f"saved: {operation_text(row)}{f' at {location_text(row.where)}' if row.where else ''}"
