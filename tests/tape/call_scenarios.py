"""Ways to call a backward, and hooks of every kind, callbacks, and a backward inside a hook."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from scenario import Log, Step, checksum, data, leaf, note, of_leaves, scenario


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


# ---------------------------------------------------------------------------------------------------------------- hooks
@scenario
def many_leaves_ready_at_once(log: Log) -> Step:
    """Leaves have one priority: their order is that of the engine's heap."""
    params = [leaf(2, seed=k) for k in range(9)]
    for k, p in enumerate(params):
        p.register_hook(note(log, f"{k}"))

    def step(n: int) -> list[Any]:
        for p in params:
            p.grad = None
        (torch.cat(params).sin() * n).sum().backward()
        torch.stack([params[k] for k in (3, 1, 4, 5, 2, 6)]).prod(0).sum().backward()
        return [p.grad for p in params]

    return step


@of_leaves((3,), (3,), (3,))
def multi_gradient_hooks(log: Log, n: int, a: Any, b: Any, c: Any) -> None:
    x, y, register = a * b, b * c, torch.autograd.graph.register_multi_grad_hook
    handles = [
        register((x, y, a), lambda grads: log.append(("all", checksum(tuple(grads))))),
        register((x, y), lambda grad: log.append(("any", checksum(grad))), mode="any"),
    ]
    (x * y * n).sum().backward()
    for handle in handles:
        handle.remove()


@scenario
def post_accumulate_hooks(log: Log) -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))

    def update(p: torch.Tensor) -> None:
        log.append(("update", checksum(p.grad)))
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.01)
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)

    def step(n: int) -> list[Any]:
        model(data(n, 4)).pow(2).sum().backward()
        return [p.detach().clone() for p in model.parameters()]

    return step


@scenario
def module_backward_hooks(log: Log) -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    for k, layer in enumerate(model):
        layer.register_full_backward_pre_hook(lambda m, g, k=k: log.append((f"pre {k}", checksum(g))))
        layer.register_full_backward_hook(lambda m, gi, go, k=k: log.append((f"full {k}", checksum(gi), checksum(go))))

    def step(n: int) -> list[Any]:
        model.zero_grad()
        x = data(n, 4).requires_grad_()
        model(x).pow(2).sum().backward()
        return [x.grad, *(p.grad for p in model.parameters())]

    return step


@of_leaves((3,))
def queued_callbacks(log: Log, n: int, w: Any) -> None:
    y, engine = w * n, torch.autograd.Variable

    def last() -> None:
        log.append(("last", checksum(w.grad)))
        engine._execution_engine.queue_callback(lambda: log.append("queued by a callback"))

    def hook(grad: torch.Tensor) -> None:
        log.append("hook")
        engine._execution_engine.queue_callback(last)

    y.register_hook(hook)
    y.sum().backward()
    log.append("after")


@of_leaves((3,), (3,))
def backward_inside_a_hook(log: Log, n: int, w: Any, v: Any) -> None:
    def hook(grad: torch.Tensor) -> None:
        with torch.enable_grad():
            inner = v * 2
            inner.register_hook(note(log, "inner"))
            (inner * grad.detach()).sum().backward()

    y = w * n
    y.register_hook(hook)
    y.sin().sum().backward()
