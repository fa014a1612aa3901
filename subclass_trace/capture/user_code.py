"""Where the user's code is: the frames that issue an operation, and where a recorded node comes
from."""

from __future__ import annotations

import bdb
import contextlib
import re
import signal
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

from ..torch_api.lines import asking, is_user_code

#: methods that make text on behalf of others
_ON_BEHALF = frozenset({"__repr__", "__str__", "__format__", "handle_torch_function"})


def asking_frame(frame: Any) -> Any:
    """The frame of user code that asks for the text of an object in ``frame``; None where torch or
    this package asks."""
    frame = asking(frame)
    while (
        frame is not None and not is_user_code(frame.f_code) and frame.f_code.co_name in _ON_BEHALF
    ):
        frame = asking(frame.f_back)
    return frame if frame is not None and is_user_code(frame.f_code) else None


class _Code(NamedTuple):
    """Stands for a code object: of code that ran before, only the text of its frames is left."""

    co_filename: str
    co_name: str


_FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)')
#: file -> is its code the user's? Each operation asks for all frames of its stack.
_of_user: dict[str, bool] = {}
_here = threading.local()  # ``text``: frames of the code on whose behalf this thread runs something


def frames_of_text(text: str | None) -> tuple[tuple[Any, int], ...]:
    """The frames of a stack trace, innermost first, as `user_frames` has them."""
    return tuple(
        (_Code(file, name), int(line)) for file, line, name in reversed(_FRAME.findall(text or ""))
    )


@contextlib.contextmanager
def runs_for(text: str | None) -> Iterator[None]:
    """Inside, what runs does so for the code of this stack trace (of a graph node, say)."""
    before, _here.text = getattr(_here, "text", None), text
    try:
        yield
    finally:
        _here.text = before


def user_frames(frame: Any, stop: Any) -> tuple[tuple[Any, int], ...]:
    """(code object, line) of the user's frames from ``frame`` outwards, innermost first, up to
    ``stop`` exclusive."""
    if text := getattr(_here, "text", None):
        return frames_of_text(text)
    found, known = [], _of_user
    while frame is not None and frame is not stop:
        code = frame.f_code
        is_users = known.get(code.co_filename)
        if is_users is None:
            is_users = known[code.co_filename] = is_user_code(code)
        if is_users:
            found.append((code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def line_text(frames: tuple[tuple[Any, int], ...] | None) -> str | None:
    """``file:line`` of the innermost of these frames."""
    return f"{frames[0][0].co_filename}:{frames[0][1]}" if frames else None


def tracebacks(error: BaseException) -> Iterator[TracebackType]:
    """Those of an error, from the outermost frame to the one that raised."""
    tb = error.__traceback__
    while tb is not None:
        yield tb
        tb = tb.tb_next


def is_interruption(error: BaseException) -> bool:
    """Comes an error from code that runs between two instructions of the function: from the handler
    of a signal (a time limit), or a debugger that is told to quit?"""
    handlers = map(signal.getsignal, signal.valid_signals())
    functions = (h if hasattr(h, "__code__") else type(h).__call__ for h in handlers if callable(h))
    codes = {getattr(f, "__code__", None) for f in functions} - {None}
    return isinstance(error, KeyboardInterrupt) or any(
        tb.tb_frame.f_code in codes or tb.tb_frame.f_code.co_filename == bdb.__file__
        for tb in tracebacks(error)
    )


def user_line(error: BaseException) -> str | None:
    """``file:line`` of the innermost user frame through which an error came."""
    found = None
    for tb in tracebacks(error):
        code = tb.tb_frame.f_code
        if is_user_code(code):
            found = f"{code.co_filename}:{tb.tb_lineno}"
    return found
