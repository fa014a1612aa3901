"""Noting which attributes of certain wrappers are read.

While somebody listens, the classes of these wrappers have a ``__getattribute__`` that tells; other objects of the classes
are read as ever, and the classes are restored afterwards.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch


class Listener(Protocol):
    """Is told of reads on one wrapper. ``listeners``: how many blocks it is in."""

    wrapper: torch.Tensor
    listeners: int

    def note(self, name: str) -> None:
        """An attribute is read."""


class Withheld:
    """Stands in the place of an attribute: ``read`` gives what a reader gets, from the code that reads."""

    __slots__ = ("read",)

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read = read


_LOCK = threading.Lock()
_rows: dict[int, tuple[Listener, ...]] = {}  # by id of the wrapper, which the row keeps alive
_classes: Counter[type] = Counter()


def noting_getattribute(self: Any, name: str) -> Any:
    """The ``__getattribute__`` of a class while somebody listens."""
    rows = _rows.get(id(self), ())
    if rows and not _unnoted.depth:
        for row in rows:
            row.note(name)
    value = object.__getattribute__(self, name)
    if type(value) is Withheld:
        return value.read(None if _unnoted.depth else sys._getframe(1).f_code)
    return value


class _Unnoted(threading.local):
    depth = 0


_unnoted = _Unnoted()


@contextlib.contextmanager
def unnoted() -> Iterator[None]:
    """What this thread reads inside is not the trace's: the tracer looks at a wrapper, and keeps nothing of its context."""
    _unnoted.depth += 1
    try:
        yield
    finally:
        _unnoted.depth -= 1


@contextlib.contextmanager
def noting(rows: Sequence[Listener]) -> Iterator[None]:
    """Reads of attributes of these wrappers are noted inside, on any thread."""
    rows = list(rows)
    with _LOCK:
        for row in rows:
            row.listeners += 1
            key, cls = id(row.wrapper), type(row.wrapper)
            if row not in _rows.get(key, ()):
                _rows[key] = (*_rows.get(key, ()), row)
            if not _classes[cls]:
                cls.__getattribute__ = noting_getattribute  # type: ignore[method-assign]
            _classes[cls] += 1
    try:
        yield
    finally:
        with _LOCK:
            for row in rows:
                row.listeners -= 1
                key, cls = id(row.wrapper), type(row.wrapper)
                if not row.listeners:
                    _rows[key] = tuple(r for r in _rows[key] if r is not row)
                    if not _rows[key]:
                        del _rows[key]
                _classes[cls] -= 1
                if not _classes[cls]:
                    del _classes[cls]
                    del cls.__getattribute__
