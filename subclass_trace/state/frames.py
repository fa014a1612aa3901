"""Frames of the region's code: what is below the recorder is ours."""

from __future__ import annotations

import os
import sys
from typing import Any

from ..torch_api.owners import Owner, owner_of_file
from .instrument import is_instrumented

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def instrumented_frame(depth: int = 1) -> Any:
    """The innermost frame that runs instrumented code; None where none does."""
    frame = sys._getframe(depth)
    while frame is not None and not is_instrumented(frame.f_code):
        frame = frame.f_back  # type: ignore[assignment]
    return frame


def user_frame() -> Any:
    """The innermost frame of the user's own code; of any instrumented code where there is none."""
    first = frame = instrumented_frame(2)
    while frame is not None:
        if is_instrumented(frame.f_code) and owner_of_file(frame.f_code.co_filename) is Owner.USER:
            return frame
        frame = frame.f_back
    return first


def frame_outside(frame: Any, levels: int) -> Any:
    """``levels`` frames outwards, the outermost at last; those of this package do not count."""
    while True:
        while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
            frame = frame.f_back
        levels -= 1
        if levels <= 0 or frame.f_back is None:
            return frame
        frame = frame.f_back


def _is_ours(file: str) -> bool:
    between = file.startswith("<subclass_trace") or file.endswith("contextlib.py")
    return between or owner_of_file(file) is Owner.OURS
