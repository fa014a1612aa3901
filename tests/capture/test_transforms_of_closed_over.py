"""Transforms of ``torch.func`` on tensors that a region closes over: with their gradients, beside other uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

import subclass_trace as st
from subclass_trace.torch_api.versions import TORCH_HERE

Tensor = torch.Tensor
Weights = dict[str, Tensor]

PROGRAMS: dict[str, Callable[[Weights, Tensor], Any]] = {
    "vmap": lambda d, x: vmap(torch.sin)(d["w"]),
    "vmap beside another use": lambda d, x: vmap(torch.sin)(d["w"]) + d["w"] * 2,
    "vmap over a dict": lambda d, x: vmap(lambda p: p["w"].cos())(d) * x,
    "closed over by what is mapped": lambda d, x: vmap(lambda row: row * d["w"][0])(x),
    "grad": lambda d, x: grad(lambda v: (v * v * v).sum())(d["w"]) * x,
    "grad of a closure": lambda d, x: grad(lambda v: (v * d["w"]).sin().sum())(x),
    "jvp": lambda d, x: jvp(torch.sin, (d["w"],), (x,))[1],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str) -> None:
    seen = []
    for compile in (lambda f: f, st.compile):
        weights = {"w": torch.arange(6.0).view(3, 2).requires_grad_()}
        region = compile(lambda x, weights=weights: PROGRAMS[name](weights, x))
        for k in range(2):
            x = torch.full((3, 2), 1.0 + k)
            out = region(x)
            assert out.requires_grad
            out.sum().backward()
        seen.append((out.tolist(), weights["w"].grad.tolist()))  # type: ignore[union-attr]
    assert seen[0] == seen[1]


def test_an_ensemble() -> None:
    seen = []
    for compile in (lambda f: f, st.compile):
        torch.manual_seed(0)
        models = [nn.Linear(3, 2) for _ in range(3)]
        parameters, _ = stack_module_state(models)  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(parameters.values(), 0.1)

        def step(x: Tensor, models: Any = models, parameters: Any = parameters, optimizer: Any = optimizer) -> Tensor:
            one = models[0]
            out = vmap(lambda held, x: functional_call(one, held, (x,)), (0, None))(parameters, x)
            optimizer.zero_grad()
            loss: Tensor = out.square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = compile(step)
        losses = [run(torch.ones(4, 3)).item() for _ in range(3)]
        seen.append((losses, [p.tolist() for p in parameters.values()]))
    assert seen[0] == seen[1]


def _without(row: Tensor, k: Tensor) -> Tensor:
    out = row.clone()
    out[k] = 0.0
    return out


INDEXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "read": lambda x, i: vmap(lambda row, k: row[k])(x, i),
    "with a new dimension": lambda x, i: vmap(lambda row, k: row[k, None])(x, i),
    "written": lambda x, i: vmap(_without)(x, i),
    "inside of grad": lambda x, i: grad(lambda v: vmap(lambda row, k: row[k])(v, i).sin().sum())(x),
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_that_vmap_maps_is_no_number(name: str) -> None:
    region = st.compile(INDEXED[name])
    for n in (2, 2, 4, 5):
        x, i = torch.randn(n, 3), torch.randint(0, 3, (n,))
        assert region(x, i).equal(INDEXED[name](x, i))
    numbers = name == "written" and TORCH_HERE >= (2, 15)  # whose rule for index_put takes sizes as numbers
    assert len(region.specializations) <= 2 + numbers
