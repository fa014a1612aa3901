"""Saved-tensor hooks and checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from scenario import Hooks, Log, Step, data, of_leaves, scenario, trained
from torch.utils.checkpoint import checkpoint


@scenario
def compressed_activations(log: Log) -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sigmoid(), torch.nn.Linear(4, 4), torch.nn.Softmax(-1))

    def step(n: int) -> list[Any]:
        with Hooks(log, lambda t: t.detach().bfloat16(), lambda t: t.float()):
            return trained(model, (4,))(n)

    return step


@scenario
def saved_on_cpu(log: Log) -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    def step(n: int) -> list[Any]:
        with torch.autograd.graph.save_on_cpu():
            return trained(model, (4,))(n)

    return step


@scenario
def checkpoint_without_reentry(log: Log) -> Step:
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def part(layer: Any, x: torch.Tensor) -> torch.Tensor:
        log.append("forward")
        return layer(x).tanh().sin()

    def step(n: int) -> list[Any]:
        layers.zero_grad()
        x = data(n, 4)
        for layer in layers:
            x = checkpoint(part, layer, x, use_reentrant=False)
        x.sum().backward()
        return [p.grad for p in layers.parameters()]

    return step


@scenario
def checkpoint_with_reentry(log: Log) -> Step:
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def step(n: int) -> list[Any]:
        layers.zero_grad()
        x = data(n, 4).requires_grad_()
        y = x
        for layer in layers:
            y = checkpoint(lambda t, layer=layer: (log.append("forward"), layer(t).tanh())[1], y, use_reentrant=True)
        y.sum().backward()
        return [x.grad, *(p.grad for p in layers.parameters())]

    return step


@of_leaves((4, 4))
def nested_checkpoints(log: Log, n: int, w: Any) -> None:
    def inner(t: torch.Tensor) -> torch.Tensor:
        log.append("inner")
        return (t @ w).tanh()

    def outer(t: torch.Tensor) -> torch.Tensor:
        log.append("outer")
        return checkpoint(inner, t, use_reentrant=False).sin()

    checkpoint(outer, data(n, 4), use_reentrant=False).sum().backward()
