"""What attributes and names hold, as guards compare it: numbers and strings by value, containers item by item, everything
else by identity."""

from __future__ import annotations

import array
import collections
import functools
import operator
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..subclass.context import AnyNumber, snapshot


class Same:
    """An object that is compared by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


#: the items of longer containers are compared by identity, and those of still longer ones, or that lie deeper, not at all
LONG, VERY_LONG, DEEPEST = 32, 2000, 9


class SameItems:
    """Many objects that are compared by identity."""

    __slots__ = ("items",)

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = tuple(items)

    def __eq__(self, other: object) -> bool:
        if type(other) is not SameItems or len(self.items) != len(other.items):
            return False
        return all(map(operator.is_, self.items, other.items))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{len(self.items)} items"


def as_held(value: Any) -> Any:
    """What an attribute or a name holds, to be compared: numbers and strings by value, lists, tuples, dicts and sets
    item by item, everything else by identity."""
    return value if is_simple(value) else _as_held(value, 0, [VERY_LONG])


def _as_held(value: Any, depth: int, room: list[int]) -> Any:
    """``room``: for how many more items there is room, in one list that all levels share."""
    if is_simple(value):
        return value
    kind = type(value)
    if not isinstance(value, ITEMWISE):
        inside = None if depth > DEEPEST else container_behind(value)
        if inside is not None:
            return (kind, _as_held(inside, depth + 1, room))
        return (kind, snapshot(value)) if is_short_buffer(value) else Same(value)
    room[0] -= len(value)
    if depth > DEEPEST or room[0] < 0:
        return Same(value)
    if isinstance(value, (set, frozenset)):
        return (kind, SameItems(sorted(value, key=hash)))
    if not isinstance(value, dict):
        return (kind, *_held_items(enumerate(value), depth, room)) if len(value) <= LONG else (kind, SameItems(value))
    rows = collections.OrderedDict.items(value) if isinstance(value, collections.OrderedDict) else dict.items(value)
    if len(value) > LONG:
        return (kind, SameItems(v for row in rows for v in row))
    return (kind, *_held_items(rows, depth, room))


def _held_items(rows: Iterable[tuple[Any, Any]], depth: int, room: list[int]) -> Iterator[tuple[Any, Any]]:
    for key, value in rows:
        yield key if is_simple(key) else Same(key), _as_held(value, depth + 1, room)


ITEMWISE = (list, tuple, dict, set, frozenset, collections.deque)
#: containers that keep their items in another one
_BEHIND: Mapping[type, Callable[[Any], Any]] = {
    collections.UserDict: lambda value: value.data,
    collections.UserList: lambda value: value.data,
    collections.ChainMap: lambda value: value.maps,
    types.MappingProxyType: dict,
    weakref.WeakKeyDictionary: dict,
    weakref.WeakValueDictionary: dict,
    weakref.WeakSet: set,
    WeakIdKeyDictionary: lambda value: dict(value.items()),
    functools.partial: lambda value: (value.func, value.args, value.keywords),
}


def container_behind(value: Any) -> Any:
    """The container that an object keeps its items in, which takes its place in comparisons; None of other objects."""
    behind = next((_BEHIND[cls] for cls in type(value).__mro__ if cls in _BEHIND), None)
    return None if behind is None else behind(value)


_MOST_BYTES = 4096


def is_buffer(value: Any) -> bool:
    """Is it an array of numbers, which can be written in place?"""
    return type(value) in (bytearray, array.array) or (type(value).__module__ == "numpy" and hasattr(value, "nbytes"))


def is_short_buffer(value: Any) -> bool:
    """Is it one of at most `_MOST_BYTES` bytes?"""
    if type(value) is bytearray:
        return len(value) <= _MOST_BYTES
    if type(value) is array.array:
        return len(value) * value.itemsize <= _MOST_BYTES
    return is_buffer(value) and not value.dtype.hasobject and value.nbytes <= _MOST_BYTES


class Parts:
    """The very objects that a container holds. While they are there it is what it was: numbers and strings do not change.

    Attributes:
        kind: the class of the container. ``keys``: of a dict.
        values: what it holds; in the place of a container its `Parts`. Of a `container_behind` that alone.
        flat: no containers are among them.
    """

    __slots__ = ("behind", "flat", "keys", "kind", "table", "values")

    def __init__(self, kind: type, keys: tuple[Any, ...] | None, values: tuple[Any, ...], behind: bool) -> None:
        self.kind, self.keys, self.values, self.behind = kind, keys, values, behind
        self.flat = not any(type(v) is Parts for v in values)
        self.table: Any = collections.OrderedDict if issubclass(kind, collections.OrderedDict) else dict

    def hold(self, now: Any) -> bool:
        """Is ``now`` made of these objects? If not, it may still be equal."""
        if type(now) is not self.kind:
            return False
        if self.behind:
            return bool(self.values[0].hold(container_behind(now)))
        items: Any = now
        if len(items) != len(self.values):
            return False
        if self.keys is not None:
            if not all(map(operator.is_, self.table.keys(now), self.keys)):
                return False
            items = self.table.values(now)
        if self.flat:
            return all(map(operator.is_, items, self.values))
        for known, value in zip(self.values, items, strict=True):
            if not (known.hold(value) if type(known) is Parts else known is value):
                return False
        return True


def parts_of(held: Any) -> Parts | None:
    """The parts of a container that `as_held` saw; None where it holds what can change in place."""
    kind, *rows = held
    if issubclass(kind, tuple(_BEHIND)) and not issubclass(kind, ITEMWISE):
        inside = parts_of(rows[0]) if _is_container(rows[0]) else None
        return None if inside is None else Parts(kind, None, (inside,), True)
    if not issubclass(kind, ITEMWISE) or issubclass(kind, (set, frozenset)):
        return None
    if rows and type(rows[0]) is SameItems:
        items = rows[0].items
        return (
            Parts(kind, items[::2], items[1::2], False) if issubclass(kind, dict) else Parts(kind, None, items, False)
        )
    values = [parts_of(v) if _is_container(v) else v.value if type(v) is Same else v for _, v in rows]
    if any(v is None and _is_container(row[1]) for v, row in zip(values, rows, strict=True)):
        return None
    if any(type(v) is AnyNumber for v in values):
        return None
    keys = tuple(k.value if type(k) is Same else k for k, _ in rows) if issubclass(kind, dict) else None
    return Parts(kind, keys, tuple(values), False)


def _is_container(held: Any) -> bool:
    return type(held) is tuple and bool(held) and isinstance(held[0], type)


def is_fixed(values: tuple[Any, ...]) -> bool:
    """Are these values that are compared by identity alone, or by value?"""
    return all(is_simple(v) or type(as_held(v)) is Same for v in values)


#: stands for what a name is bound to that is not bound
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "nothing"})()


def is_simple(value: Any) -> bool:
    """A number, a string, None, or a tuple of them: compared by value."""
    if type(value) is tuple:
        return all(map(is_simple, value))
    return type(value) in BY_VALUE or isinstance(value, (torch.dtype, torch.device))


#: compared by value
BY_VALUE = (bool, int, float, complex, str, bytes, type(None))


#: what code may move on, or append to, without reading it
LOGS = (int, float, list, set, dict, collections.deque)
#: what is another object when something is added to it
TEXTS = (str, bytes, tuple)


def is_log(value: Any) -> bool:
    """May code move it on, or append to it, so that nothing has to be known of what it holds?"""
    return isinstance(value, LOGS) and not (type(value) is dict and any(isinstance(v, TEXTS) for v in value.values()))


class Slotted:
    """What an object answers when it is asked for attributes, read like a dict: that of a class with ``__slots__``, of a
    function."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, key: str) -> Any:
        """The attribute; KeyError where it is not set."""
        try:
            return getattr(self.value, key)
        except AttributeError:
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self.value, key, value)

    def __delitem__(self, key: str) -> None:
        delattr(self.value, key)

    def get(self, key: str, default: Any = None) -> Any:
        """The attribute, or ``default``."""
        return getattr(self.value, key, default)

    def __contains__(self, key: str) -> bool:
        return hasattr(self.value, key)

    def __iter__(self) -> Iterator[str]:
        """The attributes that are set."""
        names = (*self.slots(), *getattr(self.value, "__dict__", ()))  # the latter of a `threading.local`
        return (n for n in names if hasattr(self.value, n))

    def slots(self) -> list[str]:
        """The attributes that have a place of their own."""
        rows = (_as_names(vars(cls).get("__slots__", ())) for cls in type(self.value).__mro__)
        return [n for names in rows for n in names if n not in ("__dict__", "__weakref__")]


def _as_names(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots
