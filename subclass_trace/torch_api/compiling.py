"""``torch.compiler.is_compiling()`` in a region: true, so that libraries take their traceable
paths, in the thread that traces.

Torch's own flag is one for all threads: an optimizer that another thread steps meanwhile would
compute with other numbers. So the function is told apart by its caller, and keeps its identity:
some code holds it, and Dynamo knows it by that.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from .lines import asking
from .repairs.fast_paths import takes_fast_path
from .this_thread import code_replaced


class _State(threading.local):
    tracing = False


_state = _State()
_is_compiling: Any = torch.compiler.is_compiling
#: torch's own answer, while there is another
_plain: Any = types.FunctionType(_is_compiling.__code__, _is_compiling.__globals__)
_OPTIMIZERS = "torch.optim"


@contextlib.contextmanager
def compiling_in_this_thread() -> Iterator[None]:
    """``torch.compiler.is_compiling()`` is true inside, in this thread.

    But not where it would change the numbers: for `nn.TransformerEncoder`, and for optimizers,
    which compute their bias corrections in the precision of a tensor instead of Python's. Those
    that are asked to (``capturable``) may, on all devices.
    """
    outer, _state.tracing = _state.tracing, True
    try:
        with code_replaced(_is_compiling, _stand_in.__code__):
            yield
    finally:
        _state.tracing = outer


def _stand_in() -> bool:
    """Runs with the globals of torch's function."""
    from subclass_trace.torch_api.compiling import answer

    return answer()


def answer() -> bool:
    """To the caller's caller."""
    if not _state.tracing:
        return bool(_plain())
    frame = asking(sys._getframe(2))
    return not takes_fast_path(frame) and (
        not _is_of_optimizer(frame) or _may_be_captured(frame.f_locals)
    )


def _is_of_optimizer(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__"))
    return module.startswith(_OPTIMIZERS) or isinstance(
        frame.f_locals.get("self"), torch.optim.Optimizer
    )


def _may_be_captured(given: dict[str, Any]) -> bool:
    if "capturable" in given:
        return bool(given["capturable"])
    return any(group.get("capturable") for group in getattr(given.get("self"), "param_groups", ()))
