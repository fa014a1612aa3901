"""A small writer of Python source: lines, fresh names, and constants that become globals of the generated code."""

from __future__ import annotations

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
    """Collects lines of one generated module."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.globals: dict[str, Any] = dict(EXPRESSION_GLOBALS)
        self.depth = 0
        self._count: dict[str, int] = {}
        self._constants: dict[int, str] = {}

    def line(self, text: str) -> None:
        """Add a line at the current depth."""
        self.lines.append("    " * self.depth + text)

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
