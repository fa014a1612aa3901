"""What torch's functions call of the user's, at once or in a function that they give: it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import subclass_trace as st

Tensor = torch.Tensor


class Held:
    factor = [2.0]


def factor() -> float:
    return Held.factor[0]


class Layer(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return y * factor()


class Object:
    def __call__(self, y: Tensor) -> Tensor:
        return y * factor()


LAYER, OBJECT = nn.Sequential(Layer()), Object()
BATCHED = vmap(lambda y: y * factor())
OF_LAYER = grad(lambda y: LAYER(y * y).sum())

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "vmap of a layer": lambda x: vmap(LAYER)(x),
    "vmap of an object": lambda x: vmap(OBJECT)(x),
    "vmap of a method": lambda x: vmap(LAYER.forward)(x),
    "vmap, made before": lambda x: BATCHED(x),
    "grad, made before": lambda x: OF_LAYER(x),
    "grad in vmap": lambda x: vmap(grad(lambda y: (LAYER(y) * y).sum()))(x.view(2, 1)),
    "jacrev": lambda x: jacrev(LAYER)(x),
    "jacfwd": lambda x: jacfwd(OBJECT)(x),
    "hessian": lambda x: hessian(lambda y: (LAYER(y) ** 2).sum())(x),
    "vjp": lambda x: vjp(LAYER, x)[1](x)[0],
    "jvp": lambda x: jvp(LAYER, (x,), (x,))[1],
    "autograd.functional": lambda x: torch.autograd.functional.jacobian(LAYER, x),
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(LAYER, x, use_reentrant=False),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_what_it_reads_is_compared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = PROGRAMS[name], torch.tensor([1.0, 3.0])
    region = st.compile(program, frontend="trace")
    for value in (2.0, 2.0, 3.0, 4.0, 2.0):
        monkeypatch.setattr(Held, "factor", [value])
        assert torch.equal(region(x), program(x))
    assert region.specializations
