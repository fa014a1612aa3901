"""Operations that torch takes apart in Python where sizes are symbols: values, gradients and random numbers of eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.zoo import TwoTensor


def run(function, x, seed=7):
    """Results, gradient and the state of the random numbers behind them."""
    x = x.detach().clone().requires_grad_(x.is_floating_point())
    torch.manual_seed(seed)
    results = torch.utils._pytree.tree_leaves(function(x))
    state = torch.get_rng_state()
    grad = torch.autograd.grad(sum(r.sum() for r in results), x)[0]
    return [*results, grad, state]


def compare(function, *inputs, dynamic=True):
    compiled = st.compile(function, dynamic=dynamic or None)
    for x in inputs:
        torch.testing.assert_close(run(compiled, x), run(function, x))


@pytest.mark.parametrize(("p", "train"), [(0.0, True), (0.3, True), (1.0, True), (0.3, False)])
def test_dropout(p, train):
    compare(lambda x: F.dropout(x.t(), p, train), torch.randn(3, 4), torch.randn(5, 2))
    compiled, x = st.compile(lambda x: F.dropout(x, p, train), dynamic=True), torch.randn(3, 4)
    assert (compiled(x) is x) is (F.dropout(x, p, train) is x)
    assert F.dropout(x * 1, p, train) is not x  # torch's own form is back
    written = lambda x: (y := x * 1, F.dropout(y, p, train).add_(1))
    compare(written, torch.randn(3, 4))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_multilabel_margin_loss(reduction):
    target = torch.tensor([[3, 0, -1, 1], [-1, 2, 2, 2], [0, 1, 2, 3]])
    for rows in (slice(None), 0):
        compare(
            lambda x, rows=rows: F.multilabel_margin_loss(x, target.expand(3, 4)[rows], reduction=reduction),
            torch.randn(3, 4)[rows],
        )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolation_of_bytes_rounds_as_the_kernel(mode):
    compiled = st.compile(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode), dynamic=True)
    for height in (5, 8):
        x = torch.randint(0, 256, (2, 3, height, 7), dtype=torch.uint8)
        assert torch.equal(compiled(x), F.interpolate(x, scale_factor=1.7, mode=mode))
    compare(lambda x: F.interpolate(x, size=(4, 9), mode=mode), torch.randn(2, 3, 5, 7))


@pytest.mark.parametrize(
    ("dims", "mode"), [(3, "linear"), (4, "nearest-exact"), (4, "bilinear"), (4, "bicubic"), (5, "trilinear")]
)
def test_interpolation_of_a_wrapper_whose_size_changes(dims, mode):
    def function(x):
        return F.interpolate(x, scale_factor=1.7, mode=mode)

    region = st.compile(function)
    for size in (4, 6):
        seen = []
        for call in (function, region):
            torch.manual_seed(0)
            parts = [torch.randn(2, 3, *[size] * (dims - 2)).transpose(1, -1) for _ in range(2)]
            x = TwoTensor(*parts).requires_grad_()
            out = call(x)
            (out.sin() * out).sum().backward(TwoTensor(torch.tensor(1.0), torch.tensor(2.0)))
            seen.append([t for value in (out.detach(), x.grad) for t in (value.a, value.b)])
        for a, b in zip(*seen, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)  # torch's form rounds in another way
            assert a.stride() == b.stride()
