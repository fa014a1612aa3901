"""torch's own test wrapper, ``torch.testing._internal.two_tensor.TwoTensor``: training against eager, nested too."""

from __future__ import annotations

import copy

import pytest
import torch
from spmd import difference, seen, values
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import subclass_trace as st


def two(*shape: int, depth: int = 1, seed: int = 0) -> torch.Tensor:
    """TwoTensors of TwoTensors, ``depth`` levels, over different dense tensors."""
    if depth == 0:
        return values(*shape, seed=seed)
    return TwoTensor(two(*shape, depth=depth - 1, seed=2 * seed + 1), two(*shape, depth=depth - 1, seed=2 * seed + 2))


def model_of(depth: int) -> nn.Module:
    """An MLP whose parameters are wrapped."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    for k, module in enumerate(m for m in model.modules() if not list(m.children())):
        for j, (name, p) in enumerate(list(module.named_parameters())):
            setattr(module, name, nn.Parameter(two(*p.shape, depth=depth, seed=10 * k + j)))
    return model


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_training(depth, momentum) -> None:
    start = model_of(depth)
    region = st.compile(loss)
    sides = []
    for f in (loss, region):
        model = copy.deepcopy(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        curve = []
        for step in range(4):
            value = f(model, two(5, 8, depth=depth, seed=50 + step))
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            curve.append(seen(value))
        sides.append({"curve": curve, "parameters": [seen(p) for p in model.parameters()]})
    found = difference(*sides, 1e-6)
    assert found is None, found
    assert len(region.specializations) == 1, region.explain()
    (only,) = region.specializations
    assert only.plan.inputs.leaf_count == 2**depth * (1 + len(list(start.parameters())))
