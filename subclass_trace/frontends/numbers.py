"""Python numbers that differ between calls: those among the arguments, and in what the function reaches.

A number that was another one when an earlier specialization was made becomes a symbol, as a size does: an input of the
graph, of which the guards ask for its type, and for what the trace assumed of it. ``NumberPlace`` says where it stands. In
attributes, globals and closure cells, and in lists and dicts there, the symbols stand while the function is traced.

A float becomes one where nothing branches on it, and code computes with it step by step (``1 - rate``): see
`Session.computed`. Other back ends than the eager one take floats as they are.
"""

from __future__ import annotations

import math
import types
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ..runtime.guards import ModuleGuard, NameGuard
from ..runtime.held import ABSENT, Slotted, container_behind
from ..subclass.arguments import ObjectState
from ..subclass.context import AnyNumber
from ..subclass.numbers import NumberPlace
from .calls import CallSite
from .members import CONTAINERS

#: no symbol stands for a number that arithmetic in 64 bits could not square
_LARGEST = 2**31
#: of longer containers, and those that lie deeper, the numbers are compared
_LONGEST, _DEEPEST = 32, 3
_DEEPEST_CONTAINER, _MOST_ITEMS = 10, 2000

#: places of numbers of a call, and what these are
Numbers: TypeAlias = Mapping[NumberPlace, float]
NONE: Numbers = types.MappingProxyType({})


def numbers_of(site: CallSite) -> dict[NumberPlace, float]:
    """The numbers that the guards of a call would compare, but for those that it only moves on, and those in a
    container that is found at several places, of which the guards know no more than what it holds."""
    flat = site.flat[: site.user_count]
    lent = site.containers.positions(site.tree)
    found = {NumberPlace(site.path(k), position=k): n for k, n in enumerate(flat) if _is_number(n) and k not in lent}
    hashed = {id(vars(v) if hasattr(v, "__dict__") else v) for v, _ in site.reached.held if _is_hashed_by_value(v)}
    starts = [
        NumberPlace(g.path, None, g.holder, g.key)
        for g in (*site.name_guards(), *site.class_guards)
        if id(g.holder.value if type(g.holder) is Slotted else g.holder) not in hashed
        if type(g.holder) in (dict, types.CellType) or (type(g.holder) is Slotted and g.key in g.holder.slots())
    ]
    paths = {id(m): path for m, path in site.modules()}
    for guard in site.module_view().modules:
        path, table = paths[id(guard.module)], vars(guard.module)
        starts += [NumberPlace(path.attr(name), None, table, name) for name, _ in guard.attributes]
    values = [(place, value) for place in starts if (value := _value_at(place)) is not ABSENT]
    times = Counter(n for known in site.constants().values() if isinstance(known, ObjectState) for n in known.owners())
    for _, value in values:
        times.update(_containers(value, 0))
    for place, value in values:
        if not times[id(place.holder)]:
            found.update(_inside(place, value, times))
    return found


def _is_hashed_by_value(value: Any) -> bool:
    """Would another number in it be another place in a set, or another key?"""
    own: Any = type(value).__hash__
    return own is not None and own is not object.__hash__ and not isinstance(value, type)


def _is_number(value: Any) -> bool:
    return math.isfinite(value) and value != 0 if type(value) is float else type(value) is int and abs(value) < _LARGEST


def _value_at(place: NumberPlace) -> Any:
    try:
        return place.read()
    except (ValueError, KeyError):  # an empty cell, a name that is not bound
        return ABSENT


def _containers(value: Any, depth: int) -> Iterator[int]:
    """The ids of the containers that a value leads to."""
    inside = value if isinstance(value, CONTAINERS) else container_behind(value)
    if inside is None or depth > _DEEPEST_CONTAINER:
        return
    yield id(inside)
    for item in list(inside.values() if isinstance(inside, Mapping) else inside)[:_MOST_ITEMS]:
        yield from _containers(item, depth + 1)


def _inside(place: NumberPlace, value: Any, times: Mapping[int, int]) -> Iterator[tuple[NumberPlace, float]]:
    """The number at a place, or those in the list or dict there."""
    if _is_number(value):
        yield place, value
    elif type(value) in (list, dict, deque) and len(value) <= _LONGEST and len(place.items) < _DEEPEST:
        if times[id(value)] > 1:
            return
        for k, item in list(value.items() if type(value) is dict else enumerate(value)):
            yield from _inside(replace(place, path=place.path.item(k), items=(*place.items, k)), item, times)


def choices(numbers: Numbers) -> list[Numbers]:
    """Which of the numbers to try as symbols: all, then the whole ones, then none."""
    whole = {place: n for place, n in numbers.items() if type(n) is int}
    return [n for k, n in enumerate((numbers, whole)) if n and (k == 0 or len(n) < len(numbers))] + [NONE]


# ---------------------------------------------------------------------------------------------- guards
def names_without(names: Iterable[NameGuard], places: Collection[NumberPlace]) -> tuple[NameGuard, ...]:
    """Guards that ask for the type alone of the numbers at these places."""
    return tuple(
        replace(g, value=_without(g.value, [p.items for p in places if p.holder is g.holder and p.key == g.key]))
        for g in names
    )


def modules_without(guards: Iterable[ModuleGuard], places: Collection[NumberPlace]) -> tuple[ModuleGuard, ...]:
    """The same for the attributes of modules."""

    def attributes(guard: ModuleGuard) -> tuple[tuple[str, Any], ...]:
        own = [p for p in places if p.holder is vars(guard.module)]
        return tuple((k, _without(v, [p.items for p in own if p.key == k])) for k, v in guard.attributes)

    return tuple(replace(g, attributes=attributes(g)) if places else g for g in guards)


def constants_without(constants: Mapping[int, Any], places: Collection[NumberPlace]) -> dict[int, Any]:
    """The same for arguments."""
    return {**constants, **{k: AnyNumber(type(constants[k])) for p in places if (k := p.position) is not None}}


def _without(held: Any, places: Sequence[tuple[Any, ...]]) -> Any:
    """What `as_held` saw, with the numbers at these places (keys that lead there) left out."""
    if not places:
        return held
    if () in places:
        return AnyNumber(type(held))
    kind, *rows = held
    return (kind, *((k, _without(v, [p[1:] for p in places if p[0] == k])) for k, v in rows))
