"""Functions that stand in for others in one thread: all other threads call what was there
before."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch.compiler import is_dynamo_compiling

_ABSENT: Any = object()
#: id of a stand-in -> it, and what was there before
_stand_ins: dict[int, tuple[Any, Any]] = {}


#: functions whose code is replaced -> the code that they had
_codes: dict[int, Any] = {}


def code_before(function: Any) -> Any:
    """The code of a function, or what it was before `code_replaced`."""
    return _codes.get(id(function), function.__code__)


def before_replacement(value: Any) -> Any:
    """What stood where `replaced_here` has put this; the value itself where it is none of those."""
    found = _stand_ins.get(id(value))
    return value if found is None else found[1]


@contextlib.contextmanager
def replaced_here(
    holder: Any, name: str, stand_in: Callable[..., Any], absent: Callable[..., Any] | None = None
) -> Iterator[Callable[..., Any]]:
    """Inside, ``holder.name``, a function or a method, is ``stand_in`` where this thread calls it;
    and it is what it was for whoever has kept it from inside (a module that was imported there).

    Dynamo, which control flow operators start for their branches, sees what was there before.
    Yields what is there for all threads. ``absent``: what the others call if there was nothing.
    """
    thread, own = threading.get_ident(), vars(holder).get(name, _ABSENT)
    plain: Any = getattr(holder, name) if absent is None else getattr(holder, name, absent)
    inside = True

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not inside or is_dynamo_compiling() or threading.get_ident() != thread:
            return plain(*args, **kwargs)
        return stand_in(*args, **kwargs)

    # what a class of C++ holds is no function yet
    held = plain if own is _ABSENT or isinstance(own, (staticmethod, classmethod)) else own
    _stand_ins[id(call)] = call, before_replacement(held)
    setattr(holder, name, call)
    try:
        yield call
    finally:
        inside = False
        del _stand_ins[id(call)]
        if own is _ABSENT:
            delattr(holder, name)
        else:
            setattr(holder, name, own)


@contextlib.contextmanager
def code_replaced(function: Any, code: Any) -> Iterator[None]:
    """Inside, a function without a closure runs ``code``: whoever holds the function calls that,
    and it stays one object.

    Its source is what it was, for TorchScript. In other threads, too: it is up to the code to look.
    """
    before = function.__code__
    function.__code__ = code.replace(
        co_filename=before.co_filename, co_firstlineno=before.co_firstlineno, co_name=before.co_name
    )
    outer = _codes.setdefault(id(function), before)
    try:
        yield
    finally:
        function.__code__ = before
        if before is outer:
            del _codes[id(function)]
