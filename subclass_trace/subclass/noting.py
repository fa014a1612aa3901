"""Noting which attributes of certain wrappers and other objects are read.

While somebody listens, the classes of these objects have a ``__getattribute__`` that tells; other objects of the classes
are read as ever, and the classes are restored afterwards.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class Listener:
    """Is told of reads on one wrapper, or another object, and on copies of it that the tracer makes.

    Attributes:
        listeners: how many blocks it is in.
        twins: copies of it that are alive, see `follow`; None: it follows none.
        instead: gives what is read in the place of an attribute that the object holds, or `NOTHING`.
    """

    wrapper: Any
    listeners: int = 0
    twins: Twins | None = None
    instead: Callable[[str], Any] | None = None

    def note(self, name: str) -> None:
        """An attribute is read."""
        raise NotImplementedError

    def ids(self) -> tuple[int, ...]:
        """Of the objects whose reads are its."""
        return (id(self.wrapper), *(self.twins or ()))


NOTHING = object()


class Twins:
    """The copies of one object that are alive, by id."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    def add(self, value: Any) -> None:
        """One more."""
        key = id(value)
        with contextlib.suppress(TypeError):  # some objects with slots
            value = weakref.ref(value, lambda _: self._forget(key))
        self._held[key] = value

    def _forget(self, key: int) -> None:
        self._held.pop(key, None)
        _rows.pop(key, None)

    def __contains__(self, key: int) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._held))


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
        found = next((row.instead(name) for row in rows if row.instead is not None), NOTHING)
        if found is not NOTHING:
            return found
    value = object.__getattribute__(self, name)
    if type(value) is Withheld:
        return value.read(None if _unnoted.depth else sys._getframe(1).f_code)
    return value


class _Unnoted(threading.local):
    depth = 0


_unnoted = _Unnoted()


class unnoted(contextlib.ContextDecorator):
    """What this thread reads inside is not the trace's: the tracer looks at a wrapper, and keeps nothing of its context."""

    def __enter__(self) -> None:
        _unnoted.depth += 1

    def __exit__(self, *error: object) -> None:
        _unnoted.depth -= 1


def is_unnoted() -> bool:
    """Is this thread inside of `unnoted`?"""
    return _unnoted.depth > 0


def follow(value: Any, copied: Any) -> Any:
    """The tracer has copied an object: reads of the copy, which is returned, are noted as those of the object are."""
    if id(value) in _rows and copied is not value:
        with _LOCK:
            for row in _rows.get(id(value), ()):
                known = _rows.get(id(copied), ())
                if row.twins is not None and row not in known:
                    row.twins.add(copied)
                    _rows[id(copied)] = (*known, row)
    return copied


def note_all(value: Any) -> None:
    """Something keeps what an object holds now: whoever listens is told that all of it is read."""
    for row in _rows.get(id(value), ()):
        row.note("__getstate__")


@contextlib.contextmanager
def noting(rows: Sequence[Listener]) -> Iterator[None]:
    """Reads of attributes of these objects are noted inside, on any thread."""
    rows = list(rows)
    with _LOCK:
        for row in rows:
            row.listeners += 1
            cls = type(row.wrapper)
            for key in row.ids():
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
                cls = type(row.wrapper)
                for key in row.ids() if not row.listeners else ():
                    rest = tuple(r for r in _rows.pop(key, ()) if r is not row)
                    if rest:
                        _rows[key] = rest
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
