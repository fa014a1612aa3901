"""A small writer of Python source: lines, checks, fresh names, and constants that become globals of the generated code."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from ..backends.eager.graph_code import function_of
from ..torch_api.dynamo import never_compiled

_LITERALS = (bool, int, str, bytes, type(None))
#: the modules that expressions over sizes name
EXPRESSION_GLOBALS = {"math": math, "torch": torch}


class Source:
    """Collects lines of one generated module. ``miss``: what a check returns that fails."""

    def __init__(self, miss: str = "MISS") -> None:
        self.lines: list[str] = []
        self.globals: dict[str, Any] = dict(EXPRESSION_GLOBALS)
        self.depth, self.miss = 0, miss
        self._reasons: dict[int, str] = {}  # number of a line -> expression for why it misses
        self._count: dict[str, int] = {}
        self._constants: dict[int, str] = {}
        self.checked = 0  # so many lines are checks

    def line(self, text: str) -> None:
        """Add a line at the current depth."""
        self.lines.append("    " * self.depth + text)

    def check(self, head: str, why: str) -> None:
        """A line ``if ...`` or ``except ...`` after which a call misses; ``why``: an expression for the reason."""
        self._reasons[len(self.lines)] = why
        self.line(f"{head}: return {self.miss}")

    def name(self, prefix: str) -> str:
        """A name that is not used yet."""
        number = self._count.get(prefix, 0)
        self._count[prefix] = number + 1
        return f"{prefix}{number}"

    def constant(self, value: Any, prefix: str = "K") -> str:
        """An expression for a constant: a literal where that is exact, else a global."""
        if type(value) in _LITERALS:
            return repr(value)
        if type(value) is tuple and all(type(v) in _LITERALS for v in value):
            return repr(value)
        return self.held(value, prefix)

    def held(self, value: Any, prefix: str = "K") -> str:
        """A global that has this very object."""
        known = self._constants.get(id(value))
        if known is None:
            known = self._constants[id(value)] = self.name(prefix)
            self.globals[known] = value
        return known

    def bind(self, name: str, value: Any) -> str:
        """A global with this very name."""
        self.globals.setdefault(name, value)
        return name

    def text(self) -> str:
        """The source."""
        return "\n".join(self.lines) + "\n"

    def build(self, name: str, what: str) -> Callable[..., Any]:
        """Compile the source and return its function ``name``. Tracebacks show its lines."""
        made: Callable[..., Any] = function_of(self.text(), name, self.globals, what)
        return never_compiled(made)

    def with_globals(self, other: Source) -> Source:
        """The same lines, with other objects for the names that ``other`` has."""
        made = copy.copy(self)
        made.globals = self.globals | other.globals
        return made

    def why(self, name: str) -> Callable[..., str | None]:
        """The function up to here as one that returns the reason of the first check that fails; None if all hold."""
        self.checked = self.checked or len(self.lines)
        rows = [
            line if k not in self._reasons else f"{line[: -len(self.miss)]}{self._reasons[k]}"
            for k, line in enumerate(self.lines[: self.checked])
        ]
        text = "\n".join([*rows, "    return None", ""])
        made = functools.cache(lambda: never_compiled(function_of(text, name, dict(self.globals), "reasons")))
        return lambda *args: made()(*args)
