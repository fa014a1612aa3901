"""What torch keeps for the whole process, and which of its operations run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..torch_api.modes import TorchDispatchMode
from .evidence import flat

#: what torch keeps for the whole process and a call must not change, and what puts it back
STATE: dict[str, Callable[[Any], object]] = {
    "torch.get_default_dtype()": torch.set_default_dtype,
    "torch.is_grad_enabled()": torch.set_grad_enabled,
    "torch.are_deterministic_algorithms_enabled()": torch.use_deterministic_algorithms,
    "torch.is_autocast_enabled('cpu')": lambda on: torch.set_autocast_enabled("cpu", on),
    "torch.get_num_threads()": torch.set_num_threads,
}
_LOOK = compile(f"({', '.join(STATE)})", "<state>", "eval")


def torch_state() -> tuple[Any, ...]:
    """That state."""
    state: tuple[Any, ...] = eval(_LOOK, {"torch": torch})
    return state


def set_torch_state(state: tuple[Any, ...]) -> None:
    """Put it back."""
    for put, value in zip(STATE.values(), state, strict=True):
        put(value)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations that run inside, and the dtypes of their results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.functions: set[Any] = set()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.add(func)
        out = func(*args, **(kwargs or {}))
        self.dtypes |= {t.dtype for t in flat(out) if isinstance(t, torch.Tensor)}
        return out

    @property
    def names(self) -> frozenset[str]:
        """Without the underscore of those in place."""
        return frozenset(f.__name__.split(".")[0].rstrip("_") for f in self.functions)

    @property
    def pointwise(self) -> bool:
        """Is each result made of one element of each operand?"""
        return all(torch.Tag.pointwise in f.tags and "mm" not in f.__name__ for f in self.functions)

    @property
    def eps(self) -> float:
        """Of the shortest floating point dtype."""
        return max((torch.finfo(d).eps for d in self.dtypes if d.is_floating_point), default=0.0)
