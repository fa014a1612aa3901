"""Globals that a function binds in ways that its code does not show: ``globals().update(...)``, ``setattr(module, ...)``."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

from ..capture.facts import holds_traced
from ..errors import UnsupportedError
from ..runtime.held import ABSENT
from ..subclass.paths import Path
from .reached import Reached


@contextlib.contextmanager
def no_traced_globals(function: Callable[..., Any], reached: Reached) -> Iterator[None]:
    """Inside, the function may not bind traced tensors to globals: nothing would do so in later calls, and nobody but the
    trace can use them. What its code shows is judged by others; enter this one first.

    Raises:
        UnsupportedError: it has done so; they are what they were.
    """
    tables = [(table, dict(table)) for table in _tables(function, reached)]
    bound: list[str] = []
    try:
        yield
    finally:
        for table, was in tables:
            for name in [n for n, v in table.items() if was.get(n, ABSENT) is not v and holds_traced(v)]:
                bound.append(name)
                del table[name]
                table.update({k: v for k, v in was.items() if k == name})
    if bound:
        raise UnsupportedError(
            "the region binds a traced tensor to a global",
            path=Path("globals").item(bound[0]),
            expected="globals that are read, or numbers, strings and containers of them that are bound by name",
            got=f"{bound[0]!r}, bound by another way than its name",
            fix="return the tensor instead",
        )


def _tables(function: Callable[..., Any], reached: Reached) -> list[dict[str, Any]]:
    own: Any = getattr(function, "forward", function)
    own = getattr(own, "__func__", own)
    rows = [row.holder for row in reached.slots if type(row.holder) is dict and "__builtins__" in row.holder]
    if isinstance(own, types.FunctionType):
        rows.append(own.__globals__)
    return list({id(table): table for table in rows}.values())
