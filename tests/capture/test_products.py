"""Which products are views of something, and how often eager has written to them: with static and with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st

Tensor = torch.Tensor
SHAPES = (
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 2, 3, 4), (4, 5)),
    ((4,), (2, 2, 4, 5)),
)
LINEAR = (
    ((4,), (5, 4)),
    ((4,), (4,)),
    ((3, 4), (5, 4)),
    ((2, 3, 4), (5, 4)),
    ((2, 3, 4), (4,)),
    ((2, 2, 3, 4), (5, 4)),
)


def _made(shape: tuple[int, ...], strided: bool, grad: bool) -> Tensor:
    torch.manual_seed(len(shape))
    t = torch.randn((*shape, 2))[..., 0] if strided else torch.randn(shape)
    return t.requires_grad_(grad)


def _compare(f: Callable[..., Tensor], *shapes: tuple[int, ...], dynamic: bool, strided: bool, grad: bool) -> None:
    """Values up to rounding: with symbolic sizes torch may take another kernel."""
    rows: list[Any] = []
    for g in (f, st.compile(f, dynamic=dynamic)):
        given = [_made(shape, strided, grad) for shape in shapes]
        out = g(*given)
        shown = out._is_view(), None if out._base is None else out._base.shape, out._version, out.stride()
        if grad:
            out.square().sum().backward()
        rows.append((shown, [out.detach(), *(t.grad for t in given if grad)]))
    assert rows[0][0] == rows[1][0], shapes
    torch.testing.assert_close(rows[1][1], rows[0][1])


@pytest.mark.parametrize(("strided", "grad"), [(False, True), (True, False)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_products_are_as_in_eager(dynamic: bool, strided: bool, grad: bool) -> None:
    """``x @ y`` for all ranks."""

    def product(x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    for shapes in SHAPES:
        _compare(product, *shapes, dynamic=dynamic, strided=strided, grad=grad)


@pytest.mark.parametrize(("strided", "grad"), [(False, True), (True, False)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_linear_is_as_in_eager(dynamic: bool, strided: bool, grad: bool) -> None:
    """``F.linear`` with and without a bias, for all ranks."""
    for x, weight in LINEAR:
        for shapes in ((x, weight), (x, weight, weight[:-1])):
            _compare(F.linear, *shapes, dynamic=dynamic, strided=strided, grad=grad)


def test_out_stays_what_it_is() -> None:
    """A view that is given for the result."""

    def product(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        return torch.matmul(x, y, out=out[0])

    for f in (product, st.compile(product, dynamic=True)):
        x, y, out = torch.ones(2, 3, 4), torch.ones(4, 5), torch.zeros(2, 2, 3, 5)
        assert f(x, y, out)._base is out and out.sum() == 120
