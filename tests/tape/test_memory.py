"""Peak memory of a backward against the eager engine's, counted from the profiler's memory events.

The variant that unpacks all saved tensors first shows that the bounds can fail.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from benchmarks.compiled_autograd import BATCH, LAYERS, WIDTH, peak
from benchmarks.compiled_autograd import deep_forward as forward
from benchmarks.harness import memory_events
from subclass_trace.tape import compiled_autograd, graph
from subclass_trace.tape.steps import Step

UNIT = BATCH * WIDTH * 4  # bytes of one activation


def model() -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(LAYERS)]


@contextlib.contextmanager
def unpacking_first() -> Iterator[None]:
    """A tape that unpacks everything at its beginning: what must not happen."""
    finish = graph.finish

    def hasty(steps: list[Step], *rest: Any) -> Any:
        for step in steps:
            if step.kind == "unpack":
                step.call, step.kind = 0, "hook"
        return finish(sorted(steps, key=lambda s: s.call), *rest)

    from subclass_trace.tape import capture

    capture.finish = hasty
    try:
        yield
    finally:
        capture.finish = finish


def measured(kind: str, around: Callable[[], Any]) -> float:
    layers = model()
    for count in (None, None, peak):  # the first ones capture, trace and arm shortcuts
        for layer in layers:
            layer.zero_grad()
        loss = forward(layers, kind)
        if count is None:
            with around():
                loss.backward()
            continue
        gc.disable()  # what other tests left is not released while bytes are counted
        try:
            with around():
                bytes_ = count(loss.backward)
        finally:
            gc.enable()
    assert all(p.grad is not None for layer in layers for p in layer.parameters())
    return bytes_ / UNIT


@functools.cache
def eagers(kind: str) -> float:
    """The eager engine's peak; it is the same each time."""
    return measured(kind, contextlib.nullcontext)


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("kind, bound", [("plain", 1.02), ("offload", 1.05), ("checkpoint", 1.15)])
@pytest.mark.sweep(every=4)
def test_peak(kind: str, bound: float, backend: str | None) -> None:
    eager = eagers(kind)
    tape = measured(kind, lambda: compiled_autograd(backend=backend))
    assert compiled_autograd.stats.runs == 3
    assert tape <= bound * eager, (tape, eager)


@pytest.mark.parametrize("kind", ["offload", "checkpoint"])
def test_unpacking_everything_first_would_be_seen(kind: str) -> None:
    eager = eagers(kind)
    with unpacking_first():
        hasty = measured(kind, compiled_autograd)
    compiled_autograd.reset()
    assert hasty > 2 * eager, (hasty, eager)


@pytest.mark.parametrize("around", [contextlib.nullcontext, compiled_autograd])
@pytest.mark.parametrize("again", [False, True])
def test_one_allocation_for_each_gradient(around: Callable[[], Any], again: bool) -> None:
    """Into an empty ``.grad`` and into one that is there: as many allocations of a weight's size as in eager mode."""
    layers = model()
    for k in range(3):
        if not again:
            for layer in layers:
                layer.zero_grad()
        loss = forward(layers, "plain")
        with around():
            events = memory_events(loss.backward) if k == 2 else loss.backward()
    assert events.count(WIDTH * WIDTH * 4) == LAYERS
