"""Tables that hold their keys, or what they hold, weakly: a region may read them."""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections.abc import Iterator
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

from ..errors import UnsupportedError
from .reached import Reached

#: those that people keep tensors in; `torch.utils.weak.WeakTensorKeyDictionary` is one of them
WEAK = (WeakIdKeyDictionary, weakref.WeakValueDictionary)


@contextlib.contextmanager
def no_weak_writes(reached: Reached) -> Iterator[None]:
    """Inside, the function may not write to such tables: nothing would do so in later calls, and what it writes are traced
    tensors, or values for them.

    Raises:
        UnsupportedError: it has done so; they are what they were.
    """
    tables: list[tuple[Any, Any]] = [row for row in reached.of_libraries if isinstance(row[0], WEAK)]
    rows = [(table, path, _items(table)) for table, path in tables]
    changed = []
    try:
        yield
    finally:
        for table, path, was in rows:
            now = _items(table)
            if len(now) != len(was) or not all(map(operator.is_, now, was)):
                changed.append(path)
                table.data.clear()
                for key, value in zip(was[::2], was[1::2], strict=True):
                    table[key] = value
    if changed:
        raise UnsupportedError(
            "the region writes to a table that holds tensors weakly",
            path=changed[0],
            expected="tables of this kind that are only read, or whose items are changed in place",
            got="an item that was added, removed or replaced",
            fix="write to it outside of the region, or keep what changes in a tensor, a list or a dict there",
        )


def _items(table: Any) -> list[Any]:
    return [part for row in table.items() for part in row]
