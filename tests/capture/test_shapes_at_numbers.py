"""Shapes with numbers from inside tensors; those that do not fit are refused in the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
SHAPES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "view": lambda x, k: x.view(k, -1),
    "reshape": lambda x, k: x.reshape(-1, k) * 2,
    "unflatten, all given": lambda x, k: torch.unflatten(x, -2, (2, k)) * 2,
    "unflatten, by name": lambda x, k: x.unflatten(dim=1, sizes=[3, k]),
    "pieces": lambda x, k: x.split([k, 4 - k])[1],
    "pad": lambda x, k: F.pad(x, (k, 1)),
    "interpolate": lambda x, k: F.interpolate(x.sum(0).view(1, 1, 3), size=(k * k + 1,)),
    "zeros": lambda x, k: torch.zeros(k, 3) + x.sum(0),
    "new": lambda x, k: x.new_ones((k, 2)) * 2,
}


def outcome(f: Any, x: Tensor, k: int) -> Any:
    try:
        out = f(x, torch.tensor(k))
    except Exception as error:
        return type(error)
    return [(list(t.shape), t.flatten().tolist()) for t in ((out.a, out.b) if isinstance(out, TwoTensor) else (out,))]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("wrapped", [False, True])
def test_as_in_eager(name: str, wrapped: bool) -> None:
    def f(x: Tensor, k: Tensor) -> Tensor:
        return SHAPES[name](x, k.item())

    region = st.compile(f, backend="eager")
    for rows in (4, 0):
        x = torch.arange(rows * 3.0).view(rows, 3)
        x = TwoTensor(x, x + 1) if wrapped else x
        for k in (2, 4, 1, 3, 12, 0, 5, -1, -2):
            expected = outcome(f, x, k)
            if k == -1 and isinstance(expected, list):  # a size, which is taken to be a number of elements
                continue
            assert outcome(region, x, k) == expected, (rows, k)
    assert len(region.specializations) <= 2


WRITTEN: dict[str, Callable[[Tensor, int, int], Any]] = {
    "a view": lambda x, n, m: (x.view(n, m).mul_(2), x * 2),
    "of a clone": lambda x, n, m: (x.clone().view(n, m).t().mul_(2), x * 2),
    "columns": lambda x, n, m: (x.view(n, m)[:, :1].t().mul_(2), x * 2),
    "new": lambda x, n, m: x.new_zeros(n, m, 2).permute(2, 1, 0).add_(1),
    "before it may be copied": lambda x, n, m: (x.add_(1), x.view(3, 4)[:, :n].contiguous() * 2),
    "a copy in any case": lambda x, n, m: (x.view(3, 4)[:, :n].clone().add_(1), x.add_(1)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_writes_through_shapes_at_numbers(name: str) -> None:
    region = st.compile(lambda x, n, m: WRITTEN[name](x, n.item(), m.item()))
    for n, m in ((4, 3), (3, 4), (1, 12), (12, 1)):
        mine, theirs = torch.arange(12.0), torch.arange(12.0)
        found, expected = region(mine, torch.tensor(n), torch.tensor(m)), WRITTEN[name](theirs, n, m)
        rows = [r if isinstance(r, tuple) else (r,) for r in (found, expected)]
        for a, b in zip((*rows[0], mine), (*rows[1], theirs), strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()
    assert len(region.specializations) <= 1  # a view of an input at such a place, as a result, runs eagerly


SHARED: dict[str, Callable[[Tensor, int], Any]] = {
    "reshape": lambda x, n: x.view(3, 4).t().reshape(n, 12 // n).add_(1),
    "its source, returned": lambda x, n: [x.view(3, 4)[:, :n].contiguous(), x.add_(1)],
}


@pytest.mark.parametrize("name", SHARED)
def test_a_write_to_what_may_be_a_view_runs_eagerly(name: str) -> None:
    x, y = torch.arange(12.0), torch.arange(12.0)
    with pytest.warns(UserWarning, match="memory that is shared or not"):
        st.compile(lambda x, n: SHARED[name](x, n.item()))(x, torch.tensor(4))
    SHARED[name](y, 4)
    assert torch.equal(x, y)
