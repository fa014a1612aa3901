"""Inputs that stand elsewhere too: in a global, in a list that the function closes over, in an attribute.

The function is given a traced tensor for each argument, and finds one in each slot of a module. While it runs, that stands
at the other places of the input as well, so that the function finds one object wherever eager finds one.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..capture.user_code import is_library
from ..runtime.held import Slotted
from ..subclass.flatten import leaves_of
from ..subclass.protocol import is_traceable
from .members import attributes_of, is_plain_object, is_thread_local
from .python_state import ClassTable, put_back, writable
from .reached import Reached
from .weak_tables import WEAK

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]
_CONTAINERS = (list, dict, deque, set)


@contextlib.contextmanager
def exchanged(reached: Reached, flat: Sequence[Any], arguments: Pairs, states: Pairs) -> Iterator[Exchanged]:
    """Inside, traced tensors stand in the places of inputs. ``flat``: the function, and the arguments of the call;
    ``arguments``: those that are tensors, with what the function is given for them; ``states``: the same for the slots of
    modules."""
    there = Exchange((*states, *arguments))
    given_ones = [value for value in flat if isinstance(value, (set, functools.partial))]
    containers = [*given_ones, *_containers(reached)] if there.pairs else []
    others = [*_attributes(reached), *_bindings(reached)] if there.pairs else []
    tried: list[Any] = []
    try:
        for place in containers:
            tried.append(place)
            there.at(place)
        items = [*there.met]
        for place in others:
            tried.append(place)
            there.at(place)
        given = {id(real) for real, _ in arguments}
        of_guards = [t for t in (*items, *there.inside) if isinstance(t, torch.Tensor)]
        yield Exchanged([t for t in there.met if id(t) in given], of_guards, there.inverse().of)
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
    containers, or of what names and attributes hold. What lies deep in there no guard looks at, so that these are the same
    in each call. ``real`` is given what stands there meanwhile, and tells what stood there."""

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
            leaves = leaves_of(traced)
            yield from zip(leaves_of(real), leaves, strict=True)


class Exchange:
    """Puts objects into the places of others. What cannot be changed, and holds one, is made anew."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self.pairs: dict[int, tuple[Any, Any]] = {id(old): (old, new) for old, new in pairs}
        self.made: list[tuple[Any, Any]] = []
        self.met: list[Any] = []  # what was exchanged, in order
        self.inside: list[Any] = []  # the same, in what was made anew
        self._seen: set[int] = set()

    def inverse(self) -> Exchange:
        """What puts them back."""
        return Exchange((new, old) for old, new in (*self.pairs.values(), *self.made))

    def at(self, place: Any) -> None:
        """Exchange what stands at a place, without what its class does when it is written to. The caller may be iterating
        over it."""
        if isinstance(place, _Binding):
            place.exchange(self)
        elif isinstance(place, functools.partial):
            self.of(place)
        elif isinstance(place, (dict, Slotted, ClassTable, *WEAK)):
            self._in_table(place)
        else:
            base: Any = next(cls for cls in (list, deque, set) if isinstance(place, cls))
            items = list(base.__iter__(place))
            made = [*map(self.of, items)]
            changed = [k for k, (was, now) in enumerate(zip(items, made, strict=True)) if now is not was]
            if changed and isinstance(place, set):
                set.clear(place)
                set.update(place, made)
                return
            for k in changed:
                base.__setitem__(place, k, made[k])

    def _in_table(self, table: Any) -> None:
        rows = _rows(table)
        if not any(self.may(v) or not isinstance(k, str) for k, v in rows):
            return
        made = [(self.of(key) if self.may(key) else key, self.of(v)) for key, v in rows]
        other_keys = any(a is not c for (a, _), (c, _) in zip(rows, made, strict=True))
        if other_keys:
            if isinstance(table, OrderedDict) and _is_iterated(table):  # it would notice
                return
            _clear(table)
        write = _writer(table)
        for (key, value), (_, was) in zip(made, rows, strict=True):
            if value is not was or other_keys:
                write(key, value)

    def may(self, value: Any) -> bool:
        """May something else stand in its place?"""
        return id(value) in self.pairs or isinstance(value, _HOLDERS)

    def of(self, value: Any) -> Any:
        """What stands in its place."""
        if id(value) in self.pairs:
            self.met.append(value)
            return self.pairs[id(value)][1]
        if not isinstance(value, _HOLDERS) or id(value) in self._seen:
            return value
        first = len(self.met)
        made = self._anew(value)
        self.inside += self.met[first:]
        if made is not value:
            self.made.append((value, made))
            self.pairs[id(value)] = (value, made)
        return made

    def _anew(self, value: Any) -> Any:
        if isinstance(value, (tuple, frozenset)):
            items = [*map(self.of, value)] if isinstance(value, frozenset) else [*map(self.of, tuple.__iter__(value))]
            return value if all(map(operator.is_, items, value)) else _like(value, items)
        if isinstance(value, types.MethodType):
            owner = self.of(value.__self__)
            return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        if isinstance(value, weakref.ref):
            there = value() if type(value) is weakref.ref else None
            return weakref.ref(self.of(there)) if id(there) in self.pairs else value
        self._seen.add(id(value))  # these are changed themselves, and may hold themselves
        if type(value) is functools.partial:
            func, args = self.of(value.func), self.of(value.args)
            if func is not value.func or args is not value.args:
                value.__setstate__((func, args, value.keywords, vars(value) or None))  # type: ignore[attr-defined]
            self.at(value.keywords)
        elif isinstance(value, types.MappingProxyType):
            behind = gc.get_referents(value)[0]
            if isinstance(behind, dict) and "__module__" not in behind:  # no class's
                self.at(behind)
        return value


#: what holds other objects, and is no place by itself
_HOLDERS = (tuple, frozenset, types.MethodType, weakref.ref, functools.partial, types.MappingProxyType)


def _like(value: Any, items: list[Any]) -> Any:
    """A tuple or frozenset of these items."""
    if isinstance(value, frozenset) or type(value) is tuple or hasattr(value, "n_sequence_fields"):
        return type(value)(items)
    made = tuple.__new__(type(value), items)
    if hasattr(value, "__dict__"):
        vars(made).update(vars(value))
    return made


def _rows(table: Any) -> list[tuple[Any, Any]]:
    if isinstance(table, dict):
        return list((OrderedDict if isinstance(table, OrderedDict) else dict).items(table))
    return list(table.items()) if isinstance(table, WEAK) else [(key, table[key]) for key in list(table)]


def _clear(table: Any) -> None:
    """At once: items that are deleted one by one leave gaps, which a loop of the caller's would take for items."""
    of_weak: Any = table
    held = of_weak.data if isinstance(table, WEAK) else table
    (OrderedDict if isinstance(held, OrderedDict) else dict).clear(held)


def _is_iterated(table: OrderedDict[Any, Any]) -> bool:
    return any(type(value).__name__ == "odict_iterator" for value in gc.get_referrers(table))


def _writer(table: Any) -> Callable[[Any, Any], None]:
    """Writes to a table; to attributes as Python does it, not as the user's ``__setattr__`` would."""
    if isinstance(table, (Slotted, ClassTable)):
        owner = table.value if isinstance(table, Slotted) else table.cls
        classes: Any = type(owner).__mro__
        ways = [vars(cls).get("__setattr__") for cls in classes]
        way: Any = next(way for way in ways if way is not None and not isinstance(way, types.FunctionType))
        return functools.partial(way, owner)
    base: Any = OrderedDict if isinstance(table, OrderedDict) else dict if isinstance(table, dict) else type(table)
    return functools.partial(base.__setitem__, table)


@dataclass(frozen=True, eq=False)
class _Binding:
    """A name that code may bind, or the defaults of a function."""

    read: Callable[[], Any]
    write: Callable[[Any], None]

    def exchange(self, there: Exchange) -> None:
        was = self.read()
        if there.may(was) and (now := there.of(was)) is not was:
            self.write(now)


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
    yield from (value for value, _ in reached.of_libraries if isinstance(value, WEAK))
    for value, _ in reached.held:
        if isinstance(value, _CONTAINERS) and id(value) not in states:
            yield value


def _attributes(reached: Reached) -> Iterator[Any]:
    """The attributes of objects and classes that it reaches."""
    for value, _ in reached.held:
        if isinstance(value, type):
            if not is_library(value):
                yield ClassTable(value)
        elif isinstance(value, _CONTAINERS):
            if type(getattr(value, "__dict__", None)) is dict:
                yield vars(value)
        elif is_plain_object(value) or is_thread_local(value):
            held = attributes_of(value)
            if isinstance(held, (Mapping, Slotted)):
                yield held
            if isinstance(held, dict) and any("__slots__" in vars(cls) for cls in type(value).__mro__[:-1]):
                yield _Slots(value)


class _Slots(Slotted):
    """The slots of an object that has a ``__dict__`` as well."""

    def __iter__(self) -> Iterator[str]:
        return (name for name in super().__iter__() if name not in vars(self.value))
