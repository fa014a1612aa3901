"""Where a call finds objects that a region has from its arguments, or by names."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..capture.objects_made import is_makeable
from ..runtime.guards import OF_EVERY_MODULE
from ..runtime.held import ABSENT
from ..subclass.arguments import attributes_inside
from ..subclass.made import Attribute, Elsewhere
from ..subclass.protocol import is_traceable
from .reached import Reached

#: no more objects are looked at, and none deeper
_MOST, _DEEPEST = 5000, 6


def found_elsewhere(objects: Sequence[Any], arguments: Sequence[Any], reached: Reached) -> list[tuple[Any, Elsewhere]]:
    """Those of the objects to which a way leads, each with the mark of its place.

    Args:
        arguments: the flat ones of the call, in their order.
        reached: what the function finds by names.
    """
    wanted = {id(v): v for v in objects}
    found: dict[int, tuple[Any, Elsewhere]] = {}
    if not wanted:
        return []
    starts: list[tuple[Any, int | None, Callable[[], Any] | None]] = []
    starts += [(v, k, None) for k, v in enumerate(arguments) if not isinstance(v, torch.nn.Module)]
    starts += [(row.value, None, row.read) for row in reached.slots if row.value is not ABSENT]
    for root, _ in reached.modules:
        for module in root.modules():
            names = vars(module).keys() - OF_EVERY_MODULE
            starts += [(vars(module)[n], None, functools.partial(getattr, module, n)) for n in sorted(names)]
    todo: deque[tuple[Any, int | None, Callable[[], Any] | None, tuple[Any, ...]]] = deque((*row, ()) for row in starts)
    seen: set[int] = set()
    while todo and len(seen) < _MOST and len(found) < len(wanted):
        value, position, read, steps = todo.popleft()  # the shortest way to each
        if id(value) in seen:
            continue
        seen.add(id(value))
        if id(value) in wanted:
            found[id(value)] = value, Elsewhere(len(found), value, position, read, steps)
        if len(steps) < _DEEPEST:
            todo.extend((v, position, read, (*steps, step)) for step, v in _parts(value))
    return list(found.values())


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return [(k, v) for k, v in dict.items(value)] if len(value) < _MOST else ()
    if isinstance(value, (list, tuple, deque)):
        return enumerate(value) if len(value) < _MOST else ()
    plain = (is_makeable(value) and hasattr(value, "__dict__")) or is_traceable(value)
    return [(Attribute(name), v) for name, v in attributes_inside(value)] if plain else ()
