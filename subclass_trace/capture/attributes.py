"""Is something that a trace made inside of a value?"""

from __future__ import annotations

import types
from collections import deque
from typing import Any

import torch

from .. import _torch
from ..subclass.flatten import leaves_of
from ..subclass.protocol import Kind, kind_of


def holds_traced(value: Any, depth: int = 4) -> bool:
    """Is it a traced tensor or a symbolic size, or a container or object with one inside?"""
    if isinstance(value, torch.Tensor):
        if kind_of(type(value)) is Kind.REFUSED:  # its tensors are among its attributes, if anywhere
            return any(map(_torch.is_fake, vars(value).values()))
        return any(map(_torch.is_fake, leaves_of(value)))
    if isinstance(value, _torch.SYM_TYPES):
        return True
    if depth == 0 or isinstance(value, (type, types.ModuleType, types.FunctionType, torch.nn.Module)):
        return False
    items: list[Any] = []
    if isinstance(value, dict):
        items = list(value.values())
    elif isinstance(value, (list, tuple, set, deque)):
        items = list(value)
    elif hasattr(value, "__dict__"):
        items = list(vars(value).values())
    return any(holds_traced(v, depth - 1) for v in items[:1000])
