"""Methods of torch's modules that branch on values, or make sizes of them, as formulas that a graph can hold."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch.amp import GradScaler
from torch.distributions.utils import lazy_property
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from .. import _torch
from ..errors import UnsupportedError
from .composites import cumulative_averages
from .facts import holds_traced

Tensor = torch.Tensor
Adaptive = torch.nn.AdaptiveLogSoftmaxWithLoss


@contextlib.contextmanager
def formulas() -> Iterator[None]:
    """Inside, the methods of traced modules are those of this file; in this thread."""
    with (
        cumulative_averages(),
        _instead(AveragedModel, "update_parameters", _update_parameters),
        _instead(Adaptive, "forward", _adaptive_log_softmax),
        no_schedules(),
        scaled_losses(),
        meshes_as_they_are(),
        computed_properties(),
    ):
        yield


@contextlib.contextmanager
def _instead(cls: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    with _torch.replaced_here(cls, name, functools.partial(method, getattr(cls, name))):
        yield


@contextlib.contextmanager
def no_schedules() -> Iterator[None]:
    """Inside, no scheduler of learning rates may step: what it counts is in objects of torch's, which no trace looks after."""
    with contextlib.ExitStack() as stack:
        for cls in _with_subclasses(LRScheduler):
            if "step" in vars(cls):
                stack.enter_context(_instead(cls, "step", _refuse_schedule))
        yield


@contextlib.contextmanager
def scaled_losses() -> Iterator[None]:
    """Inside, a gradient scaler makes its tensors for good when it scales its first loss. What depends on whether gradients
    are finite is refused before it changes anything."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_instead(GradScaler, _torch.SCALER_START, _for_good))
        for name in ("unscale_", "step", "update"):
            stack.enter_context(_instead(GradScaler, name, functools.partial(_refuse_scaler, name)))
        yield


def _for_good(original: Callable[..., Any], self: Any, *args: Any) -> Any:
    with _torch.no_overrides(), _torch.no_modes():
        return original(self, *args)


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
def computed_properties() -> Iterator[None]:
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


@contextlib.contextmanager
def meshes_as_they_are() -> Iterator[None]:
    """Inside, parts of a device mesh are made as outside: of ranks that are numbers, not traced tensors."""
    module = sys.modules.get("torch.distributed.device_mesh")
    mesh = getattr(module, "DeviceMesh", None)
    with _instead(mesh, "__getitem__", _for_good) if mesh is not None else contextlib.nullcontext():
        yield


def _with_subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    yield cls
    for below in cls.__subclasses__():
        yield from _with_subclasses(below)


def _refuse_schedule(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    raise UnsupportedError(
        f"the region calls step() of a {type(self).__qualname__}",
        expected="learning rates that are set outside of the region",
        got="a scheduler, which counts its steps",
        fix="call it after the region; a learning rate that changes costs one more specialization",
    )


def _update_parameters(original: Callable[..., Any], self: Any, model: Any) -> None:
    """The first update copies the model: it is computed like the others (`branch_of_torch`), and left out where it is."""
    if not _torch.is_fake(self.n_averaged):
        original(self, model)
        return
    first = self.n_averaged == 0
    mine, theirs = (
        list(chain(m.parameters(), m.buffers()) if self.use_buffers else m.parameters()) for m in (self.module, model)
    )
    original(self, model)
    with torch.no_grad():
        for average, now in zip(mine, theirs, strict=False):
            with _torch.no_overrides():
                version = average._version  # eager writes once, this way or that
            average.copy_(torch.where(first.to(average.device), now.to(average.device), average))
            _torch.set_version(average, version)


def _adaptive_log_softmax(original: Callable[..., Any], self: Any, input_: Tensor, target_: Tensor) -> Any:
    """Each cluster is computed for all rows, and taken for its own: eager computes it for these alone."""
    fits = (input_.dim(), target_.dim()) in ((1, 0), (2, 1)) and input_.shape[:-1] == target_.shape
    if not _torch.is_fake(target_) or not fits:
        return original(self, input_, target_)
    input, target = input_.reshape(-1, input_.shape[-1]), target_.reshape(-1)
    text = f"Target values should be in [0, {self.n_classes - 1}], but others were found. "
    _torch.assert_async(((target >= 0) & (target < self.n_classes)).all(), text)
    place, output = target, input.new_zeros(target.shape)
    for k, (low, high) in enumerate(pairwise(self.cutoffs)):
        inside = (target >= low) & (target < high)
        cluster = F.log_softmax(self.tail[k](input), dim=1)
        local = cluster.gather(1, torch.where(inside, target - low, 0).unsqueeze(1)).squeeze(1)
        output = output + torch.where(inside, local, 0)
        place = torch.where(inside, self.shortlist_size + k, place)
    head = F.log_softmax(self.head(input), dim=1)
    output = output + head.gather(1, place.unsqueeze(1)).squeeze(1)
    loss = (-output).mean()
    return _torch.AdaptiveOutput(output if target_.dim() else output.squeeze(0), loss)
