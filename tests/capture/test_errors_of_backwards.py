"""A backward that eager refuses is refused with eager's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace operation: "


def error_of(call: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "igamma": lambda x: torch.igamma(x, torch.ones(2, 2)),
    "geqrf": lambda x: torch.geqrf(x)[0],
    "heaviside": lambda x: torch.heaviside(x, torch.ones(2, 2)),
}


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize("name", FORMULAS)
def test_no_derivative(name: str) -> None:
    def backward(f: Any) -> None:
        f(torch.rand(2, 2).requires_grad_()).sum().backward()

    f = FORMULAS[name]
    expected, got = error_of(lambda: backward(f)), error_of(lambda: backward(st.compile(f)))
    assert (type(got), str(got)) == (type(expected), str(expected))


@pytest.mark.parametrize("dynamic", [False, True])
def test_no_second_derivative(dynamic: bool) -> None:
    def twice(f: Any) -> None:
        x = torch.rand(3, 3).requires_grad_()
        (grad,) = torch.autograd.grad(f(x).pow(2).sum(), x, create_graph=True)
        grad.sum().backward()

    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.embedding_bag(torch.tensor([[0, 1]]), x, mode="max")

    expected, got = error_of(lambda: twice(f)), error_of(lambda: twice(st.compile(f, dynamic=dynamic or None)))
    assert (type(got), str(got)) == (type(expected), str(expected)) and type(got) is NotImplementedError


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad * ctx.saved_tensors[0]


def inside(x: Tensor) -> Tensor:
    y = x * 1
    z = y * y
    y.add_(1)
    return torch.autograd.grad(z, x, torch.ones_like(z))[0]


def argument(x: Tensor) -> Tensor:
    z = x * x.exp()
    with torch.no_grad():
        x.add_(1)
    return z


def result(x: Tensor) -> Tensor:
    return x.exp().add_(1)


def custom(x: Tensor) -> Tensor:
    y = x * 1
    z: Tensor = Squared.apply(y)
    y.add_(1)
    return z


@pytest.mark.parametrize("f", [inside, argument, result, custom])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_written_in_the_region(f: Any, wrapped: bool, dynamic: bool) -> None:
    """Torch cannot write its message for a wrapper with symbolic sizes."""

    def backward(f: Any) -> None:
        x = torch.rand(3, 2)
        x = (TwoTensor(x, x * 2) if wrapped else x).requires_grad_()
        out = f(x)
        if out.requires_grad:
            out.backward(torch.ones_like(out.detach()))

    for call in (f, st.compile(f, dynamic=dynamic or None)):
        error = error_of(lambda call=call: backward(call))
        assert type(error) is RuntimeError and str(error).startswith(MODIFIED)
