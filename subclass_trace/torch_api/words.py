"""Words of memory of CPython's objects that tell of writes: cheaper to compare than what the
interpreter tells.

The class of an object, the version of a class (which moves with each write to it or to a base of
it), the version of a dict, the code of a function stand in a word each. Where they stand is found
out at start-up, on objects of known contents; a kind of word that does not behave is not used, and
what it would tell is compared by the interpreter's own means.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

_POINTER = ctypes.sizeof(ctypes.c_void_p)
#: what is mapped over words
value_of = operator.attrgetter("value")


def class_version(cls: type) -> ctypes.c_uint | None:
    """The version of a class; None where that cannot be read, or the class has none any more."""
    offset = _offsets()["class"]
    if offset is None:
        return None
    _ask(cls)
    word = ctypes.c_uint.from_address(id(cls) + offset)
    return word if word.value else None


def dict_word(held: dict[Any, Any]) -> ctypes.c_ulonglong | None:
    """The version of a dict."""
    offset = _offsets()["dict"]
    return None if offset is None else ctypes.c_ulonglong.from_address(id(held) + offset)


def type_word(thing: Any) -> ctypes.c_size_t | None:
    """The class of an object."""
    offset = _offsets()["type"]
    return None if offset is None else ctypes.c_size_t.from_address(id(thing) + offset)


def code_word(function: Any) -> ctypes.c_size_t | None:
    """The code of a function of Python's."""
    offset = _offsets()["code"]
    return None if offset is None else ctypes.c_size_t.from_address(id(function) + offset)


def cell_word(cell: Any) -> ctypes.c_size_t | None:
    """The contents of a cell."""
    offset = _offsets()["cell"]
    return None if offset is None else ctypes.c_size_t.from_address(id(cell) + offset)


def space_word(thing: Any) -> ctypes.c_size_t | None:
    """The dict of an object."""
    offset = type(thing).__dictoffset__
    found = offset if offset > 0 else _offsets()["space"]
    if found is None:
        return None
    word = ctypes.c_size_t.from_address(id(thing) + found)
    return word if word.value == id(object.__getattribute__(thing, "__dict__")) else None


# ---- where they stand
@functools.lru_cache(None)
def _offsets() -> dict[str, int | None]:
    """Of each kind of word, from the start of the object."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return dict.fromkeys(("class", "dict", "type", "code", "cell", "space"))

    def one() -> None:
        pass

    def other() -> int:
        return 1

    def set_code(function: Any) -> None:
        function.__code__ = other.__code__

    class Probe:
        pass

    def set_space(probe: Any) -> None:
        probe.__dict__ = {"a": 1}

    cell = types.CellType(object())

    def set_cell(cell: Any) -> None:
        cell.cell_contents = one

    return {
        "class": _of_version(),
        "dict": _of_dict(),
        "type": _pointer(one, type, range(1, 2), None),
        "code": _pointer(one, lambda f: f.__code__, range(1, 16), set_code),
        "cell": _pointer(cell, lambda c: c.cell_contents, range(1, 4), set_cell),
        "space": _pointer(Probe(), lambda o: o.__dict__, range(-4, 0), set_space),
    }


def _pointer(
    thing: Any, read: Callable[[Any], Any], at: range, write: Callable[[Any], None] | None
) -> int | None:
    """Where the pointer to what is read stands: the one word that has it, before and after a
    write."""
    read(thing)
    offsets = [k * _POINTER for k in at]

    def having() -> list[int]:
        return [
            k
            for k in offsets
            if ctypes.c_size_t.from_address(id(thing) + k).value == id(read(thing))
        ]

    found = having()
    if write is not None:
        write(thing)
        found = [k for k in having() if k in found]
    return found[0] if len(found) == 1 else None


def _ask(cls: type) -> None:
    """A class has a version once it was asked for an attribute, here one that no metaclass answers
    for."""
    type.__getattribute__(cls, "__hash__")


def _of_version() -> int | None:
    class Base:
        a = 1

    class Probe(Base):
        pass

    start, size = 40 * _POINTER, 20 * _POINTER

    def words() -> list[int]:
        return [
            ctypes.c_uint.from_address(id(Probe) + k).value for k in range(start, start + size, 4)
        ]

    writes: list[Callable[[], Any]] = [
        lambda: setattr(Probe, "b", 1),
        lambda: setattr(Probe, "b", 2),
        lambda: setattr(Base, "a", 3),
        lambda: delattr(Probe, "b"),
        lambda: setattr(Base, "c", 1),
    ]
    moved = set(range(size // 4))
    for write in writes:
        _ask(Probe)
        before = words()
        _ask(Probe)
        still = words()
        write()
        gone = words()
        _ask(Probe)
        now = words()
        moved &= {
            k
            for k in moved
            if before[k] == still[k] != 0 == gone[k] and now[k] not in (0, before[k])
        }
    return start + 4 * moved.pop() if len(moved) == 1 else None


def _of_dict() -> int | None:
    """Of the version of a dict: it moves with each write, also through the object that it is the
    namespace of; by no read."""

    class Probe:
        pass

    offset = 3 * _POINTER
    probe, plain = Probe(), {"a": 1}
    probe.a = 1  # type: ignore[attr-defined]
    space = vars(probe)
    of_class: Any = next(d for d in gc.get_referents(vars(Probe)) if type(d) is dict)
    writes: list[tuple[dict[Any, Any], Callable[[], Any]]] = [
        (space, lambda: setattr(probe, "a", 2)),
        (space, lambda: setattr(probe, "b", 2)),
        (space, lambda: delattr(probe, "b")),
        (plain, lambda: plain.__setitem__("a", 2)),
        (plain, lambda: plain.pop("a")),
        (plain, lambda: plain.update(a=3)),
        (plain, plain.clear),
        (of_class, lambda: setattr(Probe, "k", 1)),
    ]
    for held, write in writes:
        word = ctypes.c_ulonglong.from_address(id(held) + offset)
        before = word.value
        held.get("a"), [*held.items()], len(held)
        if word.value != before:
            return None
        write()
        if word.value == before:
            return None
    return offset
