"""What a region leaves behind: the modules that it used hold real tensors and plain numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .. import _torch
from ..subclass.flatten import leaves_of
from ..subclass.protocol import is_traceable
from .requirement import require

_DEPTH = 5


def verify_state(modules: Iterable[torch.nn.Module]) -> None:
    """No module of these trees holds a traced tensor or size, nor a table that is not its own.

    Raises:
        VerificationError: the name of the module and attribute.
    """
    for root in modules:
        for name, module in root.named_modules():
            for table, held in vars(module).items():
                where, kind = f"{name or type(module).__qualname__}.{table}", type(held).__qualname__
                shown = getattr(held, "traced", None) if table in ("_parameters", "_buffers") else None
                require(shown is None, "a module keeps the tables of a trace", where, expected="its own", got=kind)
                left = next(_traced(held, _DEPTH), None)
                require(left is None, "a module keeps a traced value", where, expected="real tensors", got=type(left))


def _traced(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield from filter(_torch.is_fake, leaves_of(value) if is_traceable(value) else [value])
    elif isinstance(value, _torch.SYM_TYPES):
        yield value
    elif depth and isinstance(value, (list, tuple, set, deque, dict)):
        for item in list(value.values() if isinstance(value, dict) else value):
            yield from _traced(item, depth - 1)
    elif (
        depth and hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)) and not callable(value)
    ):
        yield from _traced(vars(value), depth - 1)
