"""Arguments that a function's code never loads: a call may pass what it likes there.

Locals cost nothing while a function runs, so a plain value among the arguments is taken to be read
where the run begins. Only where no instruction of the function loads it, nobody can have read it.
"""

from __future__ import annotations

import dis
import functools
import types
from typing import Any

import torch

from ..subclass.values import is_a
from ..torch_api.hooks import are_hooks_on_all_modules
from .kinds import Function, Method
from .recorder import instance_dict
from .rows import HOOKS

#: what shows locals by other ways
_FRAMES = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "super"})


def unread_arguments(function: Any, positional: int, keywords: Any) -> frozenset[Any]:
    """The numbers and keywords of the arguments of a call that the function never loads."""
    code, first = _code_of(function)
    if code is None:
        return frozenset()
    unread = _never_loaded(code)
    names = code.co_varnames[first : code.co_argcount]
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    rest = code.co_argcount + code.co_kwonlyargcount
    extra = code.co_varnames[rest : rest + bool(code.co_flags & 4) + bool(code.co_flags & 8)]
    more, named = (extra[:1] if code.co_flags & 4 else ()), extra[-1:] if code.co_flags & 8 else ()
    found: set[Any] = set()
    for k in range(positional):
        name = names[k] if k < len(names) else next(iter(more), None)
        found |= {k} if name in unread else set()
    for key in keywords:
        name = key if key in known else next(iter(named), None)
        found |= {key} if name in unread else set()
    return frozenset(found)


def _code_of(function: Any) -> tuple[types.CodeType | None, int]:
    """The code that takes the arguments of a call, and which of its parameters is the first."""
    if is_a(function, torch.nn.Module):
        space = instance_dict(function) or {}
        hooked = any(space.get(name) for name in HOOKS)
        hooked = hooked or are_hooks_on_all_modules()
        own = type(function).__call__ is not torch.nn.Module.__call__ or "forward" in space
        forward = type(function).forward
        if hooked or own or type(forward) is not Function:
            return None, 0
        return forward.__code__, 1
    if type(function) is Method and type(function.__func__) is Function:
        return function.__func__.__code__, 1
    return (function.__code__, 0) if type(function) is Function else (None, 0)


@functools.lru_cache(maxsize=1024)
def _never_loaded(code: types.CodeType) -> frozenset[str]:
    if not _FRAMES.isdisjoint(code.co_names):
        return frozenset()
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[: count + bool(code.co_flags & 4) + bool(code.co_flags & 8)]
    used = {*code.co_cellvars}
    for instruction in dis.get_instructions(code):
        if instruction.opname not in ("STORE_FAST", "DELETE_FAST"):
            value = instruction.argval
            used |= {v for v in (value if type(value) is tuple else (value,)) if type(v) is str}
    return frozenset(names) - used
