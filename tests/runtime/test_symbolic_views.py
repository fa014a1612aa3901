"""Results that are views of inputs, with sizes that differ between calls: one specialization, each call's own sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

CASES: dict[str, Callable[[Any], Any]] = {
    "view": lambda x: x.view(x.shape[0] * 2, -1),
    "half": lambda x: x[: x.shape[0] // 2],
    "expand": lambda x: x[:1].expand(x.shape[0] + 1, 8),
    "a chain": lambda x: x.t().unsqueeze(0).narrow(2, 1, x.shape[0] - 2),
    "two views": lambda x: (x[1:], x[:-1].t()),
    "view of a result": lambda x: ((y := x * 2), y[: x.shape[0] - 1]),
}


@pytest.mark.parametrize("kind", ["dense", "TwoTensor"])
def test_a_view_whose_place_alone_differs_between_calls(kind: str) -> None:
    data = torch.randn(8, 8)
    x = data if kind == "dense" else TwoTensor(data, data + 1)
    region = st.compile(lambda x, y: x.select(0, y.shape[0] - 1), dynamic=True)
    for n in (3, 5, 8):
        torch.testing.assert_close(_dense(region(x, torch.ones(n))), _dense(x[n - 1]), rtol=0, atol=0)
    assert len(region.specializations) == 1


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", ["dense", "TwoTensor"])
@pytest.mark.parametrize("name", CASES)
def test_views_of_inputs(name: str, kind: str, grad: bool) -> None:
    function = CASES[name]
    region = st.compile(function, backend="eager", dynamic=True)
    for n in (4, 6, 10, 4):
        data = torch.randn(n, 8)
        x = data if kind == "dense" else TwoTensor(data, data + 1)
        x.requires_grad_(grad)
        got, expected = region(x), function(x)
        for a, b in zip(_results(got), _results(expected), strict=True):
            assert type(a) is type(b) and a.shape == b.shape and a.stride() == b.stride()
            assert a._is_view() == b._is_view() and (a._base is x) == (b._base is x)
            torch.testing.assert_close(_dense(a), _dense(b), rtol=0, atol=0)
        if grad:
            ours, eager = (torch.autograd.grad(_results(r)[0].sum(), x)[0] for r in (got, expected))
            torch.testing.assert_close(_dense(ours), _dense(eager))
    assert len(region.specializations) == 1


def _results(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


def _dense(t: Any) -> torch.Tensor:
    return torch.stack([t.a, t.b]).detach() if isinstance(t, TwoTensor) else t.detach()


def test_a_size_of_another_input() -> None:
    region = st.compile(lambda x, t: x.expand(t.shape[0], 4), backend="eager", dynamic=True)
    for n in (3, 5):
        assert region(torch.ones(1, 4), torch.zeros(n, 2)).shape == (n, 4)
    assert len(region.specializations) == 1
