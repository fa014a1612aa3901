"""Wrapper parameters and activations."""

from __future__ import annotations

from typing import Any

import torch
from scenario import Hooks, Log, Step, checksum, data, note, scenario

from subclass_trace.zoo import TwoTensor


def two(*shape: int, seed: int = 1) -> TwoTensor:
    return TwoTensor(data(*shape, seed=seed), data(*shape, seed=seed + 50))


@scenario
def wrapper_parameters(log: Log) -> Step:
    w = torch.nn.Parameter(two(4, 3))
    b = torch.nn.Parameter(two(3, seed=3))
    w.register_hook(note(log, "w"))
    b.register_post_accumulate_grad_hook(lambda p: log.append(("b", checksum(p.grad))))

    def step(n: int) -> list[Any]:
        w.grad = b.grad = None
        (data(n, 4) @ w + b).relu().sum().backward()
        return [w.grad, b.grad]

    return step


@scenario
def wrapper_activations(log: Log) -> Step:
    def step(n: int) -> list[Any]:
        x = two(n, 4).requires_grad_()
        y = (x * 2.0).sin()
        y.register_hook(note(log, "y"))
        y.grad_fn.register_prehook(lambda grads: log.append(("pre", checksum(grads))))
        z = y.mul(y)
        z.retain_grad()
        z.sum().backward()
        return [x.grad, z.grad]

    return step


@scenario
def wrappers_saved_under_hooks(log: Log) -> Step:
    w = torch.nn.Parameter(two(3, 3))

    def step(n: int) -> list[Any]:
        w.grad = None
        with Hooks(log, lambda t: t, lambda t: t):
            y = (w * w).sin() * 2.0
        y.sum().backward()
        return [w.grad]

    return step


@scenario
def wrapper_accumulation(log: Log) -> Step:
    w = torch.nn.Parameter(two(3, 3))

    def step(n: int) -> list[Any]:
        for _ in range(2):
            (w * w * float(n)).sum().backward()
        return [w.grad.clone()]

    return step
