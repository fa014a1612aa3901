"""Shapes with numbers from inside tensors, that do not fit: eager's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
SHAPES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "view": lambda x, k: x.view(k, -1),
    "view, as a tuple": lambda x, k: x.view((-1, k)),
    "view, all given": lambda x, k: x.view(k, 3),
    "reshape": lambda x, k: x.reshape(-1, k) * 2,
    "by name": lambda x, k: torch.reshape(x, shape=(k, 2, -1)),
}


def outcome(f: Any, x: Tensor, k: int) -> Any:
    try:
        out = f(x, torch.tensor(k))
    except Exception as error:
        return type(error), str(error)
    return [(list(t.shape), t.flatten().tolist()) for t in ((out.a, out.b) if isinstance(out, TwoTensor) else (out,))]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("wrapped", [False, True])
def test_as_in_eager(name: str, wrapped: bool) -> None:
    def f(x: Tensor, k: Tensor) -> Tensor:
        return SHAPES[name](x, int(k))

    region = st.compile(f, backend="eager")
    for rows in (4, 0):
        x = torch.arange(rows * 3.0).view(rows, 3)
        x = TwoTensor(x, x + 1) if wrapped else x
        for k in (2, 4, 1, 3, 12, 0, 5, -1, -2):
            expected = outcome(f, x, k)
            if k == -1 and isinstance(expected, list):  # a size, which is taken to be a number of elements
                continue
            assert outcome(region, x, k) == expected, (rows, k)
    assert len(region.specializations) <= 2
