"""Random operations draw eager's numbers whatever the memory layout, and put them where eager does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5),
    "bernoulli_": lambda x: (x * 1).bernoulli_(0.3),
    "bernoulli_ of a tensor": lambda x: (x * 1).bernoulli_(torch.full(x.shape, 0.3)),
    "uniform_": lambda x: (x * 1).uniform_(),
    "normal_": lambda x: (x * 1).normal_(),
    "exponential_": lambda x: (x * 1).exponential_(),
    "rand_like": torch.rand_like,
}
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.rand(2, 3, 4).transpose(1, 2),
    "permuted": lambda: torch.rand(2, 3, 4).permute(2, 0, 1),
    "with holes": lambda: torch.rand(2, 3, 8)[:, :, ::2],
    "channels last": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_draws_in_order_of_memory(name: str, layout: str) -> None:
    function, x = FUNCTIONS[name], LAYOUTS[layout]()
    found = []
    for call in (lambda f: f, st.compile):
        compiled = call(function)
        torch.manual_seed(0)
        found.append(compiled(x))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert found[0].stride() == found[1].stride()


def test_the_mask_of_a_transposed_wrapper() -> None:
    found = []
    for call in (lambda f: f, st.compile):
        x = TwoTensor(torch.ones(3, 4).t(), torch.ones(3, 4).t()).requires_grad_()
        torch.manual_seed(0)
        out = call(lambda x: F.dropout(x, 0.5))(x)
        (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
        found.append([out.a, out.b, grad.a, grad.b])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_rounds_as_in_eager(dtype: torch.dtype, dynamic: bool) -> None:
    f = lambda x: torch.nn.functional.dropout(torch.nn.functional.gelu(x), 0.1)
    compiled = st.compile(f, dynamic=dynamic or None)
    for rows in (8, 5):
        found = []
        for fn in (f, compiled):
            torch.manual_seed(0)
            x = torch.randn(rows, 16).to(dtype).requires_grad_()
            y = fn(x)
            y.square().sum().backward()
            found.append((y.detach(), x.grad, torch.rand(1)))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
