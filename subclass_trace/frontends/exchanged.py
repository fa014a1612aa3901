"""Arguments that stand elsewhere too: in a global, in a list that the function closes over, in an attribute.

The function is given a traced tensor for each argument. While it runs, that stands at the other places of the argument as
well, so that the function finds one object wherever eager finds one.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.noting import unnoted
from ..capture.user_code import is_library
from ..runtime.held import Slotted
from ..subclass.flatten import leaves_of
from ..subclass.protocol import is_traceable
from .members import attributes_of, is_plain_object
from .optimizers import slots_of
from .python_state import ClassTable, put_back, writable
from .reached import Reached

_CONTAINERS = (list, dict, OrderedDict, defaultdict, deque, set)


@contextlib.contextmanager
def exchanged(reached: Reached, pairs: Sequence[tuple[Any, Any]]) -> Iterator[list[Any]]:
    """Inside, traced tensors stand in the places of arguments. ``pairs``: flat argument, what the function is given for it.

    Yields what holds one: containers, attributes of objects, slots.
    """
    tensors = [(real, traced) for real, traced in pairs if isinstance(real, torch.Tensor)]
    there = _Exchange((*_inside(tensors), *tensors))
    sets = [real for real, _ in pairs if type(real) is set]
    places = [*sets, *_tables(reached), *_bindings(reached)] if there.pairs else []
    touched = [place for place in places if there.at(place)]
    back = there.inverse()
    try:
        yield touched
    finally:
        for place in touched:
            back.at(place)


def _inside(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The dense tensors inside of wrappers."""
    for real, traced in pairs:
        if is_traceable(real):
            with unnoted():
                leaves = leaves_of(traced)
            yield from zip(leaves_of(real), leaves, strict=True)


class _Exchange:
    """Puts objects into the places of others; tuples that hold one are made anew."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self.pairs: dict[int, tuple[Any, Any]] = {id(old): (old, new) for old, new in pairs}
        self.tuples: list[tuple[Any, Any]] = []

    def inverse(self) -> _Exchange:
        """What puts them back."""
        return _Exchange((new, old) for old, new in (*self.pairs.values(), *self.tuples))

    def at(self, place: Any) -> bool:
        """Exchange what stands at a place; was there anything?"""
        if isinstance(place, _Binding):
            return place.exchange(self.of)
        if isinstance(place, (dict, Slotted, ClassTable)):
            return self._in_dict(place)
        items = list(place)
        made = [*map(self.of, items)]
        if all(a is b for a, b in zip(items, made, strict=True)):
            return False
        place.clear()
        (place.update if isinstance(place, set) else place.extend)(made)
        return True

    def _in_dict(self, table: Any) -> bool:
        rows = [(key, table[key]) for key in list(table)]
        if not any(id(v) in self.pairs or isinstance(v, tuple) or not isinstance(k, str) for k, v in rows):
            return False
        made = [(self.of(key) if isinstance(key, (torch.Tensor, tuple)) else key, self.of(v)) for key, v in rows]
        if all(a is c and b is d for (a, b), (c, d) in zip(rows, made, strict=True)):
            return False
        if any(a is not c for (a, _), (c, _) in zip(rows, made, strict=True)):
            table.clear()
        for (key, value), (_, was) in zip(made, rows, strict=True):
            if value is not was or key not in table:
                table[key] = value
        return True

    def of(self, value: Any) -> Any:
        """What stands in its place."""
        if id(value) in self.pairs:
            return self.pairs[id(value)][1]
        if not isinstance(value, tuple) or not (type(value) is tuple or hasattr(value, "_make")):
            return value
        items = [*map(self.of, value)]
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        made = tuple(items) if type(value) is tuple else value._make(items)  # type: ignore[attr-defined]
        self.tuples.append((value, made))
        self.pairs[id(value)] = (value, made)
        return made


@dataclass(frozen=True, eq=False)
class _Binding:
    """A name that code may bind, or the defaults of a function."""

    read: Callable[[], Any]
    write: Callable[[Any], None]

    def exchange(self, of: Callable[[Any], Any]) -> bool:
        was = self.read()
        if not isinstance(was, (torch.Tensor, tuple)) or (now := of(was)) is was:
            return False
        self.write(now)
        return True


def _bindings(reached: Reached) -> Iterator[_Binding]:
    for row in writable(reached):
        yield _Binding(row.read, functools.partial(put_back, row))
    for value, _ in reached.held:
        if isinstance(value, types.FunctionType) and value.__defaults__:
            yield _Binding(
                functools.partial(getattr, value, "__defaults__"), functools.partial(setattr, value, "__defaults__")
            )


def _tables(reached: Reached) -> Iterator[Any]:
    """The containers that the function reaches, and the attributes of objects; but not what optimizers keep, which have their
    own ways of finding it."""
    kept = {id(row.holder) for optimizer, path in reached.optimizers for row in slots_of(optimizer, path)}
    for optimizer, _ in reached.optimizers:
        groups = optimizer.param_groups
        kept |= {id(groups), *map(id, groups), *[id(group["params"]) for group in groups]}
    for value, _ in reached.held:
        if id(value) in kept:
            continue
        if type(value) in _CONTAINERS:
            yield value
        elif isinstance(value, type):
            if not is_library(value):
                yield ClassTable(value)
        elif is_plain_object(value) and isinstance(held := attributes_of(value), (Mapping, Slotted)):
            yield held
