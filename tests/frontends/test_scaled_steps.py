"""Steps that a `GradScaler` leaves out: a branch of the program, and no copies."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_training_steps import KINDS, _train
from torch import nn, optim

import subclass_trace as st
from benchmarks.compiled_autograd import peak

Tensor = torch.Tensor


def _layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))


def _scaled(model: Any, optimizer: Any) -> Callable[[Tensor], Any]:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)

    def step(x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _plain(model: Any, optimizer: Any) -> Callable[[Tensor], Any]:
    def step(x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _warm(build: Any, kind: Any) -> Any:
    torch.manual_seed(0)
    model = _layers()
    region, x = st.compile(build(model, kind(model.parameters()))), torch.randn(8, 64)
    for _ in range(3):
        region(x)
    return region, x


def _counts(region: Any, x: Tensor) -> dict[str, int]:
    with torch.profiler.profile() as profile:
        region(x)
    return {row.key: row.count for row in profile.key_averages()}


@pytest.mark.parametrize("kind", ["SGD with momentum", "Adam", "Adam of lists"])
@pytest.mark.sweep(every=3)
def test_no_copies(kind: str) -> None:
    scaled, plain = (_counts(*_warm(build, KINDS[kind])) for build in (_scaled, _plain))
    assert "aten::where" not in scaled and scaled.get("aten::clone") == plain.get("aten::clone")


def test_a_step_that_is_left_out_does_not_run() -> None:
    region, x = _warm(_scaled, KINDS["Adam"])
    assert _counts(region, x)["aten::addcdiv_"] > 0
    assert "aten::addcdiv_" not in _counts(region, x.fill_(1e30))
    assert len(region.specializations) == 1


@pytest.mark.long
def test_no_more_memory_than_without_it() -> None:
    peaks = []
    for build in (_plain, _scaled):
        region, x = _warm(build, KINDS["Adam"])
        peaks.append(peak(functools.partial(region, x)))
    assert peaks[1] <= 1.1 * peaks[0]


def test_two_optimizers_of_one_scaler() -> None:
    """Either is left out by its own gradients."""
    seen = []
    for compiled in (False, True):
        torch.manual_seed(0)
        a, b = nn.Linear(3, 3), nn.Linear(3, 3)
        both = [optim.Adam(m.parameters(), lr=0.1) for m in (a, b)]
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def step(x: Tensor, y: Tensor, a: Any = a, b: Any = b, both: Any = both, scaler: Any = scaler) -> Any:
            loss = a(x).square().mean() + b(y).square().mean()
            scaler.scale(loss).backward()
            for optimizer in both:
                scaler.step(optimizer)
            scaler.update()
            for optimizer in both:
                optimizer.zero_grad()
            return loss.detach()

        run = st.compile(step) if compiled else step
        for k in range(6):
            x, y = torch.ones(2, 3), torch.ones(2, 3)
            (x, y)[k % 2].mul_(1e30 if k > 2 else 1.0)
            run(x, y)
        seen.append([[p.detach().clone() for m in (a, b) for p in m.parameters()], scaler._scale])
    torch.testing.assert_close(*seen, rtol=0, atol=0)


def test_a_step_whose_result_has_its_own_backward() -> None:
    """Its graph is functional, and puts back what the step wrote."""
    seen = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model, other = nn.Linear(3, 3), torch.ones(3, requires_grad=True)
        step = _scaled(model, optim.Adam(model.parameters(), lr=0.1))
        beside = lambda x, step=step, other=other: (step(x), (other * x).sum())
        run: Any = st.compile(beside) if compiled else beside
        for k in range(5):
            run(torch.full((2, 3), 1e30 if k == 3 else 1.0))[1].backward()
        seen.append([[p.detach().clone() for p in model.parameters()], other.grad])
    torch.testing.assert_close(*seen, rtol=0, atol=0)


def test_as_another_back_end_has_it() -> None:
    """It gets a functional graph."""
    seen = []
    for options in ({}, {"backend": lambda graph, inputs: graph}):
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        run: Any = st.compile(_scaled(model, optim.Adam(model.parameters(), lr=0.1)), **options)
        for k in range(5):
            run(torch.full((2, 3), 1e30 if k == 3 else 1.0))
        seen.append([p.detach().clone() for p in model.parameters()])
    torch.testing.assert_close(*seen, rtol=0, atol=0)


def test_a_description_has_the_branch() -> None:
    torch.manual_seed(0)
    model = _layers()
    step = _scaled(model, optim.Adam(model.parameters(), lr=0.1))
    region, x = st.compile(step), torch.randn(8, 64)
    for _ in range(3):
        region(x)
    (made,) = region.specializations
    other = st.compile(step)
    other.bind(copy.deepcopy(made.describe(x).data), x)
    assert _counts(other, x).get("aten::where", 0) == 0


@pytest.mark.parametrize("kind", ["SGD", "Adam of lists"])
def test_as_eager_mode_does(kind: str) -> None:
    grow = lambda k, model, _: k == 3 and model[0].weight.data.fill_(1e30)
    make = lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert len(_train(make, KINDS[kind], _scaled, between=grow, steps=6).specializations) == 1
