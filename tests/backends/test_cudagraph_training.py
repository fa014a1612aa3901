"""Training in CUDA graphs with the emulated recorder: forwards that wait, later backwards, whole steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from in_graphs import ONE, events, graphed, mlp, randn, same

Tensor = torch.Tensor


def alike(step: Callable[[Any, int], object], **options: Any) -> tuple[Any, list[str]]:
    """Six times this, with a region and in eager mode: the gradients are the same. The region, and events."""
    model, reference = mlp(), mlp()
    region, recorder = graphed(model, **options)
    for k in range(6):
        step(reference, k)
        step(region, k)
        same([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])
    return region, events(recorder)


def loss_of(m: Any, k: int, size: int = 3) -> Tensor:
    return m(randn(size, 4, seed=k)).square().sum()


def test_micro_batches() -> None:
    region, _ = alike(lambda m, k: [loss.backward() for loss in [loss_of(m, k * 3 + n) for n in range(3)]])
    assert "results of an earlier call are in use" in region.explain()


def test_gradients_that_accumulate() -> None:
    assert alike(lambda m, k: loss_of(m, k).backward())[1][-4:] == [*ONE, *ONE]


def test_a_graph_that_is_retained() -> None:
    def step(m: Any, k: int) -> None:
        loss = loss_of(m, k)
        loss.backward(retain_graph=True)
        loss_of(m, k + 1).backward()
        loss.backward()

    alike(step)


def test_sizes_in_turns_while_another_forward_waits() -> None:
    def step(m: Any, k: int) -> None:
        losses = [loss_of(m, k), loss_of(m, k, 6)]
        for loss in losses if k % 2 else losses[::-1]:
            loss.backward()

    alike(step, dynamic=True)


def test_autocast() -> None:
    def step(m: Any, k: int) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = m(randn(3, 4, seed=k)).float().sum()
        loss.backward()

    assert alike(step)[1][-4:] == [*ONE, *ONE]


def test_second_derivatives() -> None:
    def f(x: Tensor) -> Tensor:
        return (x.sin() * x).sum()

    region, _ = graphed(f)
    for k in range(4):
        found = []
        for g in (f, region):
            x = randn(4, seed=k).requires_grad_()
            (first,) = torch.autograd.grad(g(x), x, create_graph=True)
            found.append([first, *torch.autograd.grad(first.square().sum(), x)])
        same(*found)


def test_the_backward_is_compiled_early() -> None:
    model = mlp()
    region, recorder = graphed(model)
    region.warm_up(randn(3, 4))
    before = [b.call._compiled is not None for b in region.specializations[0].program.backwards.compiled]
    assert before == [True] and events(recorder) == []
    region(randn(3, 4)).sum().backward()
    assert events(recorder) == ["warm", "warm"]


WHOLE = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),  # which asks the device for the number of the step
}


def whole(name: str) -> tuple[Callable[[Tensor], Tensor], torch.nn.Module]:
    """A step of training, and what it trains."""
    model = mlp()
    optimizer = WHOLE[name](model.parameters())

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_step_is_one_recording(name: str) -> None:
    (theirs, reference), (ours, model) = whole(name), whole(name)
    region, recorder = graphed(ours)
    for k in range(8):
        same(theirs(randn(3, 4, seed=k)), region(randn(3, 4, seed=k)))
    same([*reference.parameters()], [*model.parameters()])
    assert recorder.events[-4:] == [*ONE, *ONE] or name == "AdamW"
