"""``dynamic_shapes=`` of `torch.export`: which sizes are symbols, in which ranges."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.fx as fx
from torch.export import AdditionalInputs, Dim, ShapesCollection

from ..errors import ExportError
from ..frontends.dynamic import SizeHistory, each_tensor
from ..subclass.paths import Path
from ..torch_api.symbols import as_range, shape_conditions, size_symbol
from ..torch_api.symbols import narrowed as torch_narrowed
from ..torch_api.trees import pytree

Tensor = torch.Tensor


@dataclass(frozen=True)
class Wanted:
    """A dimension of an argument that shall be a symbol: ``dim`` is a `torch.export.Dim`, or one of
    its hints, or True."""

    path: str
    dimension: int
    dim: Any


def wanted_dims(
    function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], shapes: Any
) -> list[Wanted]:
    """What ``dynamic_shapes`` asks for.

    Raises:
        ExportError: it does not fit the arguments.
    """
    if isinstance(shapes, (ShapesCollection, AdditionalInputs)):
        told: Any = shapes.dynamic_shapes
        shapes = told(function, args, {**kwargs})
    if shapes is None:
        return []
    rows: list[tuple[str, Any, str]] = []  # name, value, path
    count = 0
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs).arguments
        kinds = {name: p.kind for name, p in signature.parameters.items()}
    except (TypeError, ValueError):
        bound, kinds = {f"args[{k}]": v for k, v in enumerate(args)} | dict(kwargs), {}
    for name, value in bound.items():
        place = f"args[{count}]" if count < len(args) else f"kwargs[{name!r}]"
        if kinds.get(name) in _OF_MANY:  # its parts stand side by side in the call
            place = "args" if kinds[name] is inspect.Parameter.VAR_POSITIONAL else "kwargs"
            value = _Many(value, count)
            count = len(args)
        rows.append((name, value, place))
        count += 1
    return [
        wanted
        for (_, value, place), shape in _paired(rows, shapes, "dynamic_shapes")
        for wanted in _wanted(value, shape, place)
    ]


class _Many(NamedTuple):
    """What ``*args`` or ``**kwargs`` holds; ``first``: the position of the first of them."""

    held: Any
    first: int


_OF_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _paired(rows: Sequence[Any], shapes: Any, path: str) -> Iterator[tuple[Any, Any]]:
    """Parts (with their names first), and what is said of them: by name, or one by one."""
    known = [row[0] for row in rows]
    if isinstance(shapes, Mapping):
        if unknown := [name for name in shapes if name not in known]:
            what = "argument" if path == "dynamic_shapes" else "part of an argument"
            raise ExportError(
                f"dynamic_shapes names no {what}",
                path=f"{path}[{unknown[0]!r}]",
                expected=f"names among {known}",
            )
        yield from ((row, shapes[row[0]]) for row in rows if row[0] in shapes)
    elif isinstance(shapes, (list, tuple)) and len(shapes) == len(rows):
        yield from zip(rows, shapes, strict=True)
    else:
        raise ExportError(
            "dynamic_shapes does not fit an argument",
            path=path,
            expected=f"{len(rows)} of them, or names among {known}",
            got=repr(shapes),
        )


def _wanted(value: Any, shape: Any, path: str) -> Iterator[Wanted]:
    if shape is None:
        return
    if isinstance(value, Tensor):
        if not isinstance(shape, (Mapping, Sequence)):
            raise ExportError(
                "dynamic_shapes does not fit an argument",
                path=path,
                expected="what its dimensions are",
                got=repr(shape),
            )
        rows = shape.items() if isinstance(shape, Mapping) else enumerate(shape)
        for dimension, dim in rows:
            if dim is not None and dim is not Dim.STATIC and type(dim) is not int:
                if not 0 <= dimension < value.dim():
                    expected = f"a dimension of a tensor with {value.dim()}"
                    raise ExportError(
                        "dynamic_shapes names no dimension",
                        path=path,
                        expected=expected,
                        got=dimension,
                    )
                yield Wanted(path, dimension, dim)
        return
    for row, wanted in _paired([*_parts(value, path)], shape, path):
        yield from _wanted(row[1], wanted, row[2])


def _parts(value: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    """One level down a tree: name, value, path."""
    if isinstance(value, _Many):
        held = value.held
        names = [*held] if isinstance(held, dict) else range(len(held))
        for name in names:
            at = name if isinstance(held, dict) else name + value.first
            yield name, held[name], f"{path}[{at!r}]"
        return
    for way, part in pytree.tree_flatten_with_path(value, is_leaf=lambda v: v is not value)[0]:
        if way:
            (key,) = way
            name = next(getattr(key, n) for n in ("key", "idx", "name") if hasattr(key, n))
            yield name, part, f"{path}{pytree.keystr(way)}"


def history_of(wanted: Sequence[Wanted], values: Mapping[str, Tensor]) -> SizeHistory:
    """A history in which these sizes have changed; of a wrapper, equal sizes of the tensors inside
    of it, too."""
    history = SizeHistory()
    for row in wanted:
        size = values[row.path].shape[row.dimension]

        def note(t: Tensor, path: Path, row: Wanted = row, size: int = size) -> None:
            here = (
                {row.dimension}
                if str(path) == row.path
                else {d for d, n in enumerate(t.shape) if n == size}
            )
            known = history.varying.get(str(path), frozenset())
            history.varying[str(path)] = known | here

        each_tensor(values[row.path], Path(row.path), note)
    return history


def ranges(env: Any, wanted: Sequence[Wanted], fakes: Mapping[str, Tensor]) -> dict[Any, Any]:
    """Symbol -> range, for the symbols of inputs.

    Args:
        fakes: path -> the traced tensor.

    Raises:
        ExportError: a size that was asked for is a number, or the trace has assumed more of it than
            a range.
    """
    found: dict[Any, Any] = {}
    asked: dict[Any, Wanted] = {}
    for row in wanted:
        size: Any = fakes[row.path].shape[row.dimension]
        symbol = size_symbol(size)
        if symbol is None:
            if row.dim is Dim.AUTO:
                continue
            raise ExportError(
                "a dynamic size became a number in the trace",
                path=f"{row.path}.shape[{row.dimension}]",
                expected=f"a symbol ({row.dim})",
                got=str(size),
                fix="say Dim.AUTO, use an example with a size above 1, or remove what needs the "
                "number",
            )
        other = asked.setdefault(symbol, row)
        if (
            isinstance(row.dim, Dim)
            and isinstance(other.dim, Dim)
            and row.dim.__name__ != other.dim.__name__
        ):
            raise ExportError(
                "two dynamic sizes are one in the trace",
                path=f"{row.path}.shape[{row.dimension}]",
                got=f"as {other.path}.shape[{other.dimension}]",
                fix="give the example different sizes there, or one Dim to both",
            )
        least, most = getattr(row.dim, "min", None), getattr(row.dim, "max", None)
        hint = size.node.hint
        if not (least is None or least <= hint) or not (most is None or hint <= most):
            raise ExportError(
                "the example is not among the sizes that were asked for",
                path=f"{row.path}.shape[{row.dimension}]",
                expected=f"{row.dim.__name__} from {least} to {most}",
                got=hint,
            )
        known = found.get(symbol) or env.var_to_range[symbol]
        found[symbol] = torch_narrowed(known, least, most)
    for condition in shape_conditions(env, frozenset(found)):
        if (narrowed := as_range(condition)) is None:
            raise ExportError(
                "the trace takes a dynamic size to be more than in a range",
                path=", ".join(
                    f"{asked[s].path}.shape[{asked[s].dimension}]"
                    for s in condition.free_symbols
                    if s in asked
                ),
                got=str(condition),
                fix="export for the sizes that there are, one program each, or change what needs "
                "this",
            )
        symbol, least, most = narrowed
        found[symbol] = torch_narrowed(found[symbol], least, most)
    for symbol, row in asked.items():
        if isinstance(row.dim, Dim):
            _check_holds(row, found[symbol])
    return found


def _check_holds(row: Wanted, bounds: Any) -> None:
    """The trace holds for all sizes that were asked for, but for 0 and 1."""
    if bounds.upper < row.dim.max or bounds.lower > max(row.dim.min, 2):
        raise ExportError(
            "the trace holds for fewer sizes than were asked for",
            path=f"{row.path}.shape[{row.dimension}]",
            expected=f"{row.dim.__name__} from {row.dim.min} to {row.dim.max}",
            got=f"from {bounds.lower} to {bounds.upper}",
            fix="say so by min= and max= of the Dim, or ask for Dim.DYNAMIC or Dim.AUTO",
        )


def unbacked_ranges(env: Any, graph: fx.Graph) -> dict[Any, Any]:
    """Symbol -> range, for sizes that depend on values inside tensors."""
    found = (symbol for node in graph.nodes for symbol in node.meta.get("unbacked_bindings") or ())
    return {symbol: env.var_to_range[symbol] for symbol in found if symbol in env.var_to_range}
