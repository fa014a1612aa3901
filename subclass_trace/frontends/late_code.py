"""What user code that runs in backwards reaches, and what it does to that: the judge of `capture.late_code`."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.late_code import Judged
from ..runtime.guards import NameGuard
from ..runtime.held import Same, is_simple
from ..subclass.paths import Path
from .members import CONTAINERS, is_installed, is_own, is_plain_object, is_users_module
from .modules import is_input, names_of
from .python_state import held_by, put_back, writable
from .reach import Reached, Slot, reach

#: functions that do something outside of Python's objects, or anything at all
_OUTSIDE = frozenset({"print", "open", "input", "exec", "eval", "breakpoint", "next", "__import__"})
#: Python modules whose functions only compute
_COMPUTE = frozenset({"torch", "math", "cmath", "operator", "functools", "itertools", "typing", "collections", "warnings"})
_COMPUTE |= {"contextlib", "dataclasses", "enum", "numbers", "types", "abc", "copy", "builtins", "_operator", "subclass_trace"}


@dataclass(eq=False)
class _Seen:
    changed: bool = False


@dataclass(frozen=True, eq=False)
class _Judged:
    """See `capture.late_code.Judged`."""

    names: Sequence[NameGuard]
    foreign: bool
    reached: Reached

    @contextlib.contextmanager
    def watch(self) -> Iterator[_Seen]:
        """Note whether what the code reaches is changed inside, and put it back."""
        seen = _Seen()
        rows = [(held, held.content()) for held in held_by(self.reached)]
        slots = [(row, row.read()) for row in writable(self.reached)]
        try:
            yield seen
        finally:
            for row, was in slots:
                if row.read() is not was:
                    seen.changed = True
                    put_back(row, was)
            for held, was in rows:
                if not _same(held.content(), was):
                    seen.changed = True
                    held.restore(was)


def _same(now: Any, was: Any) -> bool:
    """Do two copies of a container hold the very same objects?"""
    if len(now) != len(was):
        return False
    if isinstance(was, dict):
        return all(a is b and now[a] is was[b] for a, b in zip(now, was, strict=True))
    if isinstance(was, set):
        return set(map(id, now)) == set(map(id, was))
    return all(a is b for a, b in zip(now, was, strict=True))


def judge(function: Callable[..., Any], more: Sequence[Any]) -> Judged | None:
    """What is known of a hook, or of the backward of a custom function, that is given ``more`` beside tensors."""
    inner = _innermost(function)
    code = getattr(inner, "__code__", None)
    if code is None:
        inner = getattr(type(inner), "__call__", None)  # an object that can be called
        code = getattr(inner, "__code__", None)
    if code is None or not is_own(code) or is_installed(code):
        return None
    others = [(v, Path("given").item(k)) for k, v in enumerate(more) if not _is_plain(v)]
    reached = reach(function, others)
    tensors = [NameGuard(r.holder, r.key, Same(r.value), r.path) for r in reached.slots if is_input(r.value)]
    return _Judged([*names_of(reached), *tensors], _is_foreign(reached, [v for v, _ in others]), reached)


def _innermost(function: Any) -> Any:
    while isinstance(function, (functools.partial, types.MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return function


def _is_plain(value: Any) -> bool:
    """Can nothing change in it?"""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return is_simple(value) or isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_foreign(reached: Reached, given: Sequence[Any]) -> bool:
    """May the code do what could not be put back: print, log, write files, call objects of libraries?"""
    if any(row.key in _OUTSIDE for row in reached.unbound):
        return True
    return any(map(_acts_outside, [*(row.value for row in reached.slots if _is_named(row)), *given]))


def _is_named(row: Slot) -> bool:
    """Is it something that the code names, not what is said of a function or class?"""
    return not str(row.key).startswith("__")


def _acts_outside(value: Any) -> bool:
    if is_simple(value) or isinstance(value, (torch.Tensor, torch.nn.Module, type, *CONTAINERS)) or is_plain_object(value):
        return False
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] not in _COMPUTE and not is_users_module(value)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        module = str(value.__module__).partition(".")[0]
        own = isinstance(value, types.FunctionType) and (is_own(value.__code__) or is_installed(value.__code__))
        return not own and module not in _COMPUTE
    if isinstance(value, types.MethodType):
        return _acts_outside(value.__func__) or _acts_outside(value.__self__)
    return type(value).__module__.partition(".")[0] not in _COMPUTE
