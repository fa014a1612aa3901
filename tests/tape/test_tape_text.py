"""What a tape looks like, printed."""

from __future__ import annotations

import re
from typing import Any

import torch

from subclass_trace.tape import compiled_autograd


def small(hooked: bool = True) -> torch.Tensor:
    w = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = w.sin()
    y.register_hook(lambda g: None)
    y.retain_grad()
    y.grad_fn.register_hook(lambda out, grads: None)
    w.register_post_accumulate_grad_hook(lambda p: None)
    return (y * 2 + y).sum()


def captured(make: Any = small, **options: Any) -> Any:
    loss = make()
    with compiled_autograd(**options):
        loss.backward()
    return compiled_autograd.tapes[-1]


def test_text() -> None:
    text = str(captured())
    first = int(re.search(r"SinBackward0 +(\d+)", text).group(1))
    shape = re.sub(r" +", " ", text)
    assert shape == (
        "tape of 6 autograd nodes, 4 hooks, 1 unpacking\n"
        " node seq_nr\n"
        " GraphRoot\n"
        f" SumBackward0 {first + 3}\n"
        f" AddBackward0 {first + 2}\n"
        f" MulBackward0 {first + 1}\n"
        " sum of gradients\n"
        f" SinBackward0 {first}\n"
        " tensor hook hooks[0]\n"
        " retain_grad\n"
        " unpack packed[0] with hooks[2]\n"
        " node post-hook hooks[1]\n"
        " AccumulateGrad\n"
        " into inputs[2].grad\n"
        " post-accumulate-grad hook hooks[3]"
    )


def test_segments_are_listed() -> None:
    text = str(captured(backend="eager"))
    assert "segments for the back end 'eager'" in text
    assert re.search(r"segment_0: \d+ operations of the tape, aten graphs of \[\d+\] operations", text)
