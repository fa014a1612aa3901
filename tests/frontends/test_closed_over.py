"""Tensors and numbers that a region closes over."""

from __future__ import annotations

import pytest
import torch
from ramps import two

import subclass_trace as st
from subclass_trace.zoo import TwoTensor


def test_closed_over_dense_tensor_is_read_at_each_call() -> None:
    c = torch.ones(2)
    region = st.compile(lambda x: x * c)
    assert region(torch.ones(2)).tolist() == [1, 1]
    c.add_(1)
    assert region(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize(
    "make", [lambda: torch.ones(2), lambda: TwoTensor(torch.ones(2), torch.ones(2))], ids=["dense", "wrapper"]
)
def test_closed_over_tensor_that_requires_grad_gets_its_gradient(make) -> None:
    c = make().requires_grad_()
    region = st.compile(lambda x: (x * c * c).sum())
    for k in (1.0, 2.0):
        region(torch.full((2,), k)).backward(torch.ones_like(c.sum()).detach())
    want = 2.0 * 1 + 2.0 * 2
    grad = c.grad if type(c) is torch.Tensor else c.grad.b
    assert type(c.grad) is type(c) and grad.tolist() == [want, want]


def test_closed_over_name_that_is_bound_to_another_tensor() -> None:
    c = torch.ones(2)
    region = st.compile(lambda x: x * c)
    region(torch.ones(2))
    c = torch.full((2,), 5.0)
    assert region(torch.ones(2)).tolist() == [5, 5]


def test_closed_over_number_that_becomes_a_tensor() -> None:
    c: object = 2
    region = st.compile(lambda x: x * c)
    for c in (2, torch.tensor([3.0, 4.0]), 2.0, TwoTensor(torch.ones(2), torch.zeros(2)), 2):
        torch.testing.assert_close(region(torch.ones(2)), torch.ones(2) * c)


def test_closed_over_python_number_that_changes() -> None:
    box = [2]
    region = st.compile(lambda x: x * box[0])
    assert region(torch.ones(1)).item() == 2
    box[0] = 3
    assert region(torch.ones(1)).item() == 3


def test_closed_over_wrapper_output_and_its_inner() -> None:
    c = two(2)
    region = st.compile(lambda x: (c, c.a, x * c))
    got = region(torch.ones(2))
    assert got[0] is c and got[1] is c.a and type(got[2]) is TwoTensor


def test_an_argument_that_is_also_closed_over() -> None:
    c = torch.ones(2, requires_grad=True)
    st.compile(lambda x: x * c)(c).sum().backward()
    assert c.grad.tolist() == [2, 2]


def test_a_gradient_that_would_be_lost_is_refused() -> None:
    """Where function modes are off, operations take the caller's own tensor, and so does autograd."""
    layer = torch.nn.Linear(3, 3)
    hidden = ValueError(layer.weight)  # where nothing looks for tensors

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            return torch.nn.functional.linear(x, hidden.args[0]) + layer(x)

    x = torch.ones(2, 3)
    with pytest.raises(st.UnsupportedError, match="by ways that cannot be traced"):
        st.compile(f)(x)
    with torch.no_grad():
        assert torch.equal(st.compile(f)(x), f(x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [lambda n: torch.ones(n, 2), lambda n: TwoTensor(torch.ones(n, 2), torch.ones(n, 2))])
def test_the_shape_of_a_tensor_that_a_name_is_bound_to(make, dynamic: bool) -> None:
    c = make(2)
    region = st.compile(lambda: (c * c.shape[0], getattr(c, "a", c).shape[0]), dynamic=dynamic)
    for n in (2, 3, 4, 5):
        c = make(n)
        scaled, rows = region()
        assert rows == n and getattr(scaled, "a", scaled).tolist() == [[float(n)] * 2] * n
    assert len(region.specializations) <= 2
