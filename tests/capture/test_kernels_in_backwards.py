"""Backwards of operations that torch has no fake kernel for, while sizes are symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def _learnable(x: Tensor) -> Tensor:
    scale, zero = torch.full((1,), 0.3), torch.zeros(1)
    return torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero, -8, 7, 1.0)


#: function, shape for a size, what explain() says where there is not one specialization for all sizes
BACKWARDS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[int], tuple[int, ...]], str]] = {
    "gamma": (lambda x: torch.distributions.Gamma(x, 1.0, validate_args=False).rsample(), lambda n: (n,), ""),
    "gamma, transposed": (lambda x: torch._standard_gamma(x.t()), lambda n: (n, 3), ""),
    "chi2": (lambda x: torch.distributions.Chi2(x, validate_args=False).rsample(), lambda n: (n, 2), ""),
    "pooling": (
        lambda x: F.fractional_max_pool3d(x, 2, output_size=(2, 2, 2)),
        lambda n: (1, 2, n, 5, n),
        "4 specializations",
    ),
    "fake quantization": (_learnable, lambda n: (n, 3), "no kernel for fake tensors"),
}


def _run(f: Callable[[Tensor], Tensor], shape: tuple[int, ...], wrapped: bool) -> tuple[str, ...]:
    torch.manual_seed(0)
    dense = torch.rand(shape) + 1
    x = (TwoTensor(dense, dense + 1) if wrapped else dense).requires_grad_()
    out = f(x)
    (out * out.detach()).sum().backward()
    assert x.grad is not None
    return str(out.detach()), str(x.grad), str(x.grad.stride()), str(torch.rand(1))


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", BACKWARDS)
def test_as_in_eager(name: str, dynamic: bool, wrapped: bool) -> None:
    """Values, gradients and the random stream, also where the size has to be a number."""
    f, shape, said = BACKWARDS[name]
    region: Any = st.compile(f, dynamic=dynamic or None)
    if dynamic and "no kernel" in said:
        with pytest.raises(st.UnsupportedError, match=said):
            _run(region, shape(5), wrapped)
        return
    for n in (5, 6, 7, 9):
        assert _run(region, shape(n), wrapped) == _run(f, shape(n), wrapped)
    if "specializations" in said:
        assert said in region.explain()
    elif not said:
        assert len(region.specializations) <= 2
