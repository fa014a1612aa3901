"""Attributes of objects and tensors, read past any code of their classes."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..torch_api.kinds import is_memo
from ..torch_api.owners import Owner, owner_of, package_of


def is_foreign(value: Any) -> bool:
    """Is it a class or function of Python's, of torch or numpy?"""
    return owner_of(value) is not Owner.USER or package_of(value) == "numpy"


class Memo(dict[Any, Any]):
    """What code remembers of what it has found out: its contents follow from what was read, and are
    no state of a region."""


def namespace_of(value: Any) -> dict[str, Any] | None:
    """The dict of an object, past any property; None where it has none."""
    if issubclass(type(value), type):
        return None
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return held if isinstance(held, dict) else None


def is_heap_type(cls: type) -> bool:
    """Was the class made by a ``class`` statement, or by C code that makes it look so?"""
    return bool(cls.__flags__ & 1 << 9)  # Py_TPFLAGS_HEAPTYPE


def members_of(cls: type) -> Mapping[str, Any]:
    """The slots of a class that hold values, by name: descriptors that no code of the user's is
    behind."""
    return {
        name: member
        for base in reversed(cls.__mro__)
        if is_heap_type(base) and "__slots__" in base.__dict__
        for name, member in base.__dict__.items()
        if type(member) is types.MemberDescriptorType and name not in ("__dict__", "__weakref__")
    }


def attributes_inside(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, in its ``__dict__`` and its slots.

    Where torch remembers what it has asked a tensor, that is no attribute of the tensor's.
    """
    memo = isinstance(value, torch.Tensor)
    yield from (
        row for row in (namespace_of(value) or {}).items() if not (memo and is_memo(row[0]))
    )
    for name, member in members_of(type(value)).items():
        with contextlib.suppress(AttributeError):  # an empty slot
            yield name, member.__get__(value)


def attributes_of_wrapper(traced: Any, spec: Any) -> dict[str, Any]:
    """The Python attributes of a tensor and of the wrappers inside it, by dotted names, without
    inner tensors."""
    names = getattr(spec, "names", ())
    found = {k: v for k, v in attributes_inside(traced) if k not in names}
    for name, inner in zip(names, getattr(spec, "inners", ()), strict=True):
        if hasattr(inner, "names"):
            found |= {
                f"{name}.{k}": v
                for k, v in attributes_of_wrapper(getattr(traced, name), inner).items()
            }
    return found
