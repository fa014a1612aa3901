"""Names for what a plan talks of: ``args[0].weight.a`` is a leaf of an input, ``result[1].b`` one
of a result."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..plan import SavedValue
from ..torch_api.lines import location_text


def type_text(dtype: object, size: Iterable[object]) -> str:
    """``float32[2, s0]``"""
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, size))}]"


def name_of(function: Any) -> str:
    """What people call a function: its name, of a module its class."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def place_of(function: Any) -> tuple[str, int, str]:
    """File, line and name of a function; of a module those of its ``forward``."""
    inner = function.func if isinstance(function, functools.partial) else function
    inner = inner.forward if isinstance(inner, torch.nn.Module) else inner
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    here = (code.co_filename, code.co_firstlineno) if code else ("<built-in>", 0)
    # of a graph of Dynamo's: the user's
    return *getattr(function, "traced_line", here), name_of(function)


def function_text(function: Any) -> str:
    """``step (train.py:10)``"""
    file, line, name = place_of(function)
    return f"{name} ({location_text(file)}:{line})"


def seconds_text(seconds: Mapping[str, float]) -> str:
    """``0.03 s: trace 0.02, code generation 0.01``"""
    return (
        f"{sum(seconds.values()):.3f} s: "
        f"{', '.join(f'{name} {took:.3f}' for name, took in seconds.items())}"
    )


def saved_where(row: SavedValue) -> str:
    """Where a saved value comes from: the path of an input, or the user's line that made it."""
    return row.path or location_text(row.where or "?")
