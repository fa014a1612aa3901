"""What the code of wrapper classes names: their own attributes, globals, settings, tables of implementations.

A trace runs ``__torch_dispatch__`` and what that calls, and keeps what it did. So the guards compare what this code names, as
far as somebody may have set it: numbers and strings, functions, and containers of such. What the code itself stores or counts
(a cache, a log of calls) is not compared; nor are tensors and other objects, nor code of libraries.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from ..capture.user_code import is_library
from ..runtime.guards import NameGuard
from ..runtime.held import ABSENT, Slotted, as_held, is_simple
from ..subclass.flatten import wrappers_inside
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from .asked import Asked
from .members import SKIPPED, is_installed, is_own
from .reach import reach
from .reached import Slot

Tensor = torch.Tensor
_MEMBERS = (types.FunctionType, classmethod, staticmethod, property)
_MOST_ITEMS = 200


def class_guards(
    function: Callable[..., Any], values: Iterable[Any], known: Collection[NameGuard]
) -> Sequence[NameGuard]:
    """Guards of what the code of the classes of wrappers names, as it is now, and of their methods that a function calls.

    Call it before the trace: what does not hold afterwards is changed by that code itself.

    Args:
        function: the region's; ``values``: inputs. ``known``: guards of what the function names itself.
    """
    classes = {cls for value in values if isinstance(value, Tensor) for cls in _classes_in(value)}
    own = sorted((cls for cls in classes if not is_library(cls)), key=lambda cls: cls.__qualname__)
    if not own:
        return ()
    found = reach(function, [(cls, Path(cls.__qualname__)) for cls in own])
    moved, seen = found.stored | found.counters, {(id(g.holder), g.key) for g in known}
    rows = [row for row in found.slots if row.name not in moved and (id(row.holder), row.key) not in seen]
    return [NameGuard(row.holder, row.key, as_held(row.value), row.path) for row in rows if _may_be_set(row)]


def _classes_in(value: Tensor) -> Iterator[type]:
    if is_traceable(value):
        yield type(value)
        for _, inner in wrappers_inside(value):
            yield type(inner)


def _may_be_set(row: Slot) -> bool:
    if isinstance(row.holder, (Slotted, Asked)) or row.value is ABSENT or row.key in SKIPPED:
        return False
    return is_simple(row.value) or _is_member(row.value) or _is_table(row.value)


def _is_member(value: Any) -> bool:
    """A function of the user's, or a member of a class that is made of one."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    own = isinstance(function, types.FunctionType) and is_own(function.__code__)
    return isinstance(value, _MEMBERS) and own and not is_installed(function.__code__)


def _is_table(value: Any) -> bool:
    """A container of numbers, strings and functions."""
    if type(value) not in (dict, list, tuple, set, frozenset) or len(value) > _MOST_ITEMS:
        return False
    return all(
        is_simple(v) or isinstance(v, types.FunctionType) for v in (value.values() if type(value) is dict else value)
    )
