"""Sizes that a forward has saved by their names, for a later backward that asks for them in another order."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import subclass_trace as st


class Ordered(torch.autograd.Function):
    """The backward takes a step in place where it is differentiated again: its trace is replayed without that step."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        rows, columns = ctx.sizes = x.shape
        ctx.save_for_backward(x)
        return x + torch.ones(rows, columns // 2).sum()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        rows, columns = ctx.sizes
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            steps = x * (columns + 100)
            steps.add_(rows * 1000)
            return g * steps
        return g * rows + columns


@pytest.mark.parametrize("dynamic", [True, False])
def test_each_size_is_its_own(dynamic: bool) -> None:
    region = st.compile(Ordered.apply, dynamic=dynamic)
    for columns in (4, 6, 8):
        found = []
        for f in (Ordered.apply, region):
            x = torch.ones(2, columns, requires_grad=True)
            y = f(x)
            first = torch.autograd.grad(y.sum(), x, retain_graph=True)
            found.append([*first, *torch.autograd.grad(y.sum(), x, create_graph=True)])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=0)
