"""What a scenario is: a backward, written once, that eager mode runs for the expected gradients and hook logs.

A scenario is a function that makes a step: ``make(log) -> step``, and ``step(n)`` runs forward and backward for batch
size ``n`` and returns tensors to compare. ``log`` takes what hooks saw, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from subclass_trace.zoo import TwoTensor

Log = list[Any]
Step = Callable[[int], list[Any]]
SCENARIOS: dict[str, Callable[[Log], Step]] = {}


def scenario(make: Callable[[Log], Step]) -> Callable[[Log], Step]:
    SCENARIOS[make.__name__] = make
    return make


def of_leaves(*shapes: tuple[int, ...], hook: Callable[[Log, Any], None] = lambda log, w: None) -> Any:
    """Register ``program(log, n, *leaves)``, which runs a backward: the step compares what it returns, and the gradients.

    ``hook`` is called with the last leaf when it is made.
    """

    def add(program: Callable[..., list[Any] | None]) -> Any:
        def make(log: Log) -> Step:
            leaves = [leaf(*shape, seed=2 + 6 * k) for k, shape in enumerate(shapes)]
            hook(log, leaves[-1])

            def step(n: int) -> list[Any]:
                for x in leaves:
                    x.grad = None
                return [*(program(log, n, *leaves) or ()), *(x.grad for x in leaves)]

            return step

        make.__name__ = program.__name__
        return scenario(make)

    return add


def data(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def leaf(*shape: int, seed: int = 2) -> torch.Tensor:
    return data(*shape, seed=seed).requires_grad_()


def note(log: Log, name: str) -> Callable[[Any], None]:
    """A hook that writes down its name and a checksum of what it saw."""

    def hook(grad: Any) -> None:
        log.append((name, checksum(grad)))

    return hook


def close(a: Any, b: Any) -> bool:
    """Are two rows of a log the same, but for rounding?"""
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(close, a, b))
    return abs(a - b) <= 1e-4 * (1 + abs(b)) if isinstance(a, float) else a == b


def checksum(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(checksum(v) for v in value)
    if value is None:
        return None
    if isinstance(value, TwoTensor):
        return checksum(value.a), checksum(value.b)
    return tuple(value.shape), float(value.detach().to_dense().double().sum())


def trained(
    model: torch.nn.Module, shape: tuple[int, ...], loss: Callable[[Any], Any] = lambda y: y.pow(2).sum()
) -> Step:
    def step(n: int) -> list[Any]:
        model.zero_grad()
        loss(model(data(n, *shape))).backward()
        return [p.grad for p in model.parameters()]

    return step


class Hooks(torch.autograd.graph.saved_tensors_hooks):
    def __init__(
        self, log: Log, pack: Callable[[Any], Any] = lambda t: t.clone(), unpack: Callable[[Any], Any] = lambda x: x
    ):
        numbers = iter(range(10**6))

        def logged_pack(t: torch.Tensor) -> Any:
            k = next(numbers)
            log.append(("pack", k, tuple(t.shape)))
            return k, pack(t)

        def logged_unpack(packed: Any) -> torch.Tensor:
            log.append(("unpack", packed[0]))
            return unpack(packed[1])

        super().__init__(logged_pack, logged_unpack)
