"""The state of the thread around a call: what decides a trace, which `entry_code` compares, and
what has a call run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from ..errors import Reason
from ..torch_api.attention import AttentionKernels, attention_kernels
from ..torch_api.dtensor_modes import DTensorModes, dtensor_modes
from ..torch_api.dynamo import eager_is_forced
from ..torch_api.modes import (
    autocast_state,
    default_devices,
    dispatch_stack_length,
    forward_ad_active,
    function_modes_active,
    functorch_active,
    jit_tracing,
)


@dataclass(frozen=True)
class Ambient:
    """Thread state that decides a trace: grad mode, inference mode, autocast, determinism,
    defaults."""

    grad: bool
    inference: bool
    autocast: tuple[Any, ...]
    deterministic: bool
    dtype: torch.dtype
    devices: tuple[torch.device, ...] = ()  # default devices
    # compared where a trace met a DTensor
    dtensor: DTensorModes | None = field(default=None, compare=False)
    # where it met attention
    attention: AttentionKernels | None = field(default=None, compare=False)

    @staticmethod
    def now() -> Ambient:
        """The state of this thread."""
        return Ambient(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            autocast_state(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_default_dtype(),
            default_devices() or (),
            dtensor_modes(),
            attention_kernels(),
        )

    def changes(self, now: Ambient) -> Reason:
        """What is another one now."""
        rows = [(f.name, getattr(self, f.name), getattr(now, f.name)) for f in fields(self)]
        changed = [row for row in rows if row[1] != row[2] and row[1] is not None]
        why = ", ".join(f"{name}: expected {was}, got {got}" for name, was, got in changed)
        return Reason(
            f"the state of the thread: {why}",
            " and ".join(f"{name} == {was}" for name, was, _ in changed),
        )


#: what would not see, or would not be served by, a compiled graph
_AROUND: tuple[tuple[Callable[[], object], str], ...] = (
    (eager_is_forced, "torch.compiler.set_stance('force_eager') is active"),
    (
        functorch_active,
        "a functorch transform (vmap, grad, jvp) is active around the call",
    ),
    (forward_ad_active, "a forward-mode AD level is active around the call"),
    (dispatch_stack_length, "a __torch_dispatch__ mode is active around the call"),
    (function_modes_active, "a __torch_function__ mode is active around the call"),
    (jit_tracing, "torch.jit.trace records the call"),
)


def eager_reason() -> str | None:
    """Why this call must run eagerly: what is active around it."""
    return next((reason for is_active, reason in _AROUND if is_active()), None)
