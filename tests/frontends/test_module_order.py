"""Guards compare the order of a module's children and tensors; torch's cache of parametrizations is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import subclass_trace as st

Tensor = torch.Tensor


def test_children() -> None:
    table = nn.ModuleDict({"a": nn.Tanh(), "b": nn.Linear(2, 2)})

    def through(x: Tensor) -> Tensor:
        for layer in table.values():
            x = layer(x)
        return x

    row = nn.Sequential()
    row.add_module("a", nn.Tanh())
    row.add_module("b", nn.Linear(2, 2))
    x = torch.ones(1, 2)
    regions = (st.compile(through), through), (st.compile(row), row)
    for _ in range(2):
        for region, eager in regions:
            assert torch.equal(region(x), eager(x))
        table["a"] = table.pop("a")
        row.add_module("a", row._modules.pop("a"))


def test_tensors() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.full((2,), float(n))) for n in (1, 2))
            self.register_buffer("c", torch.full((2,), 3.0))
            self.register_buffer("d", torch.full((2,), 4.0))

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x + t for t in (*self.parameters(), *self.buffers())])

    module, bare = Both(), nn.Module()
    bare.register_buffer("a", torch.ones(2))
    bare.register_buffer("b", torch.zeros(2))
    rows = nn.ParameterDict({"a": torch.ones(2), "b": torch.zeros(2)})
    functions = (
        module,
        lambda x: torch.stack([x + t for t in bare.buffers()]),
        lambda x: torch.stack([x + t for t in rows.values()]),
    )
    regions = [st.compile(f) for f in functions]
    x = torch.ones(2)
    for _ in range(2):
        for region, eager in zip(regions, functions, strict=True):
            assert torch.equal(region(x), eager(x))
        module.a = nn.Parameter(module._parameters.pop("a").detach())
        held = bare.a
        del bare.a
        bare.register_buffer("a", held)
        rows["a"] = rows.pop("a")


def test_cached_parametrizations() -> None:
    class Noisy(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return w + torch.rand_like(w)

    layer = nn.Linear(2, 2, bias=False)
    parametrize.register_parametrization(layer, "weight", Noisy())
    x = torch.ones(1, 2)
    region = st.compile(lambda x: layer(x) - layer(x))
    for _ in range(2):  # the first call inside, and a later one
        with parametrize.cached():
            with pytest.raises(st.SideEffectError, match="calls id"):
                region(x)
            assert type(layer.weight) is Tensor and torch.equal(layer(x), layer(x))
        assert region(x).any()
    assert len(region.specializations) == 1
