"""Whose operation failed: an error of a kernel gets the user's line and the paths of the operands.

A fake kernel may accept what the real one refuses (a layout, a size, a device), and a collective may fail because of
another process: then the capture has succeeded and a call fails, inside generated code that nobody wrote.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, TracebackType
from typing import Any, NamedTuple

import torch
import torch.fx as fx

_MARK = "in the compiled "
_FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)(?:\n    (.*))?')


_CALL = re.compile(r"\b(?:torch\.ops|aten|extern_kernels)\.([\w.]+)\(")
_NOTE = "  note:     while tracing, the operation accepted fake tensors of this kind; its kernel did not"


class Row(NamedTuple):
    """What one line of generated code runs."""

    operation: str
    stack_trace: str | None
    operands: tuple[tuple[str, str], ...]  # (path, or name in the graph; name of the variable, or a description)


def row_of(node: fx.Node, reads: Iterable[fx.Node], variables: Mapping[fx.Node, str]) -> Row:
    """The row for a node that reads these."""
    operands = tuple((n.meta.get("path", n.name), variables[n]) for n in reads if n in variables)
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
        if row is None or frame is None or _has_note(error):
            return
        names = frame.tb_frame.f_locals
        lines = [f"{_MARK}{self.name}, at {row.operation}", *_where(row.stack_trace)]
        lines += [f"  operand:  {path}: {_describe(names.get(variable))}" for path, variable in row.operands]
        _add_note(error, "\n".join([*lines, _NOTE]))


def blame_of_compiled(nodes: Iterable[fx.Node], name: str, paths: Mapping[str, str]) -> Callable[[Exception], None]:
    """Explains errors that pass through code that another back end made of these nodes.

    Such code calls an operation that it has no code for by its name, which stands in the line that failed. Where several
    nodes are of that operation, each is named. ``paths`` says what users call the inputs of the graph.
    """
    rows = []
    for node in nodes:
        if node.op == "call_function":
            values = [(paths.get(n.name, n.name), _describe(n.meta.get("val"))) for n in node.all_input_nodes]
            rows.append(Row(str(node.target), node.meta.get("stack_trace"), tuple(values)))

    def explain(error: Exception) -> None:
        called = next((c for line in _lines(error.__traceback__) for c in _CALL.findall(line)), None)
        found = [r for r in rows if called is not None and _is_called(r.operation, called)]
        if not found or _has_note(error):
            return
        lines = [f"{_MARK}{name}, at {found[0].operation}"]
        for row in found:
            lines += [*_where(row.stack_trace), *(f"  operand:  {path}: {value}" for path, value in row.operands)]
        _add_note(error, "\n".join([*lines, _NOTE]))

    return explain


def _lines(traceback: TracebackType | None) -> Iterator[str]:
    while traceback is not None:
        yield linecache.getline(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next


def _is_called(operation: str, called: str) -> bool:
    """``aten.mm.default`` is called as such, or as ``mm`` (a kernel without an overload)."""
    return called in (operation, operation.rpartition(".")[0], *operation.split(".")[1:2])


def _has_note(error: Exception) -> bool:
    return any(n.startswith(_MARK) for n in getattr(error, "__notes__", ()))


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
