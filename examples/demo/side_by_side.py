"""Train one model twice, eager and compiled: same start, same batches, one step of each in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import subclass_trace as st

from .data import Text
from .model import Sizes, loss_fn

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
Progress = Callable[[int, float, float], None]
WARM_UP = 3  # first steps, which the medians leave out


class Optimizer(Protocol):
    """The part of ``torch.optim.Optimizer`` that is needed here."""

    def step(self) -> object: ...
    def zero_grad(self) -> object: ...


@dataclass(frozen=True)
class Job:
    """What a worker is asked to do."""

    sizes: Sizes
    steps: int
    backend: str
    seed: int = 0
    learning_rate: float = 3e-3


@dataclass
class Curve:
    """What one side did: its losses, and the seconds of forward with backward and of the whole
    step."""

    losses: list[float] = field(default_factory=list)
    gradient_seconds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)

    def end(self) -> float:
        """The mean of the last losses: single batches differ much."""
        return fmean(self.losses[-5:])

    def gradient_median(self) -> float:
        return median(self.gradient_seconds[WARM_UP:])

    def step_median(self) -> float:
        return median(self.step_seconds[WARM_UP:])


@dataclass(frozen=True)
class Unwrapped:
    """One input of the region: its class and shape, and the dense tensors that the graph gets in
    its place."""

    path: str
    kind: str
    leaves: tuple[str, ...]  # empty for a dense tensor, which goes in as it is


@dataclass(frozen=True)
class SavedRow:
    """One tensor that the compiled forward keeps for the backward. Inputs cost no bytes: they are
    alive anyway."""

    operation: str
    shape: str
    bytes: int
    where: str


@dataclass(frozen=True)
class Result:
    """Plain data, so that a worker process can send it."""

    eager: Curve
    compiled: Curve
    eager_saved_bytes: int
    unwrapped: list[Unwrapped]
    saved: list[SavedRow]
    specializations: int
    report: str
    explanation: str

    def largest_difference(self) -> float:
        """Between the two loss curves, relative to the eager one; infinite where a loss is not a
        number."""
        pairs = zip(self.eager.losses, self.compiled.losses, strict=True)
        differences = [abs(eager - compiled) / abs(eager) for eager, compiled in pairs]
        return max(
            difference if difference == difference else float("inf") for difference in differences
        )


def train(
    job: Job,
    text: Text,
    make_model: Callable[[], nn.Module],
    make_optimizer: Callable[[nn.Module], Optimizer],
    progress: Progress,
) -> Result:
    """Both sides, all steps. ``make_model`` must give the same model on every call."""

    def batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        return text.batches(
            steps=steps, batch=job.sizes.batch, length=job.sizes.length, seed=job.seed
        )

    compiled_loss = st.compile(loss_fn, backend=job.backend)
    models = make_model(), make_model()
    eager, compiled = (
        _Side(loss, model, make_optimizer(model))
        for loss, model in zip((loss_fn, compiled_loss), models, strict=True)
    )
    eager_saved_bytes = _bytes_saved(eager.model, *next(batches(1)))
    for index, batch in enumerate(batches(job.steps)):
        for side in (eager, compiled) if index % 2 == 0 else (compiled, eager):
            side.step(*batch)
        progress(index + 1, eager.curve.losses[-1], compiled.curve.losses[-1])
    first = compiled_loss.specializations[0]
    return Result(
        eager=eager.curve,
        compiled=compiled.curve,
        eager_saved_bytes=eager_saved_bytes,
        unwrapped=[
            Unwrapped(str(row.path), _kind(row.spec), tuple(_parts(row.spec)))
            for row in first.plan.inputs.rows
        ],
        saved=[
            SavedRow(row.operation, f"{list(row.shape)} {row.dtype}", row.bytes, row.where or "")
            for row in first.saved
        ],
        specializations=len(compiled_loss.specializations),
        report=first.report(),
        explanation=compiled_loss.explain(),
    )


class _Side:
    """One model with its optimizer, and how its loss is computed."""

    def __init__(self, loss: Loss, model: nn.Module, optimizer: Optimizer) -> None:
        self.loss, self.model, self.optimizer, self.curve = loss, model, optimizer, Curve()

    def step(self, tokens: Tensor, targets: Tensor) -> None:
        start = time.perf_counter()
        loss = self.loss(self.model, tokens, targets)
        loss.backward()
        middle = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.curve.losses.append(loss.item())
        self.curve.gradient_seconds.append(middle - start)
        self.curve.step_seconds.append(time.perf_counter() - start)


def _bytes_saved(model: nn.Module, tokens: Tensor, targets: Tensor) -> int:
    """What eager keeps for the backward, every storage once, without parameters, buffers and
    arguments."""
    given = [*model.parameters(), *model.buffers(), tokens, targets]
    known = {leaf.untyped_storage().data_ptr() for tensor in given for leaf in _leaves(tensor)}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        for leaf in _leaves(tensor):
            storage = leaf.untyped_storage()
            if storage.data_ptr() not in known:
                kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        # holds what was saved, so that no address is used twice
        loss = loss_fn(model, tokens, targets)
    del loss
    return sum(kept.values())


def _kind(spec: Any) -> str:
    """``DTensor [96, 96]``: the class and what the wrapper shows to the outside."""
    return f"{getattr(spec, 'cls', Tensor).__qualname__} {list(spec.size)}"


def _parts(spec: Any, name: str = "") -> Iterator[str]:
    """The dense tensors of a wrapper's spec, ``.qdata [96, 96] float8_e4m3fn``; none of a dense
    one."""
    for attribute, inner in zip(
        getattr(spec, "names", ()), getattr(spec, "inners", ()), strict=True
    ):
        if hasattr(inner, "names"):
            yield from _parts(inner, f"{name}.{attribute}")
        elif hasattr(inner, "dtype"):  # not an opaque attribute such as a device mesh
            yield f"{name}.{attribute} {list(inner.size)} {str(inner.dtype).removeprefix('torch.')}"


def _leaves(value: object) -> Iterator[Tensor]:
    """The dense tensors inside a wrapper, to any depth."""
    if isinstance(value, Tensor):
        if hasattr(value, "__tensor_flatten__"):
            for name in value.__tensor_flatten__()[0]:
                yield from _leaves(getattr(value, name))
        else:
            yield value
