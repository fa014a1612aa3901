"""Regions in emulated CUDA graphs, and how their results are compared."""

from __future__ import annotations

from typing import Any

import torch

import subclass_trace as st
from subclass_trace.testing import EmulatedRecorder
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def graphed(function: Any, **options: Any) -> tuple[Any, EmulatedRecorder]:
    """The region of a function in emulated CUDA graphs, and what has recorded it."""
    recorder = options.setdefault("recorder", EmulatedRecorder())
    names = ("recorder", "outputs", "sizes", "limit")
    settings = {name: options.pop(name) for name in names if name in options}
    return st.compile(function, backend="cudagraphs", options=settings, frontend="trace", **options), recorder


def same(a: Any, b: Any) -> None:
    if isinstance(a, TwoTensor):
        assert type(b) is TwoTensor
        same([a.a, a.b], [b.a, b.b])
    elif isinstance(a, Tensor):
        assert (a.shape, a.stride(), a.dtype, a.requires_grad) == (b.shape, b.stride(), b.dtype, b.requires_grad)
        assert torch.equal(a.detach().nan_to_num(7.7), b.detach().nan_to_num(7.7)), (a, b)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


def events(recorder: EmulatedRecorder) -> list[str]:
    """What was done since this was asked last."""
    found = recorder.events[:]
    recorder.events.clear()
    return found


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


ONE = ["copy", "replay"]
