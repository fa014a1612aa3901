"""Attributes of objects and tensors, read past any code of their classes."""

from __future__ import annotations

import argparse
import enum
import functools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .. import torch_api
from .context import Kept
from .spec import Spec, WrapperSpec

#: what these packages keep in objects and globals is theirs
FOREIGN = frozenset({*sys.stdlib_module_names, "torch", "functorch", "numpy", "subclass_trace"})
#: classes of the standard library whose objects are what their attributes are
NAMESPACES = (types.SimpleNamespace, argparse.Namespace)


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
        yield from (row for row in rows if not torch_api.is_memo(row[0])) if isinstance(value, torch.Tensor) else rows
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
