"""Python attributes that a function sets on results: what is traced in them becomes that of each call."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Collection
from typing import Any

import torch

from .. import _torch
from ..subclass.arguments import attributes_inside
from ..subclass.flatten import flatten, leaves_of
from ..subclass.protocol import Kind, kind_of
from ..subclass.visit import rebuild
from .recorder import Recorder

#: a tensor or a symbolic number
TRACED: tuple[Any, ...] = (torch.Tensor, *_torch.SYM_TYPES)


def untouched(value: torch.Tensor, recorder: Recorder) -> Collection[str]:
    """The attributes of a tensor like ``value`` that nobody has set any of."""
    with _torch.without_tracing(), torch.no_grad():
        if _torch.is_fake(value):
            return {name for name, _ in attributes_inside(recorder.bare(value))}
        leaves, spec = flatten(value)
        return {name for name, _ in attributes_inside(rebuild(spec, iter(leaves)))}


def attached(value: torch.Tensor, fresh: Collection[str]) -> dict[str, Any]:
    """The tensors and symbolic numbers that the function set as attributes of ``value``; ``fresh``: those that an untouched
    one has."""
    rows = ((k, v) for k, v in attributes_inside(value) if k not in fresh and not _torch.is_memo(k))
    return {k: v for k, v in rows if isinstance(v, TRACED)}


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
