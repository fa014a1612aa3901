"""Models and arithmetic, without hooks; wrapper parameters and activations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from scenario import Hooks, Log, Step, checksum, data, leaf, note, of_leaves, scenario, trained

from subclass_trace.zoo import TwoTensor


@scenario
def mlp(log: Log) -> Step:
    return trained(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)), (8,))


@scenario
def convolution_and_pooling(log: Log) -> Step:
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    return trained(torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(36, 2)), (3, 8, 8))


@scenario
def lstm(log: Log) -> Step:
    return trained(torch.nn.LSTM(4, 5, batch_first=True), (3, 4), lambda y: y[0].sum())


@scenario
def transformer_layer(log: Log) -> Step:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return trained(layer, (4, 8))


@scenario
def embedding_and_cross_entropy(log: Log) -> Step:
    table, out = torch.nn.Embedding(10, 6), torch.nn.Linear(6, 10)

    def step(n: int) -> list[Any]:
        tokens = torch.arange(n * 2).remainder(10).view(n, 2)
        table.zero_grad(), out.zero_grad()
        F.cross_entropy(out(table(tokens)).flatten(0, 1), tokens.flatten()).backward()
        return [table.weight.grad, *(p.grad for p in out.parameters())]

    return step


@scenario
def dropout(log: Log) -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))

    def step(n: int) -> list[Any]:
        torch.manual_seed(n)
        return trained(model, (8,))(n)

    return step


@of_leaves((4, 6))
def views_joins_and_reductions(log: Log, n: int, w: Any) -> None:
    a, b, c = (data(n, 4) @ w).split(2, dim=1)
    y = torch.cat([a.t().reshape(-1), b.flip(0).flatten(), c.cumsum(0).contiguous().view(-1)])
    (y.logsumexp(0) + y[::2].std() + c.amax()).backward()


@of_leaves((3,), (3,))
def added_leaves_keep_own_gradients(log: Log, n: int, a: Any, b: Any) -> None:
    (a + b).backward(torch.full((3,), float(n)))
    a.grad.mul_(2)


@scenario
def broadcast_and_mixed_dtypes(log: Log) -> Step:
    a = leaf(4, 1)
    b = leaf(3, seed=4).detach().double().requires_grad_()
    s = torch.tensor(2.0, requires_grad=True)

    def step(n: int) -> list[Any]:
        a.grad = b.grad = s.grad = None
        ((a * b) * s + a.to(torch.float64).expand(4, 3)).sum().backward()
        return [a.grad, b.grad, s.grad]

    return step


# ------------------------------------------------------------------------------------------------------------- wrappers
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
