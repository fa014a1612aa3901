"""Lists and dicts among the arguments that the region changes: in each call, the caller's own get the same change.

The traced function is handed copies. `plan.ContainerChange` says what it did to one of them.
"""

from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ..plan import ContainerChange, ContainerRow, ReturnedContainer, SameContainer, StatePlan

#: containers that a function may change, and pytree nodes of optree's own
CHANGEABLE = (list, dict, OrderedDict, defaultdict, deque)


def containers_in(values: Any, keys: tuple[Hashable, ...] = ()) -> Iterator[tuple[tuple[Hashable, ...], Any]]:
    """(way to it, container) for each container that may be changed, inside of others too."""
    if type(values) in CHANGEABLE:
        yield keys, values
    elif not isinstance(values, tuple):
        return
    for key, value in list(values.items()) if isinstance(values, dict) else list(enumerate(values)):
        yield from containers_in(value, (*keys, key))


#: the containers that a call returns, by what stands for them in its result
Taken: TypeAlias = Mapping[ReturnedContainer, Any]


def taken(rows: Sequence[ContainerRow], args: Any, kwargs: Any) -> Taken:
    """The containers that a call returns and does not make, before it runs."""
    returned = [row for row in rows if isinstance(row, ReturnedContainer) and not row.after]
    return {row: value_at_way((args, kwargs) if row.read is None else row.read(), row.keys) for row in returned}


def delivered(rows: Sequence[ContainerRow], args: Any, kwargs: Any, results: Any, held: Taken) -> Any:
    """Make the changes of a call whose ``results`` are ``(result, [new values])``; returns the result.

    ``held``: what was `taken` before it ran.
    """
    result, new = _with_twins(results) if any(isinstance(row, SameContainer) for row in rows) else results
    changes = [row for row in rows if isinstance(row, ContainerChange)]
    change_containers(changes, args, kwargs, new)
    if not any(isinstance(row, ReturnedContainer) for row in rows):
        return result
    known = dict(held)
    for row in rows:
        if isinstance(row, ReturnedContainer) and row.after and row.read is not None:
            known[row] = value_at_way(row.read(), row.keys)
    return map_containers(result, lambda v: known[v] if type(v) is ReturnedContainer else v)


def _with_twins(results: Any) -> Any:
    """With the very container wherever a mark stands for one; what a call has just made is changed in place."""

    def put(value: Any) -> Any:
        if type(value) is SameContainer:
            return value_at_way(results, value.keys)
        if isinstance(value, tuple) and (type(value) is tuple or hasattr(value, "_fields")):
            items = [put(v) for v in value]
            made = tuple(items) if type(value) is tuple else type(value)(*items)
            return made if any(map(operator.is_not, items, value)) else value
        if type(value) in CHANGEABLE:
            for key in list(value) if isinstance(value, dict) else range(len(value)):
                value[key] = put(value[key])
        return value

    return put(results)


def change_containers(rows: Sequence[ContainerChange], args: Any, kwargs: Any, new: Sequence[Any]) -> None:
    """Make these changes in the containers of a call; ``new``: its new values."""
    found = []
    for row in rows:
        container = value_at_way((args, kwargs), row.keys)
        found.append((row, container, dict(container) if isinstance(container, dict) else list(container)))
    for change, container, old in found:
        change.deliver(container, old, new)


def owners_found(plans: Sequence[StatePlan]) -> list[StatePlan]:
    """What a call does to Python state, with the containers that it does that to. They are looked up before it does any of
    it, for it may put others there."""
    rows = [(plan, plan.owner) for plan in plans]
    return [replace(plan, owner=container_now(o)) if type(o) is ReturnedContainer else plan for plan, o in rows]


def container_now(row: ReturnedContainer) -> Any:
    """The one at the end of a way that begins with ``read()``."""
    assert row.read is not None
    return value_at_way(row.read(), row.keys)


def value_at_way(values: Any, keys: Sequence[Hashable]) -> Any:
    """What these keys lead to, one after another."""
    for key in keys:
        values = values[key]
    return values


def map_containers(value: Any, replace: Callable[[Any], Any], depth: int = 0) -> Any:
    """The value with what ``replace`` gives for it, or else for what lies in it: containers with other items are new."""
    other = replace(value)
    if other is not value or depth > _DEEPEST:
        return other
    if isinstance(value, tuple) and (type(value) is tuple or hasattr(value, "_fields")):
        items = [map_containers(v, replace, depth + 1) for v in value]
        made = tuple(items) if type(value) is tuple else type(value)(*items)
        return made if any(map(operator.is_not, items, value)) else value
    if type(value) not in CHANGEABLE:
        return value
    keys = list(value) if isinstance(value, dict) else range(len(value))
    changed = {k: now for k in keys if (now := map_containers(value[k], replace, depth + 1)) is not value[k]}
    copy = value.copy() if changed else value
    for key, now in changed.items():
        copy[key] = now
    return copy


_DEEPEST = 20
