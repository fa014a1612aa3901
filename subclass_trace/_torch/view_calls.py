"""The single operations by which a view is made, seen from below autograd; and autograd's books for a result that is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace != "prim":  # a question, such as for the device
            self.calls.append((func, args, dict(kwargs or {}), out))
        return out


def calls_seen(
    way: Callable[[torch.Tensor], torch.Tensor], base: torch.Tensor
) -> tuple[list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]], torch.Tensor]:
    """(operation, arguments, keyword arguments, result) of all that runs in ``way(base)``, and what it gives."""
    with _Seen() as seen:
        result = way(base)
    return seen.calls, result


class _Answered(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, answer: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.answer = answer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) if func.namespace == "prim" else self.answer


def answered(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], answer: Any) -> Any:
    """``function(*args, **kwargs)`` as far as autograd has to do with it; nothing is computed, the result is ``answer``."""
    with _Answered(answer):
        return function(*args, **kwargs)


def node_gives_several(node: Any) -> bool:
    """Has the operation of this autograd node more than one result?"""
    return len(node._input_metadata) > 1
