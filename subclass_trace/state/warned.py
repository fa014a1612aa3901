"""``warnings.warn`` in a region: each call warns, as if from the line of the user's.

The filters decide at each call whether it is shown. Where they make an error of it, it is raised
while the region is traced, as in eager mode; so which ones raise is compared.
"""

from __future__ import annotations

import inspect
import types
import warnings
from typing import Any

from ..subclass.values import is_a
from . import calls
from .frames import frame_outside, instrumented_frame
from .instrument import is_instrumented
from .running import Running
from .world import refuse_world
from .writes import WARNED


def filters_that_raise() -> str:
    """Those of the filters of warnings that make errors of them."""
    return "".join(f"{row[1:]}" for row in warnings.filters if row[0] == "error")


#: what `warnings.catch_warnings` sets
_SHOWN_BY = ("filters", "showwarning", "_showwarnmsg_impl")


def _action(text: str, category: type[Warning], module: str, line: int) -> str:
    """What the first filter that fits says."""
    for action, of_text, of_category, of_module, of_line in warnings.filters:
        fits = issubclass(category, of_category) and of_line in (0, line)
        if fits and _matches(of_text, text) and _matches(of_module, module):
            return str(action)
    return "default"


def _matches(known: Any, text: str) -> bool:
    """A filter of Python's own has texts (``"__main__"``), others have patterns."""
    return known is None or (known == text if type(known) is str else bool(known.match(text)))


def _where(level: int) -> dict[str, Any]:
    """The line of which ``stacklevel`` speaks."""
    frame: Any = instrumented_frame(3)
    while level > 1:
        frame, level = frame_outside(frame.f_back, 1), level - 1
        if not _is_inside(frame):
            return {"outside": level}
    line = {"filename": frame.f_code.co_filename, "lineno": frame.f_lineno}
    return {**line, "module": frame.f_globals.get("__name__", "<string>")}


def _is_inside(frame: Any) -> bool:
    """Is it of the region, or does code of the region lie outside of it?"""
    while frame is not None and not is_instrumented(frame.f_code):
        frame = frame.f_back
    return frame is not None


def _warn(rec: Running, f: Any, a: tuple[Any, ...], k: dict[str, Any]) -> Any:
    try:
        given = _SIGNATURE.bind(*a, **k).arguments
    except TypeError:
        return f(*a, **k)  # which raises it
    message, category = given["message"], given.get("category") or UserWarning
    known = type(message) is str and is_a(category, type) and issubclass(category, Warning)
    if not known or "source" in given:
        refuse_world(rec, "warnings.warn with something else than a text, a class and a level")
        return f(*a, **k)
    where = _where(given.get("stacklevel", 1))
    action = _action(message, category, where.get("module", ""), where.get("lineno", 0))
    written = rec.written.get(id(vars(warnings)))
    now = vars(warnings)
    if written is not None and any(now[name] is not written.before[name] for name in _SHOWN_BY):
        if action == "ignore":
            return None
        refuse_world(rec, "warnings.warn where it has set what is shown")
        return f(*a, **k)
    place = rec.child(rec.root(filters_that_raise, "filters_that_raise"), "call", ())
    rec.state_at(place, filters_that_raise())
    if action == "error":
        return f(*a, **k)
    rec.printed.append((WARNED, {"category": category, **where}, (message,)))
    return None


_SIGNATURE = inspect.signature(lambda message, category=None, stacklevel=1, source=None: None)
if isinstance(warnings.warn, types.FunctionType):
    calls.FUNCTIONS[warnings.warn.__code__] = _warn
else:
    calls.C_TABLE[warnings.warn] = _warn
