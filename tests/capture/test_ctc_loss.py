"""CTC loss: torch has no fake kernel of it, and the size of what it keeps depends on the lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace import verify

Tensor = torch.Tensor
LENGTHS = (((8, 7), (3, 1)), ((8, 8), (3, 2)), ((5, 8), (1, 2)))


def gradient(f: Any, lengths: Any, reduction: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, targets = torch.randn(8, 2, 5, requires_grad=True), torch.randint(1, 5, (2, 3))
    loss = f(x, targets, *lengths, reduction)
    loss.sum().backward()
    return loss.detach(), x.grad


def ctc(x: Tensor, targets: Tensor, inputs: Any, lengths: Any, reduction: str) -> Tensor:
    return F.ctc_loss(x.log_softmax(-1), targets, inputs, target_lengths=lengths, reduction=reduction)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("kind", [torch.tensor, tuple])
def test_as_in_eager(kind: Any, reduction: str) -> None:
    region = st.compile(ctc)
    for lengths in LENGTHS:
        given = tuple(map(kind, lengths))
        with verify.enabled():
            found = gradient(region, given, reduction)
        for a, b in zip(gradient(ctc, given, reduction), found, strict=True):
            assert torch.equal(a, b)
    assert len(region.specializations) == (1 if kind is torch.tensor else len(LENGTHS))
