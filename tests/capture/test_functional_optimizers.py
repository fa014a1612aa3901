"""The functions behind torch's optimizers, called in a region, compute with eager's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim.adam import adam
from torch.optim.adamax import adamax
from torch.optim.adamw import adamw
from torch.optim.nadam import nadam

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
COMMON = {"beta1": 0.9, "beta2": 0.99, "lr": 0.1, "weight_decay": 0.01, "eps": 1e-8}
FORMS: dict[str, Any] = {
    "adam": lambda *a, **k: adam(*a[:4], [], a[4], amsgrad=False, maximize=False, **k, **COMMON),
    "adamw": lambda *a, **k: adamw(*a[:4], [], a[4], amsgrad=False, maximize=False, **k, **COMMON),
    "nadam": lambda *a, **k: nadam(*a[:4], [torch.ones(())], a[4], momentum_decay=0.004, **k, **COMMON),
    "adamax": lambda *a, **k: adamax(*a, **k, **COMMON),
}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_as_in_eager(name: str, foreach: bool, wrapped: bool) -> None:
    def step(p: Tensor, g: Tensor, m: Tensor, v: Tensor, count: Tensor) -> None:
        FORMS[name]([p], [g], [m], [v], [count], foreach=foreach)

    def values(of: Any) -> list[Tensor]:
        def one(*numbers: float) -> Tensor:
            t = torch.linspace(*numbers, 7)
            return TwoTensor(t, t * 1.5) if wrapped else t

        state = [one(-1, 1), one(0.1, 0.9), one(0, 0.3), one(0.1, 0.2), torch.tensor(6.0)]
        for _ in range(3):
            of(*state)
        return [leaf for t in state for leaf in ((t.a, t.b) if isinstance(t, TwoTensor) else (t,))]

    torch.testing.assert_close(values(st.compile(step)), values(step), rtol=0, atol=0)
