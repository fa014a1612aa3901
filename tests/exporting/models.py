"""Modules that tests export: (name, makes the module, makes its arguments)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from subclass_trace.subclass.flatten import flatten
from subclass_trace.zoo import PackedInt4, TwoTensor, convert_linears


def two(module: nn.Module) -> nn.Module:
    """Each matrix becomes a `TwoTensor`; one that is shared stays so."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, p in list(part._parameters.items()):
            if p is not None and p.dim() == 2:
                if id(p) not in made:
                    made[id(p)] = nn.Parameter(TwoTensor(p.detach().clone(), p.detach().clone() * 2))
                part._parameters[name] = made[id(p)]
    return module


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("mask", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        self.steps.add_(1)
        return {"y": self.last(torch.tanh(self.first(x))) * scale * self.mask, "x": x, "row": x[0]}


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return self.last(self.norm(x)), x.shape[0]


@dataclasses.dataclass
class Scored:
    score: torch.Tensor
    name: str


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unused, self.last = nn.Linear(4, 2), nn.Linear(4, 2)
        self.table = torch.arange(4.0)

    def forward(self, batch: dict[str, Any], factors: list[torch.Tensor]) -> Scored:
        x = batch["x"] * factors[0] + factors[1] + self.table + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return Scored(self.last(x), "scored")


class Shared(nn.Module):
    """Two weights with one inner tensor."""

    def __init__(self) -> None:
        super().__init__()
        scale = torch.ones(4, 4)
        self.a = nn.Parameter(TwoTensor(torch.rand(4, 4), scale))
        self.b = nn.Parameter(TwoTensor(torch.rand(4, 4), scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.a + x @ self.b


def _int4() -> nn.Module:
    layer = nn.Linear(8, 4)
    layer.weight = nn.Parameter(PackedInt4.quantize(layer.weight.detach()), requires_grad=False)
    return layer


X = torch.linspace(-1, 1, 20).reshape(5, 4)
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]], dict[str, Any]]] = {
    "dense": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), lambda: (X,), {}),
    "wrapped weights": (lambda: two(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), lambda: (X,), {}),
    "wrapped arguments": (lambda: nn.Linear(4, 4), lambda: (TwoTensor(X, X + 1),), {}),
    "tied, buffers": (lambda: two(Tied()), lambda: (X,), {"scale": 2.0}),
    "batch norm": (lambda: two(Normed()), lambda: (X,), {}),
    "batch norm, evaluated": (lambda: two(Normed()).eval(), lambda: (X,), {}),
    "structures, constants": (Structured, lambda: ({"x": X, "name": "a"}, [X * 2, X + 1]), {}),
    "one inner tensor of two weights": (Shared, lambda: (X,), {}),
    "int4": (_int4, lambda: (torch.randn(3, 8),), {}),
    "fp8": (
        lambda: convert_linears(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).bfloat16()).eval(),
        lambda: (torch.linspace(-1, 1, 256).reshape(16, 16).bfloat16(),),
        {},
    ),
}


def dense(value: Any) -> Iterator[Any]:
    """The dense tensors and numbers of a value."""
    value = vars(value) if hasattr(value, "score") else value
    for leaf in pytree.tree_leaves(value):
        yield from flatten(leaf)[0] if isinstance(leaf, torch.Tensor) else [leaf]


def close(found: Any, expected: Any) -> None:
    a, b = [*dense(found)], [*dense(expected)]
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y) if isinstance(y, torch.Tensor) else (x == y) or pytest.fail(f"{x} {y}")
