"""Methods of torch's own objects that a trace cannot run as they are: exchanged in the thread that traces, or refused."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.amp import GradScaler
from torch.distributions.utils import lazy_property
from torch.optim.lr_scheduler import LRScheduler

from .. import _torch
from ..errors import UnsupportedError
from .facts import holds_traced

Tensor = torch.Tensor


@contextlib.contextmanager
def torch_methods() -> Iterator[None]:
    """Inside, the methods of traced objects are those of this file."""
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(_instead(_torch.BatchNormBase, "forward", _cumulative_average))
        for cls in _with_subclasses(LRScheduler):
            if "step" in vars(cls):
                enter(_instead(cls, "step", _refuse_schedule))
        enter(_instead(GradScaler, _torch.SCALER_START, _for_good))
        for name in ("unscale_", "step", "update"):
            enter(_instead(GradScaler, name, functools.partial(_refuse_scaler, name)))
        mesh = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
        if mesh is not None:  # parts of it are made of ranks that are numbers, not traced tensors
            enter(_instead(mesh, "__getitem__", _for_good))
        enter(_computed_properties())
        yield


def _instead(cls: Any, name: str, method: Callable[..., Any]) -> contextlib.AbstractContextManager[Any]:
    return _torch.replaced_here(cls, name, functools.partial(method, getattr(cls, name)))


def _with_subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    yield cls
    for below in cls.__subclasses__():
        yield from _with_subclasses(below)


def _for_good(original: Callable[..., Any], self: Any, *args: Any) -> Any:
    """As outside of the trace: a gradient scaler makes its tensors for good when it scales its first loss."""
    with _torch.no_overrides(), _torch.no_modes():
        return original(self, *args)


def _cumulative_average(original: Callable[..., Any], self: Any, input: Tensor) -> Tensor:
    """``BatchNorm(momentum=None)`` reads the weight of a batch as a number; here that is a tensor."""
    counted = self.num_batches_tracked
    cumulative = self.training and self.track_running_stats and self.momentum is None
    if not (cumulative and isinstance(counted, Tensor) and _torch.is_fake(counted)):
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


def _refuse_schedule(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    raise UnsupportedError(
        f"the region calls step() of a {type(self).__qualname__}",
        expected="learning rates that are set outside of the region",
        got="a scheduler, which counts its steps",
        fix="call it after the region; a learning rate that changes costs one more specialization",
    )


def _refuse_scaler(name: str, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if not self.is_enabled():
        return original(self, *args, **kwargs)
    raise UnsupportedError(
        f"the region calls {name}() of a GradScaler",
        expected="scale(loss) and .backward() in the region, what looks at gradients outside of it",
        got="a decision on whether gradients are finite",
        fix=f"call scaler.{name}(...) after the region",
    )


@contextlib.contextmanager
def _computed_properties() -> Iterator[None]:
    """Properties of distributions that are computed when they are first asked for: a traced value is not kept in an object
    from outside. One that has traced tensors, as those that the region makes, keeps it like eager's, until the run ends."""
    kept: list[tuple[Any, str]] = []

    def get(original: Callable[..., Any], self: Any, instance: Any, *rest: Any) -> Any:
        if instance is None:
            return original(self, instance, *rest)
        if any(holds_traced(value, 1) for value in vars(instance).values()):
            kept.append((instance, self.wrapped.__name__))
            return original(self, instance, *rest)
        with torch.enable_grad():
            return self.wrapped(instance)

    try:
        with _instead(lazy_property, "__get__", get):
            yield
    finally:
        for instance, name in kept:
            vars(instance).pop(name, None)
