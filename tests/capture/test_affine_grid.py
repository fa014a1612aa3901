"""`F.affine_grid`, whose backward takes numbers for sizes: a graph has an operation that takes symbols."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st


@pytest.mark.parametrize("tracked", [False, True])
def test_batches_that_change(tracked: bool) -> None:
    def f(theta: torch.Tensor) -> torch.Tensor:
        return F.affine_grid(theta * 2, [theta.shape[0], 1, 3, 3], align_corners=False)

    region = st.compile(f)
    for n in (2, 3, 4, 3):
        theta = torch.randn(n, 2, 3, requires_grad=tracked)
        out = region(theta)
        assert torch.equal(out, f(theta))
        if tracked:
            got, expected = (torch.autograd.grad(y.sum(), theta)[0] for y in (out, f(theta)))
            torch.testing.assert_close(got, expected)
    assert len(region.specializations) == 2


@pytest.mark.parametrize("corners", [False, True])
def test_sizes_that_change(corners: bool) -> None:
    """Values, layouts and gradients, twice, of images and volumes; what eager refuses."""

    def f(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.affine_grid(theta, x.shape, align_corners=corners)

    region, volumes = st.compile(f), st.compile(f)
    for n in (3, 4, 6):
        for compiled, theta, x in (
            (region, torch.randn(2, 2, 3), torch.empty(2, 1, n, n + 2)),
            (volumes, torch.randn(2, 3, 4), torch.empty(2, 1, 3, n, 4)),
        ):
            results = []
            for g in (f, compiled):
                leaf = theta.clone().requires_grad_()
                out = g(leaf, x)
                (grad,) = torch.autograd.grad(out.pow(3).sum(), leaf, create_graph=True)
                grad.pow(2).sum().backward()
                results.append([out.detach(), grad.detach(), leaf.grad, out.stride(), grad.stride(), out._is_view()])
            assert str(results[0]) == str(results[1])
    assert len(region.specializations) == len(volumes.specializations) == 2
    with pytest.raises(ValueError) as expected:
        f(torch.randn(2, 2, 4), torch.empty(2, 1, 5, 5))
    with pytest.raises(ValueError) as got:
        region(torch.randn(2, 2, 4), torch.empty(2, 1, 5, 5))
    assert str(got.value) == str(expected.value)
