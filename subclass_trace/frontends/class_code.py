"""What the code of wrapper classes names: their own attributes, globals, settings, tables of implementations.

A trace runs ``__torch_dispatch__`` and what that calls, and keeps what it did. So the guards compare what this code names, as
far as somebody may have set it: numbers and strings, containers by their items, and by themselves functions, classes and
objects of the user's. What the code itself stores or counts (a cache, a log of calls) is not compared; nor are tensors, nor
code of libraries.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from ..capture.user_code import is_library
from ..errors import ProtocolError
from ..runtime.guards import NameGuard
from ..runtime.held import ABSENT, BY_VALUE, Same, Slotted, as_held, is_simple
from ..subclass.flatten import wrappers_inside
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from .asked import Asked
from .members import SKIPPED, is_installed, is_own
from .reach import reach
from .reached import Reached, Slot

Tensor = torch.Tensor
_CONTAINERS = (dict, list, tuple, set, frozenset)
_MOST_ITEMS = 200
#: a container that had so many other sizes is a cache
_MOST_SIZES = 3


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
    try:
        found = reach(function, [(cls, Path(cls.__qualname__)) for cls in own])
    except Exception:  # objects that raise when they are looked at: nothing but a trace needs to understand a class
        return ()
    seen = {(id(g.holder), g.key) for g in known}
    rows = [row for row in found.slots if (id(row.holder), row.key) not in seen and not _is_moved(row, found)]
    return [NameGuard(row.holder, row.key, _held(row.value), row.path) for row in rows if _may_be_set(row)]


def _classes_in(value: Tensor) -> Iterator[type]:
    if is_traceable(value):
        yield type(value)
        with contextlib.suppress(ProtocolError):  # which is told with its path when the value is taken apart
            yield from [type(inner) for _, inner in wrappers_inside(value)]


def lasting(guards: Iterable[NameGuard], earlier: Sequence[Sequence[NameGuard]]) -> Iterator[NameGuard]:
    """Those that hold after the trace. A container that had other sizes in several ``earlier`` specializations is taken for a
    cache, which other code fills as well."""
    for guard in guards:
        if guard.holds():
            now, simple = guard.value, is_simple(guard.value) or type(guard.value) is Same
            rows = [g.value for names in (() if simple else earlier) for g in names if _is_place(g, guard)]
            if sum(type(value) is tuple and len(value) != len(now) for value in rows) < _MOST_SIZES:
                yield guard


def _is_moved(row: Slot, found: Reached) -> bool:
    """Does the code itself store or count it? What it stores as an attribute is no global."""
    is_global = type(row.holder) is types.CellType or (type(row.holder) is dict and "__builtins__" in row.holder)
    return row.name in found.counters or (row.name in found.stored and not is_global)


def _is_place(a: NameGuard, b: NameGuard) -> bool:
    return a.key == b.key and a.path == b.path


def _held(value: Any) -> Any:
    """Numbers, strings and containers by what they hold, everything else by itself, and never asked."""
    return as_held(value) if type(value) in (*BY_VALUE, *_CONTAINERS) else Same(value)


def _may_be_set(row: Slot) -> bool:
    value, cls = row.value, type(row.value)
    if isinstance(row.holder, (Slotted, Asked)) or value is ABSENT or row.key in SKIPPED:
        return False
    if cls in _CONTAINERS:
        return len(value) <= _MOST_ITEMS
    if issubclass(cls, type):  # globals name classes of libraries, which nobody exchanges there
        return not is_library(value) or isinstance(row.holder, types.MappingProxyType)
    if issubclass(cls, (Tensor, torch.nn.Module, types.ModuleType)):
        return False
    if cls is types.FunctionType or cls in (classmethod, staticmethod, property):
        function = value if cls is types.FunctionType else value.fget if cls is property else value.__func__
        return (
            isinstance(function, types.FunctionType)
            and is_own(function.__code__)
            and not is_installed(function.__code__)
        )
    return cls in (*BY_VALUE, torch.dtype, torch.device, functools.partial) or not is_library(cls)
