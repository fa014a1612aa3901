"""``copy.copy`` and ``copy.deepcopy`` of traced tensors, and of modules that hold them: in eager these go by way of the
memory, which a traced tensor does not have. Here they are operations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from ..errors import UnsupportedError
from ..subclass.context import is_buffer, is_copied
from ..subclass.protocol import is_traceable

Tensor = torch.Tensor


def deep_copy(t: Tensor, memo: dict[int, Any], line: Callable[[], str | None]) -> Tensor:
    """``copy.deepcopy(t)``: a leaf in memory of its own. Runs as code of the user's would.

    Raises:
        RuntimeError: as in eager: it is no leaf, or its class cannot be cloned.
        UnsupportedError: it is a view of larger memory, all of which eager copies; or it has a gradient.
    """
    if id(t) in memo:
        return memo[id(t)]  # type: ignore[no-any-return]
    if isinstance(t, torch.nn.Parameter):
        made: Tensor = torch.nn.Parameter(t.detach().clone(memory_format=torch.preserve_format), t.requires_grad)
    else:
        if not t.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
            )
        with torch.no_grad():
            made = t.clone() if is_traceable(t) else _own_memory(t, line)
        if type(made) is not type(t) and is_traceable(t):
            raise RuntimeError("deepcopy of a wrapper whose clone() gives another class")
        if is_traceable(t):
            _copy_containers(t, made, memo)
        if t.grad is not None:
            raise UnsupportedError("the region copies the gradient of a tensor", path=line(), got="copy.deepcopy")
        if t.requires_grad:
            made.requires_grad_()
    memo[id(t)] = made
    return made


def _copy_containers(t: Tensor, made: Tensor, memo: dict[int, Any]) -> None:
    """A class hands its context on to the clone, and eager then makes deep copies of all attributes."""
    for name in vars(t).keys() & vars(made).keys():
        value = getattr(t, name)
        if is_copied(value) or is_buffer(value) or type(value) is tuple:
            vars(made)[name] = copy.deepcopy(value, memo)


def _own_memory(t: Tensor, line: Callable[[], str | None]) -> Tensor:
    made = t.resolve_conj().resolve_neg().clone(memory_format=torch.preserve_format)
    whole = t.layout is not torch.strided or (
        made.stride() == t.stride()
        and t.storage_offset() == 0
        and t.untyped_storage().nbytes() == t.numel() * t.element_size()
    )
    if not whole:
        raise UnsupportedError(
            "the region makes a deep copy of a tensor that is a part of larger memory, all of which is copied in eager",
            path=line(),
            expected="tensors whose elements fill their memory",
            got=f"a tensor of shape {tuple(t.shape)} and stride {t.stride()}",
            fix="copy its elements: x.detach().clone()",
        )
    return made


def is_shallow_copy(frame: Any) -> bool:
    """Is it ``copy.copy`` that asks for ``__reduce_ex__`` in this frame, or in those that it was called from?"""
    for _ in range(4):
        if frame is None or frame.f_code is copy.copy.__code__:
            break
        frame = frame.f_back
    return frame is not None and frame.f_code is copy.copy.__code__


def shallow_copy(t: Tensor) -> Tensor:
    """``copy.copy(t)``: another tensor over the same memory, without a history."""
    if isinstance(t, torch.nn.Parameter):
        return torch.nn.Parameter(t.data, t.requires_grad)
    made = t.data
    return made.requires_grad_() if t.requires_grad else made
