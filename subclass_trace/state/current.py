"""The recorder of a thread, and how code of this package calls the user's in front of it."""

from __future__ import annotations

import threading
from typing import Any

from .boundary import AUTHORING, kind_of

_here = threading.local()


def current() -> Any:
    """The recorder of this thread, while code of a region runs; else None."""
    return getattr(_here, "recorder", None)


def set_current(recorder: Any) -> Any:
    """Make this the recorder of this thread; the former one."""
    before, _here.recorder = current(), recorder
    return before


def call_now(f: Any, *args: Any) -> Any:
    """A call that code which is not instrumented makes for code that is."""
    rec = current()
    return f(*args) if rec is None else rec.call(f, *args)


def call_kept(f: Any, *args: Any, **kwargs: Any) -> Any:
    """The same of a function that a table of this package keeps, which no place leads to: it is its
    own. A function of this package is what the class says of itself, which is read."""
    rec = current()
    if rec is None:
        return f(*args, **kwargs)
    code = getattr(f, "__code__", None)
    if code is None or kind_of(code) != AUTHORING:
        rec.at(rec.root(f), f)
    return rec.call(f, *args, **kwargs)


def call_method(o: Any, name: str, *args: Any) -> Any:
    """``o.name(*args)`` of an author's class."""
    rec = current()
    return getattr(o, name)(*args) if rec is None else rec.call(rec.attribute(o, name), *args)
