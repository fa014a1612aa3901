"""Where the user's code is: the frames that issue an operation, and where a recorded node comes from."""

from __future__ import annotations

import functools
import linecache
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
import torch.fx as fx

from ..subclass.arguments import FOREIGN

TORCH_FILES = os.path.dirname(torch.__file__) + os.sep
_MACHINERY = tuple(TORCH_FILES + name for name in ("_", "utils", "overrides.py", "fx", "autograd"))
#: those of this package, and what it generates
_OWN_FILES = (os.path.dirname(os.path.dirname(__file__)) + os.sep, "<subclass_trace")
#: classes such as users write: their code asks for what it runs on as a user's does
_CLASSES_OF_OWN = os.path.join(_OWN_FILES[0], "zoo") + os.sep


def is_foreign(cls: type) -> bool:
    """Is it a class of torch, of the standard library, or of this package?"""
    return cls.__module__.partition(".")[0] in FOREIGN


def is_user_code(code: Any) -> bool:
    """Does this code object belong neither to torch nor to this package?"""
    return not code.co_filename.startswith((TORCH_FILES, *_OWN_FILES))


#: what these do for their caller is the caller's doing: the question is who asks
_HELPERS = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_HELPING_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("numpy", "sympy", "mpmath", "optree"))
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
#: methods that ask on behalf of others as well
_ON_BEHALF = frozenset({"__repr__", "__str__", "__format__", "handle_torch_function", "number_of"})
_COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
#: what these write is read by people, while the trace is made
_SHOWING = ("logging", "pdb", "bdb", "traceback")


@functools.cache
def _helps(file: str) -> bool:
    installed = any(part in file for part in _INSTALLED)
    if installed and any(part in file for part in _HELPING_PACKAGES):
        return True
    return not installed and file.startswith(_HELPERS)


def _is_on_behalf(frame: Any) -> bool:
    if frame.f_code.co_name in _COMPREHENSIONS:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name in _ON_BEHALF


def asking_frame(frame: Any) -> Any:
    """The frame of user code on whose behalf a question is asked in ``frame``; None where torch or this package asks,
    or where the answer is for people only (a log, a debugger).

    Frames of the standard library, methods that make text of an object, and a user's ``__hash__`` ask for their callers.
    """
    while frame is not None:
        code, file = frame.f_code, frame.f_code.co_filename
        if _helps(file):
            if str(frame.f_globals.get("__name__")).partition(".")[0] in _SHOWING:
                return None
        elif not is_user_code(code) and not file.startswith(_CLASSES_OF_OWN):
            if not _is_on_behalf(frame):
                return None
        elif code.co_name != "__hash__" and not _is_on_behalf(frame):
            return frame
        frame = frame.f_back
    return None


def asking_line(error: BaseException) -> str | None:
    """``file:line`` of the user code that raised an error; None where torch or this package did."""
    rows, tb = [], error.__traceback__
    while tb is not None:
        rows.append((tb.tb_frame.f_code, tb.tb_lineno))
        tb = tb.tb_next
    for code, line in reversed(rows):
        if not _helps(code.co_filename):
            return f"{code.co_filename}:{line}" if is_user_code(code) else None
    return None


def user_frames(frame: Any, stop: Any) -> tuple[tuple[Any, int], ...]:
    """(code object, line) of the user's frames from ``frame`` outwards, innermost first, up to ``stop`` exclusive."""
    found = []
    while frame is not None and frame is not stop:
        code = frame.f_code
        if not code.co_filename.startswith((TORCH_FILES, *_OWN_FILES)):
            found.append((code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def library_line(frame: Any, stop: Any) -> str | None:
    """``file:line`` of the innermost frame of torch's modules and formulas, where no user code is between."""
    while frame is not None and frame is not stop:
        file = frame.f_code.co_filename
        if file.startswith(TORCH_FILES) and not file.startswith(_MACHINERY):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def line_text(frames: tuple[tuple[Any, int], ...] | None) -> str | None:
    """``file:line`` of the innermost of these frames."""
    return f"{frames[0][0].co_filename}:{frames[0][1]}" if frames else None


_LONGEST = 120  # characters of a line that are quoted


def quoted(line: str | None) -> str:
    """The code at ``file:line``, in backquotes; nothing where it is not known."""
    if line is None:
        return ""
    file, _, number = line.rpartition(":")
    code = linecache.getline(file, int(number)).strip()
    code = code if len(code) <= _LONGEST else f"{code[: _LONGEST - 3]}..."
    return f"`{code}`" if code else ""


def frames_text(node: fx.Node) -> str | None:
    """``file:line`` of the innermost user frame that recorded ``node`` (before its frames became text)."""
    return line_text(node.meta.get("frames"))


def tracebacks(error: BaseException) -> Iterator[TracebackType]:
    """Those of an error, from the outermost frame to the one that raised."""
    tb = error.__traceback__
    while tb is not None:
        yield tb
        tb = tb.tb_next


def user_line(error: BaseException) -> str | None:
    """``file:line`` of the innermost user frame through which an error came."""
    found = None
    for tb in tracebacks(error):
        code = tb.tb_frame.f_code
        if is_user_code(code):
            found = f"{code.co_filename}:{tb.tb_lineno}"
    return found


@functools.cache
def code_of(cls: type) -> frozenset[Any]:
    """The code of what a class of tensors defines."""
    members = (m for k in cls.__mro__ if k not in torch.Tensor.__mro__ for m in vars(k).values())
    functions = (getattr(m, "__func__", None) or getattr(m, "fget", None) or m for m in members)
    return frozenset(f.__code__ for f in functions if hasattr(f, "__code__"))
