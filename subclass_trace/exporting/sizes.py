"""``dynamic_shapes=`` of `torch.export`: which sizes are symbols, in which ranges."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
from torch.export import Dim

from ..errors import ExportError
from ..frontends.dynamic import SizeHistory, each_tensor
from ..subclass.paths import Path
from ..torch_api.symbols import as_range, shape_conditions, size_symbol
from ..torch_api.symbols import narrowed as torch_narrowed

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
    if shapes is None:
        return []
    try:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {f"args[{k}]": v for k, v in enumerate(args)} | dict(kwargs)
    if isinstance(shapes, Mapping):
        if unknown := [name for name in shapes if name not in bound]:
            raise ExportError(
                "dynamic_shapes names no argument",
                path=f"dynamic_shapes[{unknown[0]!r}]",
                expected=f"names among {[*bound]}",
            )
        pairs = [(name, bound[name], shapes[name]) for name in shapes]
    else:
        pairs = [
            (name, value, shape)
            for (name, value), shape in zip(bound.items(), shapes, strict=False)
        ]
    paths = {
        name: f"args[{k}]" if k < len(args) else f"kwargs[{name!r}]" for k, name in enumerate(bound)
    }
    return [w for name, value, shape in pairs for w in _wanted(value, shape, paths[name])]


def _wanted(value: Any, shape: Any, path: str) -> Iterator[Wanted]:
    if shape is None:
        return
    if isinstance(value, Tensor):
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
    if isinstance(value, Mapping) and isinstance(shape, Mapping):
        items: Any = [(key, value[key], shape[key]) for key in shape if key in value]
    elif isinstance(value, (list, tuple)) and isinstance(shape, Sequence):
        items = [(k, v, s) for k, (v, s) in enumerate(zip(value, shape, strict=False))]
    else:
        raise ExportError(
            "dynamic_shapes does not fit an argument",
            path=path,
            expected=type(value).__name__,
            got=repr(shape),
        )
    for key, inner, wanted in items:
        yield from _wanted(inner, wanted, f"{path}[{key!r}]")


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
