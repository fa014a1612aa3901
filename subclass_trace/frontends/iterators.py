"""Iterators that a function finds: a region would take their items once, while it is traced, and use them for ever."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import UnsupportedError
from ..runtime.held import ABSENT
from ..subclass.arguments import is_iterator
from ..subclass.paths import Path
from .reach import Reached


class _Watched(Iterator[Any]):
    """An iterator that gives no items to the thread that made this one."""

    def __init__(self, iterator: Any, path: Path) -> None:
        self._iterator, self._path, self._taken, self._thread = iterator, path, False, threading.get_ident()

    def __next__(self) -> Any:
        if threading.get_ident() != self._thread:
            return next(self._iterator)
        self._taken = True
        raise _refusal(self._path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


@contextlib.contextmanager
def no_items_taken(reached: Reached) -> Iterator[None]:
    """Inside, the function runs that reaches these.

    Raises:
        UnsupportedError: it took an item from an iterator, which other calls would have to take too.
    """
    rows = []
    for value, path, put in _places(reached):
        if is_iterator(value):
            watched = _Watched(value, path)
            put(watched)
            rows.append((watched, path, put))
    try:
        yield
    finally:
        now = {id(value) for value, _, _ in _places(reached)} if rows else set()
        for watched, _, put in rows:
            if id(watched) in now:  # else the function has put something else there
                put(watched._iterator)
    for watched, path, _ in rows:
        if watched._taken:  # and the function caught the exception
            raise _refusal(path)


def _refusal(path: Path) -> UnsupportedError:
    return UnsupportedError(
        "the region takes an item from an iterator that lives longer than a call",
        path=path,
        expected="values that are arguments, and iterators that the function makes itself",
        got="next(), or a loop, on an iterator: it would happen once, while the region is traced",
        fix="take the item outside of the region and pass it as an argument",
    )


def _places(reached: Reached) -> Iterator[tuple[Any, Path, Callable[[Any], None]]]:
    for slot in reached.slots:
        holder, key = slot.holder, slot.key
        if type(holder) is types.CellType or type(holder) is dict:
            value = slot.read()
            if value is not ABSENT:
                yield value, slot.path, _setter(holder, key)
    for root, path in reached.modules:
        for name, module in root.named_modules():
            place = path.attr(name) if name else path
            for key, value in list(vars(module).items()):
                yield value, place.attr(key), _setter(vars(module), key)


def _setter(holder: Any, key: str | None) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        if key is None:
            holder.cell_contents = value
        else:
            holder[key] = value

    return put
