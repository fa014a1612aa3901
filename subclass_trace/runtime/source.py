"""A small writer of Python source: lines, checks, fresh names, and constants that become globals of
the generated code."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..backends.eager.graph_code import function_of
from ..errors import Reason
from ..subclass.values import LITERALS
from ..torch_api.dynamo import never_compiled

#: the modules that expressions over sizes name
EXPRESSION_GLOBALS = {"math": math, "torch": torch}


class Code:
    """Collects lines of one generated module. ``miss``: what a check returns that fails."""

    def __init__(self, miss: str = "MISS") -> None:
        self.lines: list[str] = []
        self.globals: dict[str, Any] = dict(EXPRESSION_GLOBALS)
        self.depth, self.miss = 0, miss
        # number of a line -> its condition, an expression for why it misses, the guard
        self._reasons: dict[int, tuple[str, str, str]] = {}
        self._count: dict[str, int] = {}
        self._constants: dict[int, str] = {}
        self.checked = 0  # so many lines are checks
        # how symbols are read; what names stand for, and what numbers a check in C++ compares: see
        # `verify.proof`
        self.reads: dict[str, Any] = {}
        self.names: dict[str, Sequence[str]] = {}
        self.compared: dict[str, dict[str, int]] = {}

    def line(self, text: str) -> None:
        """Add a line at the current depth."""
        self.lines.append("    " * self.depth + text)

    def check(self, head: str, why: str, guard: str = "") -> None:
        """A line ``if ...`` or ``except ...`` after which a call misses; the guard stands behind it
        as a comment.

        ``why``: an expression for the reason; ``guard``: what holds else, as code for people (see
        `Reason`).
        """
        told = f"  # {' '.join(guard.split())}" if guard else ""
        guard = guard or f"not ({head.removeprefix('if ')})"
        self._reasons[len(self.lines)] = f"{'    ' * self.depth}{head}", why, guard
        self.line(f"{head}: return {self.miss}{told}")

    def name(self, prefix: str) -> str:
        """A name that is not used yet."""
        number = self._count.get(prefix, 0)
        self._count[prefix] = number + 1
        return f"{prefix}{number}"

    def constant(self, value: Any, prefix: str = "known") -> str:
        """An expression for a constant: a literal where that is exact, else a global."""
        if type(value) in LITERALS:
            return repr(value)
        if type(value) is tuple and all(type(v) in LITERALS for v in value):
            return repr(value)
        return self.held(value, prefix)

    def held(self, value: Any, prefix: str = "known") -> str:
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

    @property
    def checks(self) -> str:
        """The function up to the last check."""
        return "\n".join([*self.lines[: self.checked], "    return None", ""])

    @property
    def guards(self) -> tuple[str, ...]:
        """What each check asks, as code."""
        return tuple(guard for _, _, guard in self._reasons.values())

    def why(self, name: str) -> Callable[..., Reason | None]:
        """The function up to here as one that returns the reason of the first check that fails;
        None if all hold."""
        self.checked = self.checked or len(self.lines)
        lines, reasons = self.lines[: self.checked], dict(self._reasons)

        @functools.cache
        def made() -> Callable[..., Reason | None]:
            for k, (head, why, guard) in reasons.items():
                lines[k] = f"{head}: return Reason({why}, {guard!r})"
            text = "\n".join([*lines, "    return None", ""])
            function = function_of(text, name, {**self.globals, "Reason": Reason}, "reasons")
            return never_compiled(function)  # type: ignore[no-any-return]

        return lambda *args: made()(*args)
