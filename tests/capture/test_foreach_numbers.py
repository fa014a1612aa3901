"""List operations that take their numbers in one tensor: the numbers are those of the call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor


def tensors(seed: int, dtype: torch.dtype = torch.float32, pairs: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    plain = [torch.rand(n, 2, generator=generator).add(0.5).to(dtype) for n in (1, 3)]
    return [TwoTensor(t, t + 1) for t in plain] if pairs else plain


def dense(values: Any) -> list[torch.Tensor]:
    return [t for v in values for t in ((v.a, v.b) if isinstance(v, TwoTensor) else (v,))]


@pytest.mark.parametrize("pairs", [False, True], ids=["plain", "pairs"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["addcdiv", "addcmul", "addcdiv_", "addcmul_"])
def test_numbers_of_each_call(name: str, dtype: torch.dtype, pairs: bool) -> None:
    operation = getattr(torch, f"_foreach_{name}")

    def update(xs, ys, zs, numbers):
        out = operation(xs, ys, zs, numbers * 2)
        return xs if name.endswith("_") else out

    region = st.compile(update)
    for call in range(3):
        numbers = torch.tensor([0.5, -1.5]) * (call + 1)
        arguments = [[tensors(seed, dtype, pairs) for seed in range(3)] for _ in range(2)]
        expected, got = update(*arguments[0], numbers), region(*arguments[1], numbers)
        assert all(torch.equal(a, b) for a, b in zip(dense(expected), dense(got), strict=True))
        assert all(torch.equal(a, b) for a, b in zip(dense(arguments[0][0]), dense(arguments[1][0]), strict=True))
    assert len(region.specializations) == 1


def test_one_number_for_each_tensor() -> None:
    with pytest.raises(RuntimeError, match="scalar"):
        st.compile(torch._foreach_addcdiv)(tensors(0), tensors(1), tensors(2), torch.ones(3))
