"""An argument that is a view of another one that is written: how it lies there may differ from call to call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda w: w[:1],
    "second": lambda w: w[1:2],
    "two": lambda w: w[:2],
    "transposed": lambda w: w.t(),
    "column": lambda w: w[:, :1],
}


def write_base(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return y * 1


def write_view(x: Tensor, y: Tensor) -> Tensor:
    y.mul_(2)
    return x * 3


def write_sibling(x: Tensor, y: Tensor) -> Tensor:
    z = x[:1] + 0
    y.mul_(2)
    return z.sum() + y


@pytest.mark.parametrize(
    ("wrapper", "dynamic"),
    [
        (False, True),
        (True, False),
        pytest.param(False, False, marks=pytest.mark.slow),
        pytest.param(True, True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("f", [write_base, write_view, write_sibling])
def test_each_call_sees_its_own_view(f: Callable[..., Tensor], wrapper: bool, dynamic: bool) -> None:
    region = st.compile(f, dynamic=dynamic)
    for rows, name in [*((3, name) for name in VIEWS), (4, "two"), (4, "column"), (3, "second"), (3, "first")]:
        seen = []
        for call in (f, region):
            dense = torch.arange(3.0 * rows).view(rows, 3)
            leaf = (TwoTensor(dense, dense + 1) if wrapper else dense).requires_grad_()
            base = leaf * 1
            result = call(base, VIEWS[name](base))
            facts = [t.a.tolist() if wrapper else t.tolist() for t in (result.detach(), base.detach())]
            result.sum().backward(TwoTensor(torch.ones(()), torch.ones(())) if wrapper else None)
            gradient = leaf.grad.a if wrapper else leaf.grad
            seen.append((facts, result.shape, base._version, gradient.tolist()))
        assert seen[0] == seen[1], name


def test_the_same_place_costs_no_specialization() -> None:
    region = st.compile(write_base)
    for _ in range(3):
        base = torch.ones(3, 3, requires_grad=True) * 1
        region(base, base[1:])
    assert len(region.specializations) == 1
    base = torch.ones(3, 3, requires_grad=True) * 1
    region(base, base[:2])
    assert "view" in region.explain() and len(region.specializations) == 2
