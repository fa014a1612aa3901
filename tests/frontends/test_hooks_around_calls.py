"""Hooks around the step of optimizers, and around all modules: they may come, go, count, and read what changes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import subclass_trace as st
from subclass_trace.torch_api.hooks import hooks_of_all

Tensor = torch.Tensor
optimizer_module = importlib.import_module("torch.optim.optimizer")  # `torch.optim` hides it
Region = Callable[[Any], Any]
#: of (parameter, optimizer): sets hooks up, and does something before each step
Setup = Callable[[nn.Parameter, Any], Iterator[Any]]


@pytest.fixture(autouse=True)
def _no_hooks_are_left() -> Iterator[None]:
    of_steps = (optimizer_module._global_optimizer_pre_hooks, optimizer_module._global_optimizer_post_hooks)
    tables = [*of_steps, *(table for *_, table in hooks_of_all())]
    before = [dict(table) for table in tables]
    yield
    for table, held in zip(tables, before, strict=True):
        table.clear()
        table.update(held)


def _steps(region: Region, setup: Setup) -> tuple[list[float], list[Any]]:
    """The parameter after six steps, and what each of them left behind."""
    p = nn.Parameter(torch.ones(3))
    optimizer = optim.SGD([p], 0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (p * x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run, acts = region(step), setup(p, optimizer)
    left = []
    for _ in range(6):
        left.append(next(acts))
        run(torch.ones(3))
    left.append(next(acts))
    return p.tolist(), left


def _same(setup: Setup) -> Any:
    """The region, which does what eager does."""
    made: list[Any] = []

    def compiled(f: Any) -> Any:
        made.append(st.compile(f))
        return made[-1]

    assert _steps(compiled, setup) == _steps(lambda f: f, setup)
    return made[0]


class _Clamp:
    def __init__(self, p: nn.Parameter, limit: float) -> None:
        self.p, self.limit, self.steps, self.rates = p, limit, 0, list[float]()

    def __call__(self, optimizer: Any, *_: Any) -> None:
        self.steps += 1
        self.rates.append(optimizer.param_groups[0]["lr"])
        with torch.no_grad():
            self.p.clamp_(-self.limit, self.limit)

    def scale(self, optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.mul_(self.limit)


def test_a_hook_that_goes_or_is_replaced() -> None:
    def setup(p: nn.Parameter, optimizer: Any) -> Iterator[Any]:
        handle = optimizer.register_step_post_hook(_Clamp(p, 0.5))
        yield from (None, None)
        handle.remove()
        optimizer.register_step_post_hook(_Clamp(p, 0.3))
        yield from (None, None, None, None, None)

    _same(setup)


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_a_hook_of_all_optimizers(register: Any) -> None:
    def setup(p: nn.Parameter, optimizer: Any) -> Iterator[Any]:
        clamp = _Clamp(p, 0.5)
        yield from (None, None)
        handle = register(clamp)
        yield from (None, None)
        clamp.limit = 0.2
        yield None
        handle.remove()
        yield from (None, clamp.steps)

    _same(setup)


@pytest.mark.parametrize("when", ["pre", "post"])
def test_what_a_hook_reads_and_counts(when: str) -> None:
    def setup(p: nn.Parameter, optimizer: Any) -> Iterator[Any]:
        clamp = _Clamp(p, 5.0)
        getattr(optimizer, f"register_step_{when}_hook")(clamp)
        for k in range(7):
            clamp.limit = 5.0 if k < 3 else 0.2
            optimizer.param_groups[0]["lr"] = 0.1 if k < 4 else 0.05
            yield clamp.steps, list(clamp.rates)

    _same(setup)


def test_hooks_that_stay_cost_no_specialization() -> None:
    def setup(p: nn.Parameter, optimizer: Any) -> Iterator[Any]:
        average = torch.ones(3)

        def update(*_: Any) -> None:
            with torch.no_grad():
                average.lerp_(p, 0.1)

        optimizer.register_step_post_hook(update)
        while True:
            yield average.tolist()

    assert len(_same(setup).specializations) == 1


def test_hooks_of_all_optimizers_around_the_step_of_one_that_the_region_makes() -> None:
    optim.SGD([nn.Parameter(torch.ones(1))], 0.1)  # the first one of a process wraps the step of its class

    def run(region: Region) -> list[float]:
        w, factor = nn.Parameter(torch.ones(3)), [1.0]

        def step(x: Tensor) -> Tensor:
            optimizer = optim.SGD([w], 0.1)
            w.grad = None
            (w * x).sum().backward()
            optimizer.step()
            return x * 2

        def scale(*_: Any) -> None:
            w.data.mul_(factor[0])

        f = region(step)
        f(torch.ones(3))
        handle = register_optimizer_step_post_hook(scale)
        f(torch.ones(3))
        factor[0] = 0.5
        f(torch.ones(3))
        handle.remove()
        return w.tolist()

    assert run(st.compile) == run(lambda f: f)


def test_what_a_hook_of_all_modules_reads_and_counts() -> None:
    def run(region: Region) -> tuple[list[float], int]:
        torch.manual_seed(0)
        f, factor, calls = region(nn.Linear(3, 3)), [1.0], [0]

        def hook(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            calls[0] += 1
            return out * factor[0]

        results = []
        with register_module_forward_hook(hook):
            for k in range(4):
                factor[0] = float(k // 2)
                results.append(f(torch.ones(2, 3)).sum().item())
        return results, calls[0]

    assert run(st.compile) == run(lambda f: f)


def test_hooks_of_all_modules_beside_those_of_the_region_are_refused() -> None:
    f = st.compile(nn.Linear(3, 3))
    f.register_forward_hook(lambda module, args, out: out * 2)
    with register_module_forward_hook(lambda module, args, out: out + 1), pytest.raises(st.UnsupportedError):
        f(torch.ones(3))


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_hooks_of_optimizers_are_no_matter_of_a_call_of_a_module(register: Callable[..., Any]) -> None:
    layer = nn.Linear(3, 3)
    region = st.compile(layer)
    region(torch.ones(2, 3))
    register(lambda *_: None)
    assert torch.equal(region(torch.ones(2, 3)), layer(torch.ones(2, 3)))
    assert len(region.specializations) == 1


def test_freezing_a_module_does_not_trace_other_steps_again() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = optim.SGD([p], 0.1)

    def step(x: Tensor) -> Tensor:
        loss = (p * x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    region, frozen = st.compile(step), st.freeze(nn.Linear(3, 3))
    for _ in range(2):
        region(torch.ones(3))
        with torch.no_grad():
            frozen(torch.ones(2, 3))
    assert len(region.specializations) == 1
