"""Users' functions that torch calls for the operations of ``torch.library``."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

_AUTOGRAD, _DEFINITIONS = "torch._library.autograd", "torch._library.custom_ops"
#: run while a region is traced; the kernel runs in each call, and the backward is looked at there
_TRACED = ("_setup_context_fn", "_abstract_fn")


def written_backward(function: Callable[..., Any]) -> types.FunctionType | None:
    """The user's function behind the backward that torch has made of it, also for an operation on lists; or None."""
    if getattr(function, "__module__", None) != _AUTOGRAD:
        return None
    for cell in getattr(function, "__closure__", None) or ():
        value = cell.cell_contents
        found = (
            written_backward(value) if isinstance(value, types.FunctionType) else getattr(value, "_backward_fn", None)
        )
        if isinstance(found, types.FunctionType):
            return found
    return None


def traced_functions(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of what ``torch.library.custom_op`` returns that hold functions which run in a trace."""
    if type(value).__module__ == _DEFINITIONS:
        yield from ((name, held) for name in _TRACED if (held := vars(value).get(name)) is not None)
