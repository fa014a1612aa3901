"""What torch keeps for the whole process, and which of its operations run."""

from __future__ import annotations

from typing import Any

import torch

from ..torch_api.modes import TorchDispatchMode
from .evidence import flat


def torch_state() -> tuple[Any, ...]:
    """What torch keeps for the whole process and a call must not change."""
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_num_threads(),
    )


def set_torch_state(state: tuple[Any, ...]) -> None:
    """Put it back."""
    torch.set_default_dtype(state[0])
    torch.set_grad_enabled(state[1])
    torch.use_deterministic_algorithms(state[2])
    torch.set_autocast_enabled("cpu", state[3])
    torch.set_num_threads(state[4])


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the names of the operations that run inside, without the underscore of those in
    place."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()
        self.pointwise = True
        self.eps = 0.0  # of the shortest floating point dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0].rstrip("_")
        self.names.add(name)
        self.pointwise &= torch.Tag.pointwise in func.tags and "mm" not in name
        out = func(*args, **(kwargs or {}))
        for t in flat(out):
            if torch.is_tensor(t) and t.is_floating_point():
                self.eps = max(self.eps, torch.finfo(t.dtype).eps)
        return out
