"""Small regions of dense tensors whose backward is left to autograd: which they are, and that they do what eager does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace import policy
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def served(region: Any) -> list[bool]:
    return [entry.plan.gradients.by_autograd for entry in region.specializations]


def step(f: Callable[..., Tensor], *leaves: Tensor) -> list[Tensor | None]:
    torch.manual_seed(1)
    y = f(*leaves)
    y.sin().sum().backward()
    return [y.detach(), *(t.grad for t in leaves)]


def same(found: Any, expected: Any) -> bool:
    return all(a is b is None or torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def detached(x: Tensor, w: Tensor) -> Tensor:
    return x @ w + (x @ w).detach().sin()


def without_gradients(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        scale = w.norm()
    return x @ w * scale


def hooked(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    y.register_hook(lambda g: g * 2)
    return y * 3


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


def many(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(policy.POLICY.few):
        x = x.sin() + w.sum()
    return x


@pytest.mark.parametrize(
    ("function", "by_itself"),
    [
        (lambda x, w: torch.relu(x @ w) + x.sum() * w.sum(), True),
        (lambda x, w: nn.functional.dropout(x @ w, 0.5), False),
        (lambda x, w: (x @ w)[2:].mul_(2) * x[:2], False),
        (lambda x, w: nn.functional.layer_norm(x, (4,)) @ w + w.t(), True),
        (lambda x, w: x * w + w * x + x * 2, True),
        (detached, False),
        (without_gradients, False),
        (hooked, False),
        (lambda x, w: Rounded.apply(x @ w), False),
        (many, False),
    ],
)
def test_which_regions_these_are(function: Callable[..., Tensor], by_itself: bool) -> None:
    rows = []
    region = st.compile(function)
    for f in (function, region):
        x, w = (torch.linspace(-1, 1, 16).reshape(4, 4).add(k).requires_grad_() for k in range(2))
        rows.append([t for _ in range(3) for t in step(f, x, w)])
    assert same(*rows)
    assert served(region) == [by_itself]


def test_not_of_wrappers_nor_where_options_say_what_is_kept() -> None:
    x = torch.ones(4, requires_grad=True)
    for options in ({"partitioner": "default"}, {"activation_memory_budget": 0.5}):
        region = st.compile(lambda x: x.sin().cos(), **options)
        region(x).sum().backward()
        assert served(region) == [False]
    region = st.compile(lambda x: x.sin().cos())
    region(TwoTensor(torch.ones(4), torch.ones(4)).requires_grad_())
    region(torch.ones(1 << 15, requires_grad=True))
    assert served(region) == [False, False]
    region.reset()
    region(x)
    assert served(region) == [True] and "by autograd itself" in region.explain()


def test_sizes_and_a_second_derivative() -> None:
    first = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 1))
    second = copy.deepcopy(first)
    region = st.compile(second)
    for rows in (5, 5, 6, 7, 3):
        found = []
        for f in (first, region):
            x = torch.linspace(-1, 2, rows * 4).reshape(rows, 4).requires_grad_()
            (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            (g.norm(dim=1) - 1).pow(2).mean().backward()
            found.append([g.detach(), x.grad])
        assert same(*found)
    assert served(region) == [True] * len(region.specializations)
    assert same(first.state_dict().values(), second.state_dict().values())
    assert same([p.grad for p in first.parameters()], [p.grad for p in second.parameters()])


def test_gradients_that_are_sparse() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    region = st.compile(lambda rows: table(rows).sum())
    region(torch.tensor([1, 2])).backward()
    assert served(region) == [True] and table.weight.grad.is_sparse


def test_a_parameter_that_is_clipped_before_its_use() -> None:
    """The program would write it when everything else is done, and autograd has kept it by then."""
    layer = nn.Linear(4, 4)

    @st.compile
    def clipped(x: Tensor) -> Tensor:
        with torch.no_grad():
            layer.weight.clamp_(-0.1, 0.1)
        return layer(x)

    clipped(torch.ones(3, 4)).sum().backward()
    assert torch.equal(layer.weight.grad, torch.full((4, 4), 3.0)) and served(clipped) == [False]
