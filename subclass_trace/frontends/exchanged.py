"""Inputs that stand elsewhere too: in a global, in a list that the function closes over, in an attribute.

The function is given a traced tensor for each argument, and finds one in each slot of a module. While it runs, that stands
at the other places of the input as well, so that the function finds one object wherever eager finds one.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..capture.noting import unnoted
from ..capture.user_code import is_library
from ..runtime.held import Slotted
from ..subclass.flatten import leaves_of
from ..subclass.protocol import is_traceable
from .members import attributes_of, is_plain_object
from .python_state import ClassTable, put_back, writable
from .reached import Reached

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]
_CONTAINERS = (list, dict, OrderedDict, defaultdict, deque, set)


@contextlib.contextmanager
def exchanged(reached: Reached, flat: Sequence[Any], arguments: Pairs, states: Pairs) -> Iterator[Exchanged]:
    """Inside, traced tensors stand in the places of inputs. ``flat``: the arguments of the call; ``arguments``: those that
    are tensors, with what the function is given for them; ``states``: the same for the slots of modules."""
    there = Exchange((*states, *arguments))
    sets = [value for value in flat if type(value) is set]
    containers = [*sets, *_containers(reached)] if there.pairs else []
    others = [*_attributes(reached), *_bindings(reached)] if there.pairs else []
    tried: list[Any] = []
    try:
        for place in containers:
            tried.append(place)
            there.at(place)
        items = [t for t in there.met if isinstance(t, torch.Tensor)]
        for place in others:
            tried.append(place)
            there.at(place)
        given = {id(real) for real, _ in arguments}
        yield Exchanged([t for t in there.met if id(t) in given], items, there.inverse().of)
    finally:
        back = there.inverse()
        for place in tried:
            back.at(place)


def places(reached: Reached) -> Iterator[Any]:
    """Where what the function reaches may stand: containers, attributes, names."""
    yield from _containers(reached)
    yield from _attributes(reached)
    yield from _bindings(reached)


class Exchanged(NamedTuple):
    """What stands elsewhere besides: ``arguments`` those of the call that do, ``items`` the inputs that are items of
    containers. What lies deep in a container no guard looks at, so that these are the same in each call. ``real`` is given
    what stands there meanwhile, and tells what stood there."""

    arguments: list[torch.Tensor]
    items: list[torch.Tensor]
    real: Callable[[Any], Any]


def with_inner(pairs: Iterable[tuple[Any, Any]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Those that are tensors, and the dense tensors inside of wrappers."""
    tensors = [(real, traced) for real, traced in pairs if isinstance(real, torch.Tensor)]
    return [*_inside(tensors), *tensors]


def _inside(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for real, traced in pairs:
        if is_traceable(real):
            with unnoted():
                leaves = leaves_of(traced)
            yield from zip(leaves_of(real), leaves, strict=True)


class Exchange:
    """Puts objects into the places of others; tuples that hold one are made anew."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self.pairs: dict[int, tuple[Any, Any]] = {id(old): (old, new) for old, new in pairs}
        self.tuples: list[tuple[Any, Any]] = []
        self.met: list[Any] = []  # what was exchanged, in order

    def inverse(self) -> Exchange:
        """What puts them back."""
        return Exchange((new, old) for old, new in (*self.pairs.values(), *self.tuples))

    def at(self, place: Any) -> bool:
        """Exchange what stands at a place; was there anything? The caller may be iterating over it."""
        if isinstance(place, _Binding):
            return place.exchange(self)
        if isinstance(place, (dict, Slotted, ClassTable)):
            return self._in_dict(place)
        items = list(place)
        made = [*map(self.of, items)]
        if all(a is b for a, b in zip(items, made, strict=True)):
            return False
        if isinstance(place, set):
            place.clear()
            place.update(made)
            return True
        for k, (was, now) in enumerate(zip(items, made, strict=True)):
            if now is not was:
                place[k] = now
        return True

    def _in_dict(self, table: Any) -> bool:
        rows = [(key, table[key]) for key in list(table)]
        if not any(self.may(v) or not isinstance(k, str) for k, v in rows):
            return False
        made = [(self.of(key) if self.may(key) else key, self.of(v)) for key, v in rows]
        if all(a is c and b is d for (a, b), (c, d) in zip(rows, made, strict=True)):
            return False
        if any(a is not c for (a, _), (c, _) in zip(rows, made, strict=True)):
            if isinstance(table, OrderedDict):  # which would notice, in a loop of the caller's
                return False
            table.clear()
        write = _writer(table)
        for (key, value), (_, was) in zip(made, rows, strict=True):
            if value is not was or key not in table:
                write(key, value)
        return True

    def may(self, value: Any) -> bool:
        """May something else stand in its place?"""
        return id(value) in self.pairs or isinstance(value, tuple)

    def of(self, value: Any) -> Any:
        """What stands in its place."""
        if id(value) in self.pairs:
            self.met.append(value)
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


def _writer(table: Any) -> Callable[[Any, Any], None]:
    """Writes to a table; to attributes as Python does it, not as the user's ``__setattr__`` would."""
    if isinstance(table, (Slotted, ClassTable)):
        owner = table.value if isinstance(table, Slotted) else table.cls
        classes: Any = type(owner).__mro__
        ways = [vars(cls).get("__setattr__") for cls in classes]
        way: Any = next(way for way in ways if way is not None and not isinstance(way, types.FunctionType))
        return functools.partial(way, owner)
    return functools.partial(operator.setitem, table)


@dataclass(frozen=True, eq=False)
class _Binding:
    """A name that code may bind, or the defaults of a function."""

    read: Callable[[], Any]
    write: Callable[[Any], None]

    def exchange(self, there: Exchange) -> bool:
        was = self.read()
        if not there.may(was) or (now := there.of(was)) is was:
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


def _containers(reached: Reached) -> Iterator[Any]:
    """The containers that the function reaches, and what optimizers keep for each parameter."""
    states = {id(optimizer.state): optimizer.state for optimizer, _ in reached.optimizers}
    yield from states.values()
    for value, _ in reached.held:
        if type(value) in _CONTAINERS and id(value) not in states:
            yield value


def _attributes(reached: Reached) -> Iterator[Any]:
    """The attributes of objects and classes that it reaches."""
    for value, _ in reached.held:
        if isinstance(value, type):
            if not is_library(value):
                yield ClassTable(value)
        elif type(value) not in _CONTAINERS and is_plain_object(value):
            held = attributes_of(value)
            if isinstance(held, (Mapping, Slotted)):
                yield held
