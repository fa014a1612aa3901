"""Regions of modules of one class share programs: the second layer of a list is not traced, and does what eager does."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import subclass_trace as st
from subclass_trace.zoo import convert_linears

Tensor = torch.Tensor


class Layer(nn.Module):
    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.up, self.down, self.heads, self.act, self.p = nn.Linear(8, 8), nn.Linear(8, 8), 2, F.gelu, 0.0
        vars(self).update(given)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.up(x)).unflatten(-1, (self.heads, -1)).cumsum(-1).flatten(-2)
        return x + F.dropout(self.down(y), self.p, self.training)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Any) -> Tensor:
        ctx.layer = layer
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.layer.heads, None


class Scaled(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return Scale.apply(self.up(x), self)


class Hooked(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        y.register_hook(lambda grad: grad * self.heads)
        return y


class First(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) * (2 if self is FIRST[0] else 3)


class Counts(Layer):
    def forward(self, x: Tensor) -> Tensor:
        self.heads += 1
        return self.up(x) * self.heads


FIRST: list[Any] = [None]
TABLE = {"scale": 2.0}


def first() -> list[nn.Module]:
    made = [First() for _ in range(3)]
    FIRST[0] = made[0]
    return made


def tied(layer: Layer) -> Layer:
    layer.down.weight = layer.up.weight
    return layer


def hooked(layer: Layer, n: float) -> Layer:
    layer.up.register_forward_hook(lambda module, args, out: out * n)
    return layer


#: what makes the layers, and which are not traced
LISTS: dict[str, tuple[Callable[[], list[nn.Module]], str]] = {
    "equal layers": (lambda: [Layer() for _ in range(4)], "-sss"),
    "numbers that decide shapes": (lambda: [Layer(heads=n) for n in (2, 4, 4, 2)], "--ss"),
    "an index, a symbol from the third on": (lambda: [Layer(index=n) for n in range(5)], "---ss"),
    "functions": (lambda: [Layer(act=f) for f in (F.gelu, torch.sin, F.gelu)], "--s"),
    "floats": (lambda: [Layer(p=p) for p in (0.0, 0.5, 0.5, 0.1)], "--s-"),
    "training or not": (lambda: [Layer(p=0.5).train(n % 2 == 0) for n in range(4)], "--ss"),
    "tied parameters": (lambda: [Layer(), tied(Layer()), Layer(), tied(Layer())], "--ss"),
    "frozen parameters": (lambda: [Layer(), Layer().requires_grad_(False), Layer()], "--s"),
    "sizes": (lambda: [nn.Sequential(nn.Linear(8, n), nn.Linear(n, 8)) for n in (8, 4, 8)], "--s"),
    "hooks of their own": (lambda: [hooked(Layer(), n) for n in (2.0, 3.0)], "--"),
    "one table, another table": (lambda: [Layer(t=t) for t in (TABLE, TABLE, {"scale": 2.0}, {"scale": 3.0})], "-ss-"),
    "a global is one of them": (first, "--s"),
    "a custom backward that reads the layer": (lambda: [Scaled(heads=n) for n in (2, 2, 3)], "-s-"),
    "hooks that read the layer": (lambda: [Hooked(heads=n) for n in (2, 2, 3)], "---"),
    "side effects": (lambda: [Counts() for _ in range(2)], "--"),
    "wrappers": (lambda: [convert_linears(Layer()) for _ in range(3)], "-ss"),
}


def shared(regions: list[Any]) -> str:
    """Which of them has a program of an earlier one: "s"."""
    programs = [region.specializations[0].program for region in regions]
    return "".join("s" if program in programs[:k] else "-" for k, program in enumerate(programs))


@pytest.mark.parametrize("by_method", [False, True])
@pytest.mark.parametrize("name", LISTS)
def test_layers_of_a_list(name: str, by_method: bool) -> None:
    gc.collect()  # the regions of other tests
    make, expected = LISTS[name]
    torch.manual_seed(0)
    layers = make()
    torch.manual_seed(0)
    found = make() if name != "a global is one of them" else layers
    regions = [st.compile(layer.forward if by_method else layer, frontend="trace") for layer in found]
    for _ in range(2):
        for layer, own, region in zip(layers, found, regions, strict=True):
            rows = []
            for call, module in ((layer, layer), (region, own)):
                x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
                torch.manual_seed(2)
                y = call(x)
                leaves = [x, *(p for p in module.parameters() if p.requires_grad)]
                grads = torch.autograd.grad(y.sum(), leaves, allow_unused=True)
                rows.append([y, *(g for g in grads if g is not None), torch.tensor(float(getattr(module, "heads", 0)))])
            assert all(map(torch.equal, *rows))
    assert shared(regions) == expected


def test_a_layer_that_changes_is_traced_by_itself() -> None:
    layers = [Layer(p=0.5) for _ in range(3)]
    regions = [st.compile(layer) for layer in layers]
    x = torch.randn(4, 8)
    for region in regions:
        region(x)
    layers[1].eval()
    assert torch.equal(regions[1](x), layers[1](x))
    assert [len(r.specializations) for r in regions] == [1, 2, 1]


def test_other_tangents_and_freed_layers() -> None:
    class Two(Layer):
        def forward(self, x: Tensor) -> Any:
            return self.up(x).sin(), self.down(x).cos()

    layers = [Two() for _ in range(3)]
    regions = [st.compile(layer) for layer in layers]
    x = torch.randn(4, 8)
    for layer, region in zip(layers, regions, strict=True):
        for k in (0, 1):
            given = [*(layer.up, layer.down)[k].parameters()]
            got, want = (torch.autograd.grad(call(x)[k].sum(), given) for call in (region, layer))
            assert all(map(torch.equal, got, want))
    assert shared(regions) == "-ss"
    first, second = weakref.ref(layers[0]), weakref.ref(layers[1])
    del layer, region, regions[:2], layers[:2], given
    gc.collect()
    assert first() is None and second() is None
    assert all(map(torch.equal, regions[0](x), layers[0](x)))
