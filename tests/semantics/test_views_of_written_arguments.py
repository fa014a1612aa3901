"""An argument that is a view of another one, of which one is written under autograd: such calls run eagerly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def write_base(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return y * 1


def write_view(x: Tensor, y: Tensor) -> Tensor:
    y.mul_(2)
    return x * 3


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize("wrapper", [False, True])
@pytest.mark.parametrize("f", [write_base, write_view])
def test_as_eager(f: Callable[..., Tensor], wrapper: bool) -> None:
    region, seen = st.compile(f), []
    for view in (lambda w: w[:1], lambda w: w.t(), lambda w: w[1:]):
        for call in (f, region):
            dense = torch.arange(9.0).view(3, 3)
            leaf = (TwoTensor(dense, dense + 1) if wrapper else dense).requires_grad_()
            base = leaf * 1
            result = call(base, view(base))
            facts = [t.a.tolist() if wrapper else t.tolist() for t in (result.detach(), base.detach())]
            result.sum().backward(TwoTensor(torch.ones(()), torch.ones(())) if wrapper else None)
            seen.append((facts, (leaf.grad.a if wrapper else leaf.grad).tolist()))
    assert seen[::2] == seen[1::2]
    assert not region.specializations and "one of several views" in region.explain()
