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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("function", [torch.nn.functional.softshrink, torch.nn.functional.hardshrink])
def test_gradients_of_what_is_no_number(function, dtype):
    region = st.compile(function, dynamic=True)
    values = [float("nan"), 0.1, -0.3, 0.5, -0.5, 2.0, -2.0, float("inf"), -float("inf"), 0.0]
    for count in (10, 40):
        found = []
        for f in (function, region):
            x = torch.tensor((values * 4)[:count], dtype=dtype, requires_grad=True)
            out = f(x, 0.5)
            (g,) = torch.autograd.grad((out * out).nansum(), x)
            found.append((out, g))
        for got, want in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(torch.signbit(got), torch.signbit(want))


def test_weights_of_a_multi_margin_loss():
    """They get no gradient, and may not ask for one."""
    region = st.compile(lambda x, t, w: torch.nn.functional.multi_margin_loss(x, t, weight=w), dynamic=True)
    for n in (4, 6):
        x, t, w = torch.randn(n, 5, requires_grad=True), torch.arange(n) % 5, torch.rand(5)
        want = torch.nn.functional.multi_margin_loss(x, t, weight=w)
        torch.testing.assert_close(region(x, t, w), want)
        torch.testing.assert_close(*(torch.autograd.grad(out, x)[0] for out in (region(x, t, w), want)))
        with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'weight'"):
            region(x, t, w.clone().requires_grad_())


@pytest.mark.parametrize(
    ("dims", "mode"), [(3, "linear"), (4, "nearest-exact"), (4, "bilinear"), (4, "bicubic"), (5, "trilinear")]
)
def test_interpolation_of_a_wrapper_whose_size_changes(dims, mode):
    """Its class gets the operation that it gets in eager mode, so that bits agree."""

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
            assert torch.equal(a, b) and a.stride() == b.stride()
