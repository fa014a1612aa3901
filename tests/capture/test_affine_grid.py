"""`F.affine_grid`, whose backward takes numbers for sizes."""

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
    assert len(region.specializations) == (3 if tracked else 2)
