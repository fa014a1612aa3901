"""Sizes that were symbols, and that a trace has made numbers: which, and what took them for numbers.

An integer argument in C++ (``torch.linspace(0, 1, n)``), ``range(n)``, an item of a list, a branch ``n == 4``: torch takes
the symbol for the number that it is in this trace, and a call with another size gets a specialization of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from .. import _torch
from ..subclass.paths import Path
from ..subclass.visit import visit
from .user_code import quoted


class MadeNumbers:
    """Notes while a session traces which symbols become numbers, and where the user's code is."""

    def __init__(self) -> None:
        self._lines: dict[Any, str | None] = {}

    def watch(self, recorder: Any) -> None:
        """The symbols of a recorder's own mode (those of another tracer are its business)."""
        at_work = weakref.ref(recorder)

        def note(symbol: Any) -> None:
            recorder = at_work()
            if recorder is not None:
                self._lines[symbol] = recorder.asking_line() if recorder.tag == "is_forward" else None

        _torch.report_constants(recorder.mode.shape_env, note)

    def reasons(self, inputs: Iterable[tuple[torch.Tensor, Path]]) -> tuple[str, ...]:
        """``args[0].size(1) = 8: file:line`` and the code there, for each such size of traced inputs."""
        found: dict[Any, str] = {}

        def note(t: torch.Tensor, path: Path) -> None:
            for d, n in enumerate(t.shape):
                symbol = _torch.constant_symbol(n)
                if symbol in self._lines and symbol not in found:
                    line = self._lines[symbol]
                    where = "the backward" if line is None else f"{line} {quoted(line)}".strip()
                    found[symbol] = f"{path}.size({d}) = {int(n)}: {where}"

        for traced, path in inputs if self._lines else ():
            visit(
                traced,
                leaf=note,
                wrapper=lambda t, names, inners, context, path: note(t, path),
                opaque=lambda v, path: None,
                path=path,
            )
        return tuple(found.values())
