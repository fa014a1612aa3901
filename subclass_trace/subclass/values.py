"""What an atom is, and when two of them are the same: the one definition.

Guards on Python state compare what stands at a place by `same`; `context.same_context` goes on from
it into containers, arrays and dataclasses of authors.
"""

from __future__ import annotations

import enum
from typing import Any

import torch

#: classes whose values a guard may write as they print
LITERALS: frozenset[type] = frozenset({bool, int, str, bytes, type(None)})
#: classes of which the same object is the same value
SINGLETONS = (
    *(bool, type(None), type(Ellipsis), type(NotImplemented)),
    *(torch.dtype, torch.layout, torch.memory_format),
)
#: classes of values that are compared by type and value, and lead nowhere; those of DTensor's
#: placements join when they exist
ATOMS: set[type] = {
    *LITERALS,
    *SINGLETONS,
    *(float, complex, range, slice, torch.device, torch.Size),
}


def is_a(value: Any, kinds: Any) -> bool:
    """Like isinstance, which would ask the ``__getattribute__`` of the user's class for
    ``__class__``."""
    return issubclass(type(value), kinds)


def is_atom(value: Any) -> bool:
    """Is it compared by type and value?"""
    return type(value) in ATOMS or is_a(value, enum.Enum)


def same(a: Any, b: Any) -> bool:
    """Identity, then exact: the types, and an ``==`` that cannot run code of the user's. 0.0 is not
    -0.0, nan is nan.

    >>> same(1, True), same(0.0, -0.0), same(float("nan"), float("nan")), same((1, 2), (1, 2))
    (False, False, True, True)
    """
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is tuple:
        return len(a) == len(b) and all(map(same, a, b))
    if kind is frozenset:
        return bool(a == b) and {(type(x), x) for x in a} == {(type(x), x) for x in b}
    if issubclass(kind, float):
        return float.__repr__(a) == float.__repr__(b)
    if issubclass(kind, complex):
        return complex.__repr__(a) == complex.__repr__(b)
    if kind in (slice, range):  # ranges of one length are equal
        return same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    return kind in ATOMS and bool(a == b)
