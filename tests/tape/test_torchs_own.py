"""Backwards of regions under torch's own compiled autograd: each is one call in torch's graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.compiled_autograd import _enable

import subclass_trace as st
from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.tape import compiled_autograd
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
pytestmark = pytest.mark.usefixtures("own_backward")


def torchs() -> Any:
    """Torch's compiled autograd with a compiler that runs the graph as it is."""
    return _enable(lambda gm: gm, dynamic=False)


def layers(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).sin() @ w


def leaf(wrapper: bool = False) -> Tensor:
    parts = [torch.randn(4, 4, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    return (TwoTensor(*parts) if wrapper else parts[0]).requires_grad_()


def gradients(f: Callable[..., Any], w: Tensor, around: Callable[[], Any], rows: int = 3) -> list[Tensor]:
    x = torch.linspace(-1, 1, 4 * rows).reshape(rows, 4).requires_grad_()
    w.grad = None
    y = f(x, w)
    ones = torch.ones(rows, 4)
    with around():
        y.backward(TwoTensor(ones, ones * 2) if isinstance(y, TwoTensor) else ones)
    return [t for g in (x.grad, w.grad) for t in leaves_of(g)]


@pytest.mark.parametrize("wrapper", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_in_each_step(wrapper: bool, dynamic: bool) -> None:
    region, w = st.compile(layers, dynamic=dynamic or None), leaf(wrapper)
    for rows in (3, 3, 5, 7, 3):
        expected = gradients(region, w, torch.enable_grad, rows)
        for around in (torchs, compiled_autograd, torchs):
            assert all(map(torch.equal, gradients(region, w, around, rows), expected))


def test_under_dynamo() -> None:
    torch._dynamo.reset()
    region, w = st.compile(layers), leaf()
    expected = gradients(region, w, torch.enable_grad)
    for _ in range(3):
        got = gradients(region, w, lambda: _enable(torch.compile(backend="aot_eager"), dynamic=False))
        torch.testing.assert_close(got, expected)
    torch._dynamo.reset()


def test_a_second_backward_and_one_that_is_differentiated() -> None:
    region, w = st.compile(layers), leaf()
    loss = region(torch.ones(3, 4), w).sum()
    with torchs():
        loss.backward(retain_graph=True)
    first = w.grad.clone()
    with torchs():
        loss.backward()
    torch.testing.assert_close(w.grad, first * 2)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    results = []
    for around in (torch.enable_grad, torchs):
        x = torch.ones(3, 4, requires_grad=True)
        with around():
            (g,) = torch.autograd.grad(region(x, w).sum(), x, create_graph=True)
        results.append((g.detach(), *torch.autograd.grad((g * g).sum(), x)))
    torch.testing.assert_close(*results)
