"""Which attributes of the objects in the inputs' contexts a trace reads. What it never reads, the guards leave out.

A context may hold an object: a configuration, a quantiser, a module. From before the traced wrappers are built until the
capture is done, the classes of such objects note which of their attributes are read, set or deleted. Of an object whose
reads cannot be seen, all that it holds is compared. See docs/notes/contexts.md.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..subclass.arguments import ABSENT, attribute_inside, attributes_inside, is_lent, slots_of
from ..subclass.context import has_generated_equality
from ..subclass.members import functions_in, mentions
from ..subclass.noting import NOTHING, Listener, Twins, noting, noting_getattribute, noting_stores

#: these hand out all attributes at once
_EVERYTHING = frozenset({"__dict__", "__getstate__", "__reduce__", "__reduce_ex__", "__dir__"})
#: code that asks for ``__dict__``, and what it takes out of it beside what was asked for by name
_TAKES = {
    torch.nn.Module.__getattr__.__code__: ("_parameters", "_buffers", "_modules"),
    functools.cached_property.__get__.__code__: (),
}
#: code that goes round what notes
_ROUND = frozenset({"__getattribute__", "getattr_static", "__setattr__", "__delattr__", "__get__", "__set__"})
#: members in which it does not: of a new object, or such that note before
_INSIDE = frozenset({"__init__", "__post_init__", "__new__", "__setattr__", "__delattr__", "__setstate__"})
_IMMUTABLE_TYPE, _HEAP_TYPE = 1 << 8, 1 << 9  # Py_TPFLAGS_IMMUTABLETYPE, Py_TPFLAGS_HEAPTYPE
_POINTER = struct.calcsize("P")


@dataclass(eq=False)
class _Object(Listener):
    """One object, and the copies that traced wrappers have of it.

    Attributes:
        read: names of attributes; ``everything``: nothing says which.
    """

    wrapper: Any
    twins: Twins = field(default_factory=Twins)
    read: set[str] = field(default_factory=set)
    everything: bool = False

    def note(self, name: str) -> None:
        """An attribute is read, set or deleted."""
        if name not in _EVERYTHING:
            self.read.add(name)
        else:
            taken = _TAKES.get(sys._getframe(2).f_code) if name == "__dict__" else None
            self.everything |= taken is None
            self.read.update(taken or ())


class ObjectReads:
    """The objects in the contexts of one capture."""

    def __init__(self) -> None:
        self._rows: dict[int, _Object] = {}
        self._enter: Callable[[_Object], None] | None = None

    def add(self, objects: Iterable[Any]) -> None:
        """Look at these from now on. Call it before anything is built of them."""
        for value in objects:
            cls: Any = type(value)
            if id(value) not in self._rows and _is_watchable(cls) and not is_lent(value):
                row = self._rows[id(value)] = _Object(value)
                if self._enter is not None:
                    self._enter(row)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """What is read inside, on any thread, is the trace's; also of objects that are added inside."""
        with contextlib.ExitStack() as stack:

            def enter(*rows: _Object) -> None:
                stack.enter_context(noting(rows))
                stack.enter_context(noting_stores(rows))

            enter(*self._rows.values())
            before, self._enter = self._enter, enter
            try:
                yield
            finally:
                self._enter = before

    @contextlib.contextmanager
    def anew(self) -> Iterator[ObjectReads]:
        """What is read inside, by itself: a backward is traced."""
        inside = ObjectReads()
        inside._rows = {key: _Object(row.wrapper, row.twins) for key, row in self._rows.items()}
        with inside.watching():
            yield inside

    def values(self) -> tuple[Any, ...]:
        """The objects whose reads are seen."""
        return tuple(row.wrapper for row in self._rows.values())

    def names(self, value: Any) -> list[str] | None:
        """The attributes of an object that a guard compares; None: all that it holds."""
        row = self._row(value)
        if row is None:
            return None
        if row.everything:  # of a dataclass also what its ``==`` leaves out
            return [name for name, _ in attributes_inside(value)] if has_generated_equality(value) else None
        return sorted(name for name in row.read if _may_be_inside(type(value), name))

    def add_copy(self, value: Any, twin: Any) -> None:
        """Another object stands for one of these."""
        row = self._row(value)
        if row is not None and twin is not value:
            row.twins.add(twin)

    @contextlib.contextmanager
    def read_as(self, values: Iterable[tuple[Any, Any]]) -> Iterator[None]:
        """Inside, what this thread reads of some objects is what others hold: (object, the other one)."""
        rows = [(row, now) for value, now in values if (row := self._row(value)) is not None and row.wrapper is value]
        for row, now in rows:
            row.instead = functools.partial(_held_by, now, threading.get_ident())
        try:
            yield
        finally:
            for row, _ in rows:
                row.instead = None

    def _row(self, value: Any) -> _Object | None:
        found = self._rows.get(id(value))
        return found or next((row for row in self._rows.values() if id(value) in row.twins), None)


def _held_by(value: Any, thread: int, name: str) -> Any:
    """What an object holds, for one thread."""
    found = attribute_inside(value, name) if threading.get_ident() == thread else ABSENT
    return NOTHING if found is ABSENT else found


def _may_be_inside(cls: type, name: str) -> bool:
    """Does reading an attribute look at what the object itself holds? A property of its class comes first."""
    found = next((vars(k)[name] for k in cls.__mro__ if name in vars(k)), None)
    return name in slots_of(cls) or not hasattr(type(found), "__set__")


@functools.cache
def _is_watchable(cls: type) -> bool:
    """Is it a class written in Python, whose objects are what their attributes are, each read by ``__getattribute__``?"""
    own = object.__basicsize__ + _POINTER * (2 + len(slots_of(cls)))  # a table of attributes, weak references, slots
    if cls.__basicsize__ > own or cls.__itemsize__:
        return False
    for k in cls.__mro__[:-1]:
        state = vars(k)
        if not k.__flags__ & _HEAP_TYPE or k.__flags__ & _IMMUTABLE_TYPE:
            return False
        if state.get("__getattribute__", noting_getattribute) is not noting_getattribute:
            return False
        if any(_remembers(v) or (n not in _INSIDE and mentions(v, _ROUND)) for n, v in state.items()):
            return False
    return True


def _remembers(member: Any) -> bool:
    """Is it a method with ``functools.lru_cache``? It reads nothing the second time."""
    return any(hasattr(type(f), "cache_info") for f in functions_in(member))
