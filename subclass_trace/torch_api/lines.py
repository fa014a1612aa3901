"""Whose code a line is: the user's, torch's or ours; and warnings that name the user's."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from typing import Any

import torch

TORCH_FILES = os.path.dirname(torch.__file__) + os.sep
#: torch's, those of this package and what it generates, and what Python puts between a call and a
# decorated function
_NOT_USERS = (
    *(TORCH_FILES, os.path.dirname(os.path.dirname(__file__)) + os.sep, "<subclass_trace"),
    *(contextlib.__file__, functools.__file__, "<frozen importlib"),
)


def location_text(location: str) -> str:
    """``file:line``, relative to the current directory or the installed packages if it lies
    there."""
    return location.removeprefix(os.getcwd() + os.sep).rpartition(f"{os.sep}site-packages{os.sep}")[
        2
    ]


#: between the user's code, as an instrumented clone, and what it calls
_STATE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "state") + os.sep


def asking(frame: Any) -> Any:
    """The frame itself, or the one that it works for, where it is of the code that records
    reads."""
    while frame is not None and frame.f_code.co_filename.startswith(_STATE):
        frame = frame.f_back
    return frame


def is_user_code(code: Any) -> bool:
    """Does this code object belong neither to torch nor to this package?"""
    return not code.co_filename.startswith(_NOT_USERS)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """A warning at the line of the user that has led here, however deep this is."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_user_code(frame.f_code):
        frame = frame.f_back
    names, place = frame.f_globals, (frame.f_code.co_filename, frame.f_lineno)
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, *place, names.get("__name__"), registry)
