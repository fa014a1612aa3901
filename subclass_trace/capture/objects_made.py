"""Objects that a region makes: of each, every call of eager makes another one.

A list that the region assigns to an attribute, a set or an array that it returns, a dataclass that two results share. The
plan must not hand the object of the trace to all calls. Whether the region has made an object cannot be asked of it, but
who holds it can: what it has made is held by its results and inputs alone, and what comes from elsewhere (a global, a cache
of a library) by something else as well. So the references that are found on a walk are compared with those that Python
counts. Where they differ, the object stays as it is.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from .. import _torch
from ..subclass.arguments import attributes_inside
from ..subclass.context import is_atom, is_buffer, is_frozen
from ..subclass.kept import is_foreign

_CONTAINERS = (list, dict, set, deque, bytearray, OrderedDict, defaultdict, Counter)
_ENOUGH = 100_000  # objects to look at, and what is in them


@dataclass(eq=False)
class _Met:
    """An object on the walk: by how many others it was met, and what it holds."""

    value: Any
    count: int = 0
    holds: list[int] = field(default_factory=list)
    tensors: bool = False  # does it hold tensors or symbolic numbers?


def looked_at(values: Iterable[Any]) -> list[Any]:
    """The objects in these values that a region may make. Those that it has from elsewhere are told apart by somebody who
    holds them: keep the list until `objects_made` is done."""
    return [met.value for met in _walk(list(values)).values()]


def objects_made(held: list[Any], beside: Iterable[int] = ()) -> tuple[list[tuple[Any, bool]], list[Any]]:
    """The objects in these values that nobody else holds, what is inside of others first, and if there is one place alone
    where each of them is; and the objects that others hold as well.

    ``held`` has to be the only one that holds these values, except for tensors. ``beside``: the ids of those that somebody
    of whom it is known holds as well, each as often as that is so.
    """
    more = Counter(beside)
    held.append([])  # one of which it is known who holds it
    met = _walk(held)
    probe = id(held[-1])
    always = _references(met, probe) - 1 if met else 0
    met.pop(probe, None)
    del held[-1]
    known = {key: _references(met, key) - always - more[key] == row.count for key, row in met.items()}
    todo = [key for key, mine in known.items() if not mine]
    while todo:  # what others hold, they hold with all that is inside
        inside = [k for k in met[todo.pop()].holds if known[k]]
        known.update(dict.fromkeys(inside, False))
        todo += inside
    order = _inside_first(met, known)
    made = {k for k in order if not is_frozen(met[k].value) or not known.keys().isdisjoint(met[k].holds)}
    rows = [(met[key].value, met[key].count == 1) for key in order if key in made]
    return rows, [row.value for key, row in met.items() if not known[key]]


def _references(met: dict[int, _Met], key: int) -> int:
    return sys.getrefcount(met[key].value)


def _walk(held: list[Any]) -> dict[int, _Met]:
    """The objects, by their ids; none where there are too many."""
    met: dict[int, _Met] = {}
    seen: dict[int, Any] = {}  # the tensors and tuples
    outside = _Met(None)
    todo: list[tuple[Any, _Met, bool]] = [
        (v, outside, True) for v in reversed(held)
    ]  # what, in what, and does it count?
    while todo:
        if len(met) + len(seen) + len(todo) > _ENOUGH:
            return {}
        value, around, counts = todo.pop()
        first = id(value) not in seen
        if isinstance(value, (torch.Tensor, *_torch.SYM_TYPES)):
            around.tensors = True
        if isinstance(value, torch.Tensor) and first:
            todo += ((v, outside, True) for _, v in attributes_inside(value))
        elif isinstance(value, tuple):  # that stands in two places holds what is inside once
            todo += ((v, around, counts and first) for v in value)
        elif is_makeable(value):
            key = id(value)
            around.holds.append(key)
            if key not in met:
                row = met[key] = _Met(value)
                todo += ((v, row, True) for v in _parts(value))
            met[key].count += counts
        if isinstance(value, (torch.Tensor, tuple)):
            seen[id(value)] = value
    return met


def is_makeable(value: Any) -> bool:
    """Is it of a kind of which a call can be given a new one?"""
    cls = type(value)
    if is_atom(value) or isinstance(value, (tuple, frozenset, torch.Tensor, torch.nn.Module, type)):
        return False
    if cls in _CONTAINERS or is_buffer(value) or cls is SimpleNamespace:
        return True
    plain = all(k is object or ("__slots__" not in vars(k) and "__new__" not in vars(k)) for k in cls.__mro__)
    return plain and not is_foreign(cls) and all(k is object or k.__module__ != "builtins" for k in cls.__mro__)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from dict.values(value)
    elif isinstance(value, (list, set, deque)):
        yield from value
    elif not is_buffer(value):
        yield from (v for _, v in attributes_inside(value))


def _inside_first(met: dict[int, _Met], known: dict[int, bool]) -> list[int]:
    """The keys of those that were made and can be made anew: which hold no tensor, and are not inside of themselves."""
    done: dict[int, bool] = {}
    for key in met:
        _look(key, frozenset(), met, known, done)
    return [key for key, right in done.items() if right]


# A function inside of another that calls itself would keep what it refers to until the next garbage collection.
def _look(
    key: int, around: frozenset[int], met: dict[int, _Met], known: dict[int, bool], done: dict[int, bool]
) -> bool:
    if key in around:
        return False
    if key not in done:
        row = met[key]
        inside = [_look(k, around | {key}, met, known, done) for k in row.holds if known[k]]
        done[key] = known[key] and not row.tensors and all(inside)
    return done[key]
