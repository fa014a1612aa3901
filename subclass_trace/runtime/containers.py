"""Lists and dicts among the arguments that the region changes: in each call, the caller's own get the same change.

The traced function is handed copies. `plan.ContainerChange` says what it did to one of them.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from ..errors import UnsupportedError
from ..plan import ContainerChange

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


def each_is_one(args: Any, kwargs: Any) -> bool:
    """Is each container among the arguments another object?"""
    found = [id(c) for _, c in containers_in((args, kwargs))]
    return len(set(found)) == len(found)


def shared_containers() -> UnsupportedError:
    """What to say where two arguments are one container."""
    return UnsupportedError(
        "the region changes a container among its arguments, where one container is two arguments",
        path="args",
        expected="lists and dicts that are different objects",
        got="the same object at two places",
        fix="pass it once, or return the new value instead",
    )


def delivered(changes: Sequence[ContainerChange], args: Any, kwargs: Any, results: Any) -> Any:
    """Make the changes of a call whose ``results`` are ``(result, [new values])``; returns the result."""
    result, new = results
    found = []
    for change in changes:
        container: Any = (args, kwargs)
        for key in change.keys:
            container = container[key]
        found.append((change, container, dict(container) if isinstance(container, dict) else list(container)))
    for change, container, old in found:
        change.deliver(container, old, new)
    return result
