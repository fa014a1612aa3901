"""User code that torch calls in a backward: hooks of modules, and the backward of custom functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .this_thread import replaced_here

_Module: Any = torch.nn.Module


@contextlib.contextmanager
def module_hooks_replaced(wrap: Callable[[Any], Any]) -> Iterator[None]:
    """While inside, modules that this thread calls register ``wrap(hook)`` in the place of each of their backward hooks."""
    hooks, pre_hooks = _Module._get_backward_hooks, _Module._get_backward_pre_hooks

    def get_hooks(self: Any) -> tuple[list[Any], list[Any]]:
        full, other = hooks(self)
        return list(map(wrap, full)), list(map(wrap, other))

    def get_pre_hooks(self: Any) -> list[Any]:
        return list(map(wrap, pre_hooks(self)))

    with (
        replaced_here(_Module, "_get_backward_hooks", get_hooks),
        replaced_here(_Module, "_get_backward_pre_hooks", get_pre_hooks),
    ):
        yield


def custom_backward(node: Any) -> Callable[..., Any] | None:
    """The function that the author of a custom ``autograd.Function`` wrote for this autograd node; None of other nodes."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return None
    cls: Any = node._forward_cls  # type: ignore[attr-defined]
    names = [n for n in ("vjp", "backward") if getattr(cls, n) is not getattr(torch.autograd.Function, n)]
    return getattr(cls, names[0]) if names else None


def gradients_of(node: Any) -> list[tuple[Sequence[Any], torch.dtype, torch.device]]:
    """Size, dtype and device of each gradient that an autograd node gives, without those that nobody wants."""
    metas = [following._input_metadata[number] for following, number in node.next_functions if following is not None]
    return [(meta.shape, meta.dtype, meta.device) for meta in metas]
