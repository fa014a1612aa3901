"""What a tape looks like, printed."""

from __future__ import annotations

import re
from typing import Any

import torch

import subclass_trace as st
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
    with compiled_autograd.forward_lines():
        loss = small()
    with compiled_autograd():
        loss.backward()
    text = str(compiled_autograd.tapes[-1])
    first = int(re.search(r"SinBackward0 +(\d+)", text).group(1))
    lines = dict(re.findall(r"(\w+Backward0) .* test_tape_text.py:(\d+)", text))
    assert lines["SinBackward0"] == "17" and lines["MulBackward0"] == "22"
    shape = re.sub(r" +", " ", re.sub(r"test_tape_text.py:\d+", "LINE", text))
    assert shape == (
        "tape of 6 autograd nodes, 4 hooks, 1 unpacking\n"
        " node seq_nr forward\n"
        " GraphRoot\n"
        f" SumBackward0 {first + 3} LINE\n"
        f" AddBackward0 {first + 2} LINE\n"
        f" MulBackward0 {first + 1} LINE\n"
        " sum of gradients\n"
        f" SinBackward0 {first} LINE\n"
        " tensor hook hooks[0]\n"
        " retain_grad\n"
        " unpack packed[0] with hooks[2]\n"
        " node post-hook hooks[1]\n"
        " AccumulateGrad\n"
        " into inputs[2].grad\n"
        " post-accumulate-grad hook hooks[3]"
    )


def test_lines_from_anomaly_mode() -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            made = small()
        tape = captured(lambda: made)
    assert next(n for n in tape.nodes if n.name == "SinBackward0").line.endswith("test_tape_text.py:17")


def test_without_lines() -> None:
    tape = captured()
    assert all(n.line is None for n in tape.nodes)
    assert all(n.seq_nr is not None for n in tape.nodes if n.name.endswith("0"))


def test_segments_are_listed() -> None:
    text = str(captured(backend="eager"))
    assert "segments for the back end 'eager'" in text
    assert re.search(r"segment_0: \d+ operations of the tape, aten graphs of \[\d+\] operations", text)


def test_pasted_graphs_are_counted() -> None:
    region = st.compile(lambda x: x.sin().cos())
    tape = captured(lambda: region(torch.ones(2, requires_grad=True)).sum())
    assert re.search(r"RegionFunctionBackward.*\n    call kept_activations\n    \d+ pasted operations", str(tape))
    assert str(tape).endswith("\n\nwith create_graph these are calls of their backwards: RegionFunctionBackward")
    assert "with create_graph" not in str(captured()) and "pasted" not in str(tape.making_a_graph())
