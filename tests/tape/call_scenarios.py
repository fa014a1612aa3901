"""Ways to call a backward: for some leaves, several roots, retained graphs, gradients of gradients."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from scenario import Log, Step, data, leaf, note, of_leaves, scenario


@of_leaves((4,))
def second_derivatives(log: Log, n: int, w: Any) -> list[Any]:
    y = (w * n).sin().exp().sum()
    (g,) = torch.autograd.grad(y, w, create_graph=True)
    assert g.requires_grad
    (g * g).sum().backward()
    return [g]


@of_leaves((4,))
def backward_with_a_graph(log: Log, n: int, w: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this makes a reference cycle
        (w * n).sin().pow(3).sum().backward(create_graph=True)
    first = w.grad
    w.grad = None
    (first * w).sum().backward()
    return [first]


@scenario
def backward_under_no_grad(log: Log) -> Step:
    w = leaf(4)

    def step(n: int) -> list[Any]:
        y = (w * n).exp().sum()
        with torch.no_grad():
            y.backward()
        return [w.grad.clone()]

    return step


@scenario
def changing_numbers_of_hooks(log: Log) -> Step:
    w = leaf(4)
    count = iter(range(1, 100))

    def step(n: int) -> list[Any]:
        w.grad = None
        y = w * 3
        for k in range(1 + next(count) % 2):
            y.register_hook(note(log, f"{k}"))
        y.sin().sum().backward()
        return [w.grad]

    return step


@scenario
def functional_transforms(log: Log) -> Step:
    w = data(4)

    def step(n: int) -> list[Any]:
        f = lambda x: (x.sin() * n).sum()
        return [torch.func.vmap(torch.func.grad(f))(torch.stack([w, w * 2])), torch.func.jacrev(torch.sin)(w)]

    return step


@scenario
def batched_gradients(log: Log) -> Step:
    w = leaf(3)

    def step(n: int) -> list[Any]:
        y = (w * n).sin() * w
        return list(torch.autograd.grad(y, w, torch.eye(3), is_grads_batched=True))

    return step
