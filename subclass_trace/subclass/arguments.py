"""Comparing arguments that are no tensors.

An object that is changed in place is equal to itself, whatever its class calls equal. So a guard keeps what the object
held: its attributes, its items, and those of the objects inside of it.
"""

from __future__ import annotations

import argparse
import enum
import functools
import sys
import types
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from .. import _torch
from .context import Kept, StandIn, same_context, snapshot
from .spec import Spec, WrapperSpec

_CONTAINERS = (list, tuple, dict, set, frozenset, deque, types.MappingProxyType)
_BY_IDENTITY = (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType, enum.Enum)
_DEEPEST, _MOST_ITEMS = 8, 1000
#: what these packages keep in objects and globals is theirs
FOREIGN = frozenset({*sys.stdlib_module_names, "torch", "functorch", "numpy", "subclass_trace"})
#: classes of the standard library whose objects are what their attributes are
NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_SIMPLE = (bool, int, float, complex, str, bytes, type(None))


class Absent(enum.Enum):
    """What stands for an attribute that is not there."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "nothing"


ABSENT = Absent.ABSENT


class ObjectIdentity(Kept):
    """An object that is equal to itself alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def holds(self, now: Any) -> bool:
        """Is ``now`` that object?"""
        return now is self.value

    def __repr__(self) -> str:
        return repr(self.value)


class TakenOnce(StandIn):
    """An iterator of Python's: it gives its items once, so that no later call meets it as it was."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def holds(self, now: Any) -> bool:
        """Never."""
        return False

    def __repr__(self) -> str:
        return f"a {type(self.value).__qualname__}, which gives each item once"


def is_iterator(value: Any) -> bool:
    """Is it an iterator of Python's own? Those of classes of the user's run code that is looked at."""
    return type(value).__module__ in ("builtins", "itertools") and isinstance(value, Iterator)


class ObjectState(StandIn):
    """An object among the arguments: its class, and what it held when it was seen.

    Another object is what it was if it holds the same, and is equal by its own ``==`` where a part of its state is out of
    sight; objects inside of it that are equal to themselves alone must be the very same ones.
    """

    def __init__(self, value: Any, depth: int = 0, seen: frozenset[int] = frozenset()) -> None:
        self.value, self.cls = value, type(value)
        self.text = f"{self.cls.__qualname__} as it was"
        inside = (depth + 1, seen | {id(value)})
        self.attributes = {k: _state(v, *inside) for k, v in attributes_inside(value)}
        self.items = [_state(v, *inside) for v in _items(value)]
        self.alone = depth > 0 and not has_own_equality(self.cls)
        pure = all(k is object or vars(k).get("__module__") != "builtins" for k in self.cls.__mro__)
        self.hidden = not pure and not isinstance(value, _CONTAINERS)
        self.pinned = False

    def holds(self, now: Any) -> bool:
        """Does ``now`` hold the same?"""
        if now is not self.value:
            if type(now) is not self.cls or self.alone or self.pinned:
                return False
            if self.hidden and not same_context(self.value, now):
                return False
        elif type(now) is not self.cls:
            return False
        held = dict(attributes_inside(now))
        if held.keys() != self.attributes.keys() or not all(
            same_argument(v, held[k]) for k, v in self.attributes.items()
        ):
            return False
        items = list(_items(now))
        return len(items) == len(self.items) and all(map(same_argument, self.items, items))

    def owners(self) -> Iterator[int]:
        """The ids of the object, of the table of its attributes, and of what is inside of it."""
        yield id(self.value)
        yield id(getattr(self.value, "__dict__", None))
        for state in (*self.attributes.values(), *self.items):
            if isinstance(state, ObjectState):
                yield from state.owners()

    def __repr__(self) -> str:
        return self.text


class AttributesOf(StandIn):
    """The attributes that somebody has set on a tensor: all but those of ``own``, which its class sets.

    Of those that are no numbers, strings or None, which a region does not read, it is told that they are there.
    """

    def __init__(self, value: Any, own: Collection[str]) -> None:
        self.own = frozenset(own)
        self.attributes = self._set_on(value)

    def _set_on(self, value: Any) -> dict[str, Any]:
        rows = [(k, v) for k, v in attributes_inside(value) if k not in self.own]
        return {k: v if isinstance(v, _SIMPLE) else ObjectIdentity(None) for k, v in rows}

    def simple(self) -> dict[str, Any]:
        """The numbers and strings among them."""
        return {k: v for k, v in self.attributes.items() if not isinstance(v, ObjectIdentity)}

    def holds(self, now: Any) -> bool:
        """Has ``now`` the same ones?"""
        known, held = self.attributes, self._set_on(now)
        return known.keys() == held.keys() and all(
            isinstance(v, ObjectIdentity) if isinstance(known[k], ObjectIdentity) else same_context(known[k], v)
            for k, v in held.items()
        )

    def __repr__(self) -> str:
        return f"a tensor with attributes {sorted(self.attributes)}"


def argument_snapshot(value: Any) -> Any:
    """What a guard keeps of an argument that is no tensor."""
    return _state(value, 0, frozenset())


def same_argument(known: Any, now: Any) -> bool:
    """Is an argument as it was when `argument_snapshot` was taken?"""
    return known.holds(now) if isinstance(known, StandIn) else same_context(known, now)


def has_own_equality(cls: type) -> bool:
    """Does a class say itself which of its objects are equal?"""
    return any("__eq__" in vars(k) for k in cls.__mro__[:-1])


def attributes_inside(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, in its ``__dict__`` and its slots.

    Where torch remembers what it has asked a tensor, that is no attribute of the tensor's.
    """
    held = _table(value)
    if isinstance(held, Mapping):
        rows = held.items()
        yield from (row for row in rows if not _torch.is_memo(row[0])) if isinstance(value, torch.Tensor) else rows
    cls: Any = type(value)
    for name in slots_of(cls):
        found = _slot(value, name)
        if found is not ABSENT:
            yield name, found


def has_attributes(value: Any) -> bool:
    """Has an object attributes of its own?"""
    return _table(value) is not None or any("__slots__" in vars(k) for k in type(value).__mro__[:-1])


def _table(value: Any) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def _slot(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return ABSENT


@functools.cache
def slots_of(cls: type) -> tuple[str, ...]:
    """The names of the slots of a class and its bases."""
    found: list[str] = []
    for k in cls.__mro__[:-1]:
        if "__slots__" in vars(k):  # private ones have other names there
            found += (n for n, member in vars(k).items() if isinstance(member, types.MemberDescriptorType))
    return tuple(dict.fromkeys(found))


def attributes_of_wrapper(traced: Any, spec: Spec) -> dict[str, Any]:
    """The Python attributes of a tensor and of the wrappers inside it, by dotted names, without inner tensors."""
    names = spec.names if isinstance(spec, WrapperSpec) else ()
    found = {k: v for k, v in attributes_inside(traced) if k not in names}
    for name, inner in zip(names, getattr(spec, "inners", ()), strict=True):
        if isinstance(inner, WrapperSpec):
            found |= {f"{name}.{k}": v for k, v in attributes_of_wrapper(getattr(traced, name), inner).items()}
    return found


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, types.MappingProxyType)):
        for key, item in dict.items(value) if isinstance(value, dict) else value.items():
            yield key
            yield item
    elif isinstance(value, (set, frozenset)):
        yield from sorted(value, key=hash)
    elif isinstance(value, _CONTAINERS):
        yield from value


def _state(value: Any, depth: int, seen: frozenset[int]) -> Any:
    cls = type(value)
    if isinstance(value, _BY_IDENTITY):
        return ObjectIdentity(value) if depth else snapshot(value)
    if is_iterator(value):
        return TakenOnce(value)
    if isinstance(value, _CONTAINERS):
        deep = depth > _DEEPEST or len(value) > _MOST_ITEMS or id(value) in seen
        return ObjectIdentity(value) if deep else ObjectState(value, depth, seen)
    foreign = cls.__module__.partition(".")[0] in FOREIGN and cls not in NAMESPACES
    if not has_attributes(value) or (foreign and (depth > 0 or callable(value))):
        return snapshot(value)
    return ObjectIdentity(value) if depth > _DEEPEST or id(value) in seen else ObjectState(value, depth, seen)
