"""Regions of many kinds, made afresh with the same numbers: name -> (function or module, arguments, does it train?)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from subclass_trace.zoo import TwoTensor

SCALE = 0.5


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


class Layers(nn.Module):
    def __init__(self, wrap: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.norm = nn.BatchNorm1d(8)
        for layer in self.layers if wrap else ():
            w = layer.weight.detach()
            layer.weight = nn.Parameter(TwoTensor(w.clone(), w * 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + scaled(F.gelu(layer(x)))
        return self.norm(x)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.seen, self.calls = nn.Parameter(torch.ones(3)), [], 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append("call")
        return (self.weight * x).sum()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 3 * ctx.saved_tensors[0] * grad


def step(train: bool = True) -> Any:
    """A whole training step: the optimizer's state is keyed by parameters."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for p in model.parameters():  # its state is there
        p.grad = torch.ones_like(p)
    optimizer.step()

    def train_step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    train_step.model = model
    return train_step


def _leaf(*size: int) -> torch.Tensor:
    return torch.randn(*size, requires_grad=True)


def view(x: torch.Tensor) -> Any:
    return x[1:, ::2], x.t()


REGIONS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "dense": lambda: (Layers(), (_leaf(4, 8),)),
    "wrapped": lambda: (Layers(wrap=True), (_leaf(4, 8),)),
    "inference": lambda: (Layers(wrap=True).eval().requires_grad_(False), (torch.randn(4, 8),)),
    "counts": lambda: (Counter(), (torch.randn(3),)),
    "views": lambda: (view, (TwoTensor(torch.randn(4, 4), torch.randn(4, 4)),)),
    "custom": lambda: (lambda x: Doubled.apply(x) + 1, (_leaf(3),)),
    "random": lambda: (lambda x: F.dropout(x, 0.5), (torch.ones(64),)),
    "step": lambda: (step(), (torch.randn(3, 4),)),
}


def make(name: str) -> tuple[Any, tuple[Any, ...]]:
    """The region and its arguments."""
    torch.manual_seed(0)
    return REGIONS[name]()


def use(function: Any, args: tuple[Any, ...]) -> list[Any]:
    """What a call gives, its gradients, and what it leaves behind, in plain numbers."""
    torch.manual_seed(1)
    out = function(*args)
    outs = out if isinstance(out, tuple) else (out,)
    for o in outs:
        if o.requires_grad:
            o.sum().backward(retain_graph=True)
    module = getattr(function, "model", function)
    held = [*module.state_dict().values()] if isinstance(module, nn.Module) else []
    held += [p.grad for p in module.parameters()] if isinstance(module, nn.Module) else []
    found = [_numbers(t) for t in (*outs, *(a.grad for a in args), *held)]
    return [*found, getattr(module, "calls", 0), [*getattr(module, "seen", ())]]


def _numbers(t: torch.Tensor | None) -> Any:
    if t is None:
        return None
    if type(t).__name__ == "AsyncCollectiveTensor":
        t = t.wait()
    if hasattr(t, "__tensor_flatten__"):
        inner = [getattr(t, name) for name in t.__tensor_flatten__()[0]]
        return [_numbers(value) for value in inner if isinstance(value, torch.Tensor)]
    return t.detach().double().tolist()
