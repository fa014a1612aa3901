"""What is iterated: by code of the user's as clones, by C code over what stands for the items in
the trace."""

from __future__ import annotations

import collections
import types
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import SideEffectError
from ..subclass.values import is_a
from .kinds import ITERATORS, VIEWS, Function
from .recorder import user_line
from .running import Running
from .values import MISSING, lookup, pairs_of

_WHOLE = (list, tuple, dict, set, frozenset, collections.deque, *VIEWS, types.MappingProxyType)


def iterate(rec: Running, o: Any) -> Any:
    """What C code may iterate over in place of ``o``: whatever yields is recorded, tensors are
    stand-ins."""
    kind = type(o)
    if kind in (range, str, bytes) or kind is torch.Size:
        return o
    if is_a(o, torch.Tensor):
        return rec.give(o)
    if is_a(o, ITERATORS):
        return _advanced(rec, o, kind)
    method = lookup(kind, "__iter__")
    if is_a(o, _WHOLE) and type(method) is not Function:
        rec.lookup(kind, "__iter__")
        rec.touch(o)
        return _given(rec, o)
    if is_a(o, type):
        method = rec.lookup(type(o), "__iter__")
        return rec.call(method, o) if type(method) is Function else o
    if type(method) is Function:
        rec.lookup(kind, "__iter__")
        return _iterator(rec, rec.call(method, o))
    getter = lookup(kind, "__getitem__")
    if method is MISSING and type(getter) is Function:
        rec.lookup(kind, "__getitem__")
        return _by_items(rec, getter, o)
    rec.deep(o, "iter")
    return o


def _advanced(rec: Running, o: Any, kind: type) -> Any:
    if rec.place_of(o) is not None:
        rec.refuse(
            SideEffectError(
                f"the region takes items from a {kind.__name__}, which cannot be put back",
                code="iterator-advanced",
                path=f"{rec.place_of(o)} at {user_line()}",
                fix="make it inside of the region, or pass what it gives as an argument",
            )
        )
    return o if kind is types.GeneratorType or not rec.stand_ins else map(rec.give, o)


def _iterator(rec: Running, made: Any) -> Any:
    step = lookup(type(made), "__next__")
    if type(step) is Function:
        rec.lookup(type(made), "__next__")
        return _stepped(rec, step, made)
    return made if is_a(made, ITERATORS) and rec.place_of(made) is None else iterate(rec, made)


def _stepped(rec: Running, step: Any, made: Any) -> Iterator[Any]:
    while True:
        try:
            value = rec.call(step, made)
        except StopIteration:
            return
        yield value


def _by_items(rec: Running, getter: Any, o: Any) -> Iterator[Any]:
    k = 0
    while True:
        try:
            value = rec.call(getter, o, k)
        except IndexError:
            return
        yield value
        k += 1


def _given(rec: Running, o: Any) -> Any:
    """The items, as they stand in the trace; the live container where that is the same."""
    if not rec.stand_ins and not rec.symbols:
        return o
    if is_a(o, VIEWS):
        return _given_view(rec, o)
    if is_a(o, (list, tuple, collections.deque)):
        if not any(map(_may_differ, o)):
            return o
        return (rec.given_item(o, k, value) for k, value in enumerate(o))
    if is_a(o, (dict, set, frozenset)) and any(is_a(key, torch.Tensor) for key in o):
        return map(rec.give, o)
    return o


def _may_differ(value: Any) -> bool:
    return is_a(value, (torch.Tensor, int, float))


def _given_view(rec: Running, view: Any) -> Any:
    held = view.mapping
    if type(held) is types.MappingProxyType:
        held = next(iter(__import__("gc").get_referents(held)))
    if is_a(view, VIEWS[0]):
        return map(rec.give, view)
    if is_a(view, VIEWS[1]):
        return (rec.given_item(held, key, value) for key, value in pairs_of(held))
    return ((rec.give(key), rec.given_item(held, key, value)) for key, value in pairs_of(held))


def keys_of(rec: Running, o: Any) -> dict[Any, Any]:
    """``{**o}`` of what is no dict, but has ``keys``."""
    names = iterate(rec, rec.call(rec.attribute(o, "keys")))
    return {name: rec.item_of(o, name) for name in names}
