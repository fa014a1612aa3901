"""Which line of the forward made an autograd node.

Autograd numbers its nodes; it knows the line only in anomaly mode. `forward_lines` writes down the numbers and lines of
what runs inside it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import torch_api
from ..torch_api import tape as _door

_LIMIT = 100_000
_OWN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)


class _Table(threading.local):
    """Sequence number -> line, of this thread: autograd counts in each thread anew."""

    def __init__(self) -> None:
        self.lines: dict[int, str] = {}


_table = _Table()


class _Recorder(torch_api.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch_api.autograd_sequence_number()
        result = func(*args, **(kwargs or {}))
        after = torch_api.autograd_sequence_number()
        if after > before:
            if len(_table.lines) > _LIMIT:
                _table.lines.clear()
            line = _user_line()
            for number in range(before + 1, after + 1):
                _table.lines.setdefault(number, line)
        return result


def _user_line() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "?"


@contextmanager
def forward_lines() -> Iterator[None]:
    """Remember the lines of the forward that runs inside, for `print(tape)` and pictures of tapes captured later."""
    _table.lines.clear()
    with _Recorder():
        yield


def line_of(node: Any, sequence_number: int) -> str | None:
    """``file:line`` of the forward that made an autograd node, if anybody knows it."""
    found = _table.lines.get(sequence_number)
    if found is not None:
        return found
    trace = _door.forward_traceback(node)
    rows = [t for text in trace or () for t in text.splitlines() if t.startswith("  File ")]
    rows = [t for t in rows if not any(f'"{own}' in t for own in _OWN)] or rows
    if not rows:
        return None
    name, number = rows[-1].split('"')[1], rows[-1].split("line ")[1].split(",")[0]
    return f"{name}:{number}"
