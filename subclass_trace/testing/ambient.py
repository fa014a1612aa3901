"""What torch keeps for the whole process."""

from __future__ import annotations

from typing import Any

import torch


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
