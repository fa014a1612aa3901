"""Methods of torch's own objects that a trace cannot run as they are: exchanged in the thread that traces, or refused."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .. import torch_api
from .diagnostics import refuse_memory

Tensor = torch.Tensor


@contextlib.contextmanager
def torch_methods(recorder: Any) -> Iterator[None]:
    """Inside, the methods of traced objects are those of this file."""
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(_instead(torch_api.BatchNormBase, "forward", _cumulative_average))
        mesh = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
        if mesh is not None:  # parts of it are made of ranks that are numbers, not traced tensors
            enter(_instead(mesh, "__getitem__", _for_good))
        for holder in (torch, torch.utils.dlpack):  # no mode sees a call of it
            enter(_instead(holder, "to_dlpack", functools.partial(_to_dlpack, recorder)))
        yield


def _instead(cls: Any, name: str, method: Callable[..., Any]) -> contextlib.AbstractContextManager[Any]:
    return torch_api.replaced_here(cls, name, functools.partial(method, getattr(cls, name)))


def _for_good(original: Callable[..., Any], self: Any, *args: Any) -> Any:
    """As outside of the trace."""
    with torch_api.no_overrides(), torch_api.no_modes():
        return original(self, *args)


def _cumulative_average(original: Callable[..., Any], self: Any, input: Tensor) -> Tensor:
    """``BatchNorm(momentum=None)`` reads the weight of a batch as a number; here that is a tensor."""
    counted = self.num_batches_tracked
    cumulative = self.training and self.track_running_stats and self.momentum is None
    if not (cumulative and isinstance(counted, Tensor) and torch_api.is_fake(counted)):
        return original(self, input)  # type: ignore[no-any-return]
    self._check_input_dim(input)
    counted.add_(1)
    now = [torch.zeros_like(buffer) for buffer in (self.running_mean, self.running_var)]
    out = F.batch_norm(input, now[0], now[1], self.weight, self.bias, True, 1.0, self.eps)
    with torch.no_grad():
        mean, var = self.running_mean.data, self.running_var.data  # the kernels do not move the version counters
        # As the CPU's kernel rounds them: the share like the average, and the variance's sum in doubles.
        share = counted.double().reciprocal().to(mean.dtype)
        mean.copy_(now[0] * share + mean * (1 - share))
        var.copy_(now[1].double() * share + (var * (1 - share)).double())
    return out


def _to_dlpack(recorder: Any, original: Callable[..., Any], t: Any) -> Any:
    refuse_memory("to_dlpack", (t,), recorder.user_line)
    return original(t)
