"""Saved activations: written, freed, seen by hooks, held by nobody else."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor


def two(n: int = 4) -> TwoTensor:
    return TwoTensor(torch.randn(n), torch.randn(n)).requires_grad_()  # type: ignore[return-value]


def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).sin() * y


def warm(region: st.Region, *inputs: torch.Tensor) -> None:
    for _ in range(2):
        region(*inputs).sum().backward()


@pytest.mark.parametrize("which", ["wrapper", "inner"])
def test_a_write_between_forward_and_backward_is_noticed(which: str) -> None:
    x, y = two(), two()
    region = st.compile(f, backend="eager")
    warm(region, x, y)
    out = region(x, y).sum()
    with torch.no_grad():
        (y if which == "wrapper" else y.a).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_hooks_see_every_activation() -> None:
    x, y = two(), two()
    region = st.compile(f, backend="eager")
    warm(region, x, y)
    packed: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t), t)[1], lambda t: t):
        out = region(x, y)
    assert len(packed) >= 4
    expected = torch.autograd.grad(f(x, y).sum(), (x, y))
    for got, want in zip(torch.autograd.grad(out.sum(), (x, y)), expected, strict=True):
        torch.testing.assert_close(got.a, want.a)  # type: ignore[attr-defined]


@pytest.mark.parametrize("saved_result", [False, True])
def test_nothing_is_kept_alive_by_a_cycle(saved_result: bool) -> None:
    function = (lambda x: x.exp()) if saved_result else (lambda x: x.sin() * 2)
    region = st.compile(function, backend="eager", partitioner="default")
    x = torch.randn(4, requires_grad=True)
    warm(region, x)
    gc.collect()
    gc.disable()
    try:
        out = region(x)
        gone = weakref.ref(out)
        del out
        assert gone() is None
    finally:
        gc.enable()


def test_a_wrapper_that_was_written_after_the_forward_is_named() -> None:
    w = torch.randn(4, requires_grad=True)
    two = TwoTensor(torch.randn(4), torch.randn(4))
    y = st.compile(lambda x, w: x * w)(two, w)
    two.mul_(2)
    with pytest.raises(RuntimeError, match=r"a float32 TwoTensor of shape \[4\] whose inner tensor the backward reads"):
        y.sum().backward(TwoTensor(torch.tensor(1.0), torch.tensor(1.0)))
