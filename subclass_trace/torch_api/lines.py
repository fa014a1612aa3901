"""Lines of the user's, and warnings that name them."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from typing import Any

from .owners import OUR_FILES, Owner, owner_of_file

#: what Python puts between a call and a decorated function
_BETWEEN = (contextlib.__file__, functools.__file__, "<frozen importlib")


def location_text(location: str) -> str:
    """``file:line``, relative to the current directory or the installed packages if it lies
    there."""
    return location.removeprefix(os.getcwd() + os.sep).rpartition(f"{os.sep}site-packages{os.sep}")[
        2
    ]


#: between the user's code, as an instrumented clone, and what it calls
_STATE = os.path.join(OUR_FILES, "state", "")


def asking(frame: Any) -> Any:
    """The frame itself, or the one that it works for, where it is of the code that records
    reads."""
    while frame is not None and frame.f_code.co_filename.startswith(_STATE):
        frame = frame.f_back
    return frame


def is_user_code(code: Any) -> bool:
    """Does this code object belong neither to torch nor to this package?"""
    file = code.co_filename
    ours = owner_of_file(file) in (Owner.TORCH, Owner.OURS)
    return not ours and not file.startswith(_BETWEEN)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """A warning at the line of the user that has led here, however deep this is."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_user_code(frame.f_code):
        frame = frame.f_back
    names, place = frame.f_globals, (frame.f_code.co_filename, frame.f_lineno)
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, *place, names.get("__name__"), registry)
