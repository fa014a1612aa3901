"""Saved-tensor hooks, checkpoints, custom autograd Functions, in-place operations on views, sparse gradients."""

from __future__ import annotations

from typing import Any

import torch
from scenario import Hooks, Log, Step, data, note, of_leaves, scenario, trained
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


# -------------------------------------------------------------------------------------------- custom autograd Functions
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float, y: torch.Tensor) -> Any:
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return x * y * factor, x + 1

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        x, y = ctx.saved_tensors
        return g * y * ctx.factor + h, None, g * x * ctx.factor


class Choosy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.seen = []
        return x.sin(), y.cos(), x * y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.seen.append([g is None for g in grads])
        return None if grads[0] is None else grads[0] * 2, None


@of_leaves((3,), (3,), hook=lambda log, v: v.register_hook(note(log, "v")))
def undefined_gradients(log: Log, n: int, w: Any, v: Any) -> None:
    a, b, c = Choosy.apply(w, v)
    first, second = Scaled.apply(w * n, 2.0, v)
    (a + second).sum().backward()


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, log: Log) -> torch.Tensor:
        ctx.mark_dirty(x)
        ctx.log = log
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        ctx.log.append("twice")
        return g * 2, None


@of_leaves((4, 4))
def in_place_custom_function_on_view(log: Log, n: int, w: Any) -> None:
    y = w * n
    Twice.apply(y[1:3], log)
    y.sin().sum().backward()


@scenario
def sparse_gradients(log: Log) -> Step:
    table = torch.nn.Embedding(6, 3, sparse=True)
    mixed = torch.nn.Embedding(6, 3, sparse=True)

    def step(n: int) -> list[Any]:
        table.zero_grad(), mixed.zero_grad()
        tokens = torch.arange(n).remainder(6)
        (table(tokens).sum() + table(tokens).pow(2).sum()).backward()
        (mixed(tokens).sum() + mixed.weight.sin().sum()).backward()
        return [table.weight.grad.coalesce().to_dense(), mixed.weight.grad.to_dense()]

    return step
