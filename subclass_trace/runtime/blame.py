"""Whose operation failed: an error of a kernel gets the user's line and the paths of the operands.

A fake kernel may accept what the real one refuses (a layout, a size, a device), and a collective may fail because of
another process: then the capture has succeeded and a call fails, inside generated code that nobody wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import CodeType, TracebackType
from typing import Any, NamedTuple

import torch
import torch.fx as fx

_MARK = "in the compiled "
_FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)(?:\n    (.*))?')


class Row(NamedTuple):
    """What one line of generated code runs."""

    operation: str
    stack_trace: str | None
    operands: tuple[tuple[str, str], ...]  # (path, or name in the graph; name of the variable)


def row_of(node: fx.Node, variables: Mapping[fx.Node, str]) -> Row:
    """The row for a node."""
    operands = tuple((n.meta.get("path", n.name), variables[n]) for n in node.all_input_nodes if n in variables)
    return Row(str(node.target), node.meta.get("stack_trace"), operands)


class Blame:
    """Explains errors that pass through one generated function. A call that succeeds costs nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[int, Row] = {}
        self.code: CodeType | None = None

    def __call__(self, error: Exception) -> None:
        """Add a note to ``error``, once; it is raised on unchanged otherwise."""
        frame = _frame(error.__traceback__, self.code)
        row = None if frame is None else self.rows.get(frame.tb_lineno)
        if row is None or frame is None or any(n.startswith(_MARK) for n in getattr(error, "__notes__", ())):
            return
        names = frame.tb_frame.f_locals
        lines = [f"{_MARK}{self.name}, at {row.operation}", *_where(row.stack_trace)]
        lines += [f"  operand:  {path}: {_describe(names.get(variable))}" for path, variable in row.operands]
        lines.append("  note:     while tracing, the operation accepted fake tensors of this kind; its kernel did not")
        _add_note(error, "\n".join(lines))


def _frame(traceback: TracebackType | None, code: CodeType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code is not code:
        traceback = traceback.tb_next
    return traceback


def _where(stack_trace: str | None) -> list[str]:
    found = _FRAME.findall(stack_trace or "")
    if not found:
        return []
    file, line, name, text = found[-1]
    return [f"  where:    {file}:{line} in {name}" + (f": {text.strip()}" if text else "")]


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}, stride {list(value.stride())}, {value.device}"
    return repr(value)


def _add_note(error: Exception, note: str) -> None:
    if hasattr(error, "add_note"):
        error.add_note(note)
    elif len(error.args) == 1 and isinstance(error.args[0], str):  # Python 3.10
        error.args = (f"{error.args[0]}\n{note}",)
