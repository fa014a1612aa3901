"""Graphs with writes: what touches no written memory is copied, all else is made functional. Each program against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st

Tensor = torch.Tensor
GENERATOR = torch.Generator()


def _ones(*size: int) -> Tensor:
    return torch.ones(*size, requires_grad=True)


def drawn_and_written(x: Tensor, w: Tensor) -> Any:
    y = torch.randn(3, generator=GENERATOR)
    y.mul_(2)
    return y, y * w[0]


def saved_constant(x: Tensor, w: Tensor) -> Any:
    x.add_(1)
    d = torch.tensor([5.0, 6.0, 7.0])
    return d * w[0], d


def out_keeps_its_layout(x: Tensor, w: Tensor) -> Any:
    o, places = torch.zeros(3, 3), torch.zeros(3, dtype=torch.long)
    torch.mul(x.t(), 2, out=o)
    largest = torch.zeros(3)
    torch.max(x, 1, out=(largest, places))
    return o.as_strided((2,), (1,)) * w[0, 0], o * w, o, largest * w[0], places


def sums_in_place(x: Tensor, w: Tensor) -> Any:
    out = torch.zeros_like(x)
    for k in range(3):
        out += (x @ w).relu() * k
        out[k].mul_(2)
    return out


def dropout_of_transposed(x: Tensor, w: Tensor) -> Any:
    return F.dropout((x * w).t().clone(), 0.5, inplace=True)


PROGRAMS = [drawn_and_written, saved_constant, out_keeps_its_layout, sums_in_place, dropout_of_transposed]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_as_in_eager(program: Callable[..., Any], dynamic: bool | None) -> None:
    region, found = st.compile(program, dynamic=dynamic), []
    for call in (program, region):
        torch.manual_seed(0)
        GENERATOR.manual_seed(0)
        x, w = torch.arange(9.0).view(3, 3), _ones(3, 3)
        results = call(x, w)
        results = results if isinstance(results, tuple) else (results,)
        sum(r.sum() for r in results if r.requires_grad).backward()  # type: ignore[union-attr]
        found.append([x, w.grad, *results])
    for ours, eagers in zip(*found, strict=True):
        assert torch.equal(ours, eagers) and ours.stride() == eagers.stride()
    assert len(region.specializations) == 1


class Scale(torch.autograd.Function):
    """Its backward makes a symbol, if it is differentiated itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * g.sum().item() if torch.is_grad_enabled() else g


def test_a_later_backward_finds_what_the_forward_saved() -> None:
    def f(w: Tensor, b: Tensor) -> Tensor:
        b.add_(1)
        p, q = w @ w, b @ w
        return Scale.apply(p.sin() * q.sin())

    found = []
    for call in (f, st.compile(f)):
        w, b = torch.eye(2).add_(0.3).requires_grad_(), torch.ones(2, 2)
        loss = call(w, b).sum()
        first = torch.autograd.grad(loss, w, retain_graph=True)
        found.append((*first, *torch.autograd.grad(loss, w, create_graph=True)))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: (x * 1).t(), lambda x: x * 1])
def test_hooks_of_results(view: Callable[[Tensor], Tensor]) -> None:
    def f(x: Tensor) -> Tensor:
        y = view(x)
        y.register_hook(lambda g: g * 2)
        return y

    w = _ones(2, 3)
    st.compile(f)(w).sum().backward()
    assert w.grad is not None and w.grad.unique().tolist() == [2]
