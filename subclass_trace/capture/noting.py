"""Noting which attributes of certain wrappers and other objects are read.

While somebody listens, the classes of these objects have a ``__getattribute__`` that tells; other objects of the classes
are read as ever, and the classes are restored afterwards.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol


class Listener(Protocol):
    """Is told of reads on one wrapper, or another object. ``listeners``: how many blocks it is in."""

    wrapper: Any
    listeners: int

    def note(self, name: str) -> None:
        """An attribute is read."""


class Withheld:
    """Stands in the place of an attribute: ``read`` gives what a reader gets, from the code that reads."""

    __slots__ = ("read",)

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read = read


_LOCK = threading.Lock()
_rows: dict[int, tuple[Listener, ...]] = {}  # by id of the object, which the row keeps alive
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
    """Reads of attributes of these objects are noted inside, on any thread."""
    rows = list(rows)
    with _LOCK:
        for row in rows:
            row.listeners += 1
            key, cls = id(row.wrapper), type(row.wrapper)
            if row not in _rows.get(key, ()):
                _rows[key] = (*_rows.get(key, ()), row)
            if not _classes[cls]:
                type.__setattr__(cls, "__getattribute__", noting_getattribute)
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
                    type.__delattr__(cls, "__getattribute__")


_stored: Counter[type] = Counter()
_originals: dict[tuple[type, str], Any] = {}


@contextlib.contextmanager
def noting_stores(rows: Sequence[Listener]) -> Iterator[None]:
    """Attributes of these objects that are set or deleted inside are noted as those that are read. Call it in `noting`."""
    classes = [type(row.wrapper) for row in rows]
    with _LOCK:
        for cls in classes:
            _stored[cls] += 1
            for name in ("__setattr__", "__delattr__") if _stored[cls] == 1 else ():
                _originals[cls, name] = vars(cls).get(name)
                type.__setattr__(cls, name, _noting(getattr(cls, name)))
    try:
        yield
    finally:
        with _LOCK:
            for cls in classes:
                _stored[cls] -= 1
                for name in ("__setattr__", "__delattr__") if not _stored[cls] else ():
                    own = _originals.pop((cls, name))
                    type.__delattr__(cls, name) if own is None else type.__setattr__(cls, name, own)
                if not _stored[cls]:
                    del _stored[cls]


def _noting(original: Callable[..., None]) -> Callable[..., None]:
    def noting(self: Any, name: str, *value: Any) -> None:
        for row in _rows.get(id(self), ()) if not _unnoted.depth else ():
            row.note(name)
        original(self, name, *value)

    return noting
