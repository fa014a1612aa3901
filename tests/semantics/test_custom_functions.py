"""Custom autograd.Functions whose results are views, and whose backwards write to what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


class Reverse(torch.autograd.Function):
    """The input itself; its gradient is turned round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * -5


class Flat(torch.autograd.Function):
    """A view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.size = x.shape
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.view(ctx.size) * 3


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.mul_(-2)


class Clamped(InPlace):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad.clamp_(-0.5, 0.5)
        return grad


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "the input": Reverse.apply,
    "a row": lambda x: Reverse.apply(x)[0],
    "transposed": lambda x: Reverse.apply(x).t(),
    "a view of a value": lambda x: Reverse.apply(x * 2).view(-1),
    "flat, and a part": lambda x: Flat.apply(x)[1:],
    "of a view": lambda x: Flat.apply(x[:1]).view(2, 1).t(),
    "two": lambda x: (Reverse.apply(x).t(), x[1], Flat.apply(x)[:2]),
    "writes": InPlace.apply,
    "writes, twice": lambda x: InPlace.apply(Clamped.apply(x)),
    "writes, two results": lambda x: (Clamped.apply(x), InPlace.apply(x)),
}


@pytest.mark.parametrize(
    ("kind", "dynamic"),
    [
        *((kind, False) for kind in ("dense", "leaf", "wrapper", "nested")),
        *((kind, True) for kind in ("dense", "wrapper")),
        *(pytest.param(kind, True, marks=pytest.mark.slow) for kind in ("leaf", "nested")),
    ],
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str, kind: str, dynamic: bool) -> None:
    seen = []
    for call in (FUNCTIONS[name], st.compile(FUNCTIONS[name], dynamic=dynamic or None)):
        for _ in range(2):
            x = torch.arange(4.0).view(2, 2)
            if kind in ("wrapper", "nested"):
                x = TwoTensor(x, x + 1)
            if kind == "nested":
                x = TwoTensor(x, x * 2)
            leaf = x.requires_grad_()
            given = leaf if kind == "leaf" else leaf * 1
            results = call(given)
            results = results if isinstance(results, tuple) else (results,)
            tangents = [torch.ones_like(r.detach()) for r in results]
            (grad,) = torch.autograd.grad(results, leaf, tangents)
            seen.append([t.tolist() for r in (grad, *results) for t in leaves_of(r.detach())])
    assert all(row == seen[0] for row in seen)


@pytest.mark.parametrize("kind", ["dense", "leaf", "wrapper"])
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if not n.startswith("writes")])
def test_views_that_custom_functions_make(name: str, kind: str) -> None:
    """Nobody may write them."""
    seen = []
    for call in (FUNCTIONS[name], st.compile(FUNCTIONS[name])):
        x = torch.arange(4.0).view(2, 2)
        leaf = (TwoTensor(x, x + 1) if kind == "wrapper" else x).requires_grad_()
        given = leaf if kind == "leaf" else leaf * 1
        results = call(given)
        rows: list[Any] = []
        for r in results if isinstance(results, tuple) else (results,):
            try:
                r.add_(1)
                written = "written"
            except RuntimeError as error:
                written = "custom Function" if "custom Function" in str(error) else "a leaf" * ("leaf" in str(error))
            rows.append((r._is_view(), written))
        seen.append(rows)
    assert seen[0] == seen[1]
