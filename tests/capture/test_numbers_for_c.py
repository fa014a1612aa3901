"""Floats that C++ takes as plain numbers are symbols, with eager's bits: one specialization for all rates."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

FUNCTIONS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "dropout": lambda x, p: F.dropout(x * 1, p),
    "a dropout in place of nothing": lambda x, p: F.dropout(x, p, training=False) + p,
    "uniform_, two symbols": lambda x, s: torch.empty_like(x).uniform_(-s, s) + x * 2,
    "normal_": lambda x, s: x + torch.zeros_like(x).normal_(0.0, s),
    "bernoulli_, transposed": lambda x, s: x * torch.empty_like(x).t().bernoulli_(s).t(),
    "exponential_ of what is an operation's default": lambda x, s: x * torch.empty_like(x).exponential_(s + 1.0),
}
INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "dense": lambda: torch.randn(6, 4),
    "with grad": lambda: torch.randn(6, 4, requires_grad=True),
    "bfloat16": lambda: torch.randn(6, 4).bfloat16(),
}


def from_seed(f: Callable[..., torch.Tensor], *args: object) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return f(*args), torch.get_rng_state()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", INPUTS)
def test_one_specialization_and_the_bits_of_eager(name: str, kind: str) -> None:
    region = st.compile(FUNCTIONS[name], frontend="trace")
    for rate in (0.3, 0.25, 0.2, 0.1, 0.7):
        x = INPUTS[kind]()
        (expected, state), (got, after) = from_seed(FUNCTIONS[name], x, rate), from_seed(region, x, rate)
        assert torch.equal(expected, got) and torch.equal(state, after)
        if x.requires_grad:
            gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (expected, got)]
            assert torch.equal(*gradients)
    assert len(region.specializations) == 2


def test_rates_that_draw_nothing_have_programs_of_their_own() -> None:
    def f(x: torch.Tensor, p: float) -> torch.Tensor:
        return F.dropout(x, p)

    region = st.compile(f, frontend="trace")
    for rate in (0.1, 0.0, 0.3, 1.0, 0.4, 0, 1, 0.5):
        x = torch.randn(6, 4)
        (expected, state), (got, after) = from_seed(f, x, rate), from_seed(region, x, rate)
        assert torch.equal(expected, got) and torch.equal(state, after)
    with pytest.raises(ValueError, match=r"between 0 and 1, but got 1.5"):
        region(torch.randn(3), 1.5)


def test_a_class_computes_with_numbers() -> None:
    def f(x: torch.Tensor, p: float) -> torch.Tensor:
        return F.dropout(x, p)

    region = st.compile(f, frontend="trace")
    for rate in (0.3, 0.25, 0.2):
        x = TwoTensor(torch.randn(6, 4), torch.randn(6, 4))
        (expected, _), (got, _) = from_seed(f, x, rate), from_seed(region, x, rate)
        assert torch.equal(expected.a, got.a) and torch.equal(expected.b, got.b)


@pytest.mark.parametrize("size", [(8, 4), (8, 4, 5)], ids=str)
def test_a_batch_norm_with_the_average_of_all_batches(size: tuple[int, ...]) -> None:
    eager = nn.BatchNorm1d(4, momentum=None)
    region = st.compile(traced := copy.deepcopy(eager), frontend="trace")
    for k in range(5):
        if k == 4:
            eager.eval()
            traced.eval()
        x = torch.randn(*size, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        expected, got = eager(x), region(y)
        expected.square().sum().backward()
        got.square().sum().backward()
        assert torch.equal(expected, got) and torch.equal(x.grad, y.grad)
        assert all(torch.equal(a, b) for a, b in zip(eager.buffers(), traced.buffers(), strict=True))
    assert len(region.specializations) == 2


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_a_fused_step_whose_rate_a_schedule_changes(kind: str) -> None:
    def training(module: nn.Module, region: bool) -> tuple[Callable[..., torch.Tensor], Any]:
        more = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(torch.optim, kind)(module.parameters(), lr=0.1, fused=True, **more)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        compiled = st.compile(step, frontend="trace") if region else step

        def scheduled(x: torch.Tensor) -> torch.Tensor:
            loss = compiled(x)
            schedule.step()
            return loss

        return scheduled, compiled

    module = nn.Linear(4, 4)
    (eager, _), (traced, region) = training(copy.deepcopy(module), False), training(module, True)
    for _ in range(6):
        x = torch.randn(3, 4)
        assert torch.equal(eager(x), traced(x))
    assert len(region.specializations) == 2
