"""Whose operation failed: an error of a kernel gets the user's line and the paths of the operands.

A fake kernel may accept what the real one refuses (a layout, a size, a device), and a collective may fail because of
another process: then the capture has succeeded and a call fails, inside generated code that nobody wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

import torch
import torch.fx as fx

_MARK = "in the compiled "
_FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)(?:\n    (.*))?')
_NOTE = "  note:     while tracing, the operation accepted fake tensors of this kind; its kernel did not"


class Blame:
    """Explains errors that pass through one generated function. A call that succeeds costs nothing.

    Attributes:
        rows: line of the function -> the node that it runs, and what that reads.
        variables: the names of the nodes' values.
    """

    def __init__(self, name: str, variables: Mapping[fx.Node, str]) -> None:
        self.name, self.variables = name, variables
        self.rows: dict[int, tuple[fx.Node, Sequence[fx.Node]]] = {}
        self.code: CodeType | None = None

    def __call__(self, error: Exception) -> None:
        """Add a note to ``error``, once; it is raised on unchanged otherwise."""
        at = error.__traceback__
        while at is not None and at.tb_frame.f_code is not self.code:
            at = at.tb_next
        row = None if at is None else self.rows.get(at.tb_lineno)
        if row is None or at is None or any(n.startswith(_MARK) for n in getattr(error, "__notes__", ())):
            return
        node, reads = row
        lines = [f"{_MARK}{self.name}, at {node.target}"]
        if found := _FRAME.findall(node.meta.get("stack_trace") or ""):
            file, line, name, text = found[-1]
            lines.append(f"  where:    {file}:{line} in {name}" + (f": {text.strip()}" if text else ""))
        for n in reads:
            value = at.tb_frame.f_locals.get(self.variables.get(n, ""))
            lines.append(f"  operand:  {n.meta.get('path', n.name)}: {_describe(value)}")
        note = "\n".join([*lines, _NOTE])
        if hasattr(error, "add_note"):
            error.add_note(note)
        elif len(error.args) == 1 and isinstance(error.args[0], str):  # Python 3.10
            error.args = (f"{error.args[0]}\n{note}",)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}, stride {list(value.stride())}, {value.device}"
    return repr(value)
