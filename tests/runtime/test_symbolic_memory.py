"""Inputs that share memory, of sizes that are symbols, one of which is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor
Cut = Callable[[Tensor], tuple[Tensor, Tensor]]


def _behind_autograd(x: Tensor, y: Tensor) -> Tensor:
    x.data.mul_(2)
    return y * y


def _without_gradients(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    return y * y


def _detached(x: Tensor, y: Tensor) -> Tensor:
    x.detach().mul_(2)
    return y * y


CUTS: tuple[Cut, ...] = (
    lambda w: (w[:1], w[:1]),
    lambda w: (w[:2], w[1:3]),
    lambda w: (w[1:4], w[:3]),
    lambda w: (w[:, :2], w[:, 1:3]),
    lambda w: (w[:3, :3], w[1:, 1:]),
)


@pytest.mark.parametrize(
    ("function", "second"),
    [
        (_behind_autograd, CUTS[1]),
        (_behind_autograd, CUTS[4]),
        (_without_gradients, CUTS[1]),
        (_detached, CUTS[4]),
        pytest.param(_without_gradients, CUTS[4], marks=pytest.mark.slow),
        pytest.param(_detached, CUTS[1], marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("first", CUTS)
def test_views_that_require_grad(function: Callable[..., Any], first: Cut, second: Cut) -> None:
    """The graph knows their sizes by numbers of its own: those of tangents, which are the same, come too late."""
    seen = []
    for call in (function, st.compile(function)):
        rows = []
        for cut in (first, second, first):
            w = torch.arange(16.0).view(4, 4).clone().requires_grad_()
            out = call(*cut(w))
            rows.append((out.tolist(), w.tolist(), torch.autograd.grad(out.sum(), w)[0].tolist()))
        seen.append(rows)
    assert seen[1] == seen[0]
