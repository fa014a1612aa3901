"""Errors of calls on fake tensors, as the same calls on real ones raise them.

Fake kernels check dtypes and shapes in Python, with other texts, in another order and sometimes by
another class than the kernels do. A program that catches the error can tell.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from .kinds import is_fake
from .modes import no_modes, no_overrides
from .trees import pytree

#: bytes of all real tensors that are made to hear an error
_LIMIT = 1 << 26
#: what an argument may be besides a tensor
_PLAIN = frozenset(
    {int, float, bool, complex, str, slice, torch.Size, type(None), type(...)}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)
_OF_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def error_in_eager(
    error: Exception, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Exception:
    """What the call raises on real tensors like these; ``error`` where it does not, or where that
    cannot be tried."""
    if type(func) not in _OF_C and getattr(func, "__module__", "") != "torch.nn.functional":
        return error
    leaves, form = pytree.tree_flatten((args, kwargs))
    tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
    # C code asks an object of the user's for a number: once
    plain = all(type(leaf) in _PLAIN or isinstance(leaf, torch.Tensor) for leaf in leaves)
    if not plain or not all(map(_can_be_made, tensors)):
        return error
    if sum(map(_nbytes, tensors)) > _LIMIT:
        return error
    try:
        with no_modes(), no_overrides():
            given, named = pytree.tree_unflatten(map(_of_zeros, leaves), form)
            func(*given, **named)
    except Exception as real:
        return real.with_traceback(None)
    return error


def _can_be_made(t: torch.Tensor) -> bool:
    if not is_fake(t) or t.layout is not torch.strided:
        return False
    return all(type(n) is int for n in (*t.shape, *t.stride()))


def _nbytes(t: torch.Tensor) -> int:
    reach: int = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    return (reach + 1) * t.itemsize


def _of_zeros(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
    made = made.zero_().requires_grad_(leaf.requires_grad)
    is_parameter = isinstance(leaf, torch.nn.Parameter)
    return torch.nn.Parameter(made.detach(), leaf.requires_grad) if is_parameter else made
