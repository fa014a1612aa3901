"""What lies in which memory: shapes set in place, data set after views were made, and arguments that repeat their elements."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor
CALLS: list[Callable[[Any], Any]] = [lambda f: f, st.compile, lambda f: st.compile(f, dynamic=True)]


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: (lambda b: (b, b.expand(2, 3)))(torch.arange(3.0)),
        lambda: (lambda b: (b[:2], b[1:].expand(2, 2)))(torch.arange(3.0)),
        lambda: (lambda b: (b, b.view(-1)[1:4].expand(2, 3)))(torch.arange(6.0).view(2, 3)),
    ],
)
def test_an_argument_that_repeats_elements_of_one_that_is_written(make: Callable[[], Any], order: bool) -> None:
    def write(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y * 3

    def turned(y: Tensor, x: Tensor) -> Tensor:
        return write(x, y)

    seen = []
    for call in CALLS:
        f = call(turned if order else write)
        for _ in range(2):
            x, y = make()
            result = f(*((y, x) if order else (x, y)))
            seen.append([(t.tolist(), t._version) for t in (result, x, y)])
    assert all(row == seen[0] for row in seen)


def test_arguments_of_one_memory_one_of_which_is_conjugated() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return x * 1, y * 1

    seen = []
    for call in CALLS[:2]:
        region = call(f)
        for make in (lambda x: x.view(-1), lambda x: x.conj(), lambda x: x.clone().conj()):
            x = torch.complex(torch.ones(2), torch.ones(2))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one of them runs eagerly
                results = region(x, make(x))
            seen.append([t.tolist() for t in (*results, x)])
    assert seen[:3] == seen[3:]


def test_arguments_with_negative_bits_are_written() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        y.mul_(3)
        return x + y

    seen = []
    for call in CALLS:
        x, y = (torch.ones(3, dtype=torch.complex64).mul(1 + 2j).conj() for _ in range(2))
        seen.append((call(f)(x.imag, y.imag).tolist(), x.tolist(), y.tolist()))
    assert all(row == seen[0] for row in seen)


@pytest.mark.parametrize("f", [lambda x, w: torch.complex(x, w), lambda x, w: torch.complex(x, w).conj()])
def test_tangents_that_are_still_to_be_conjugated(f: Callable[..., Tensor]) -> None:
    seen = []
    for call in CALLS:
        x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
        region, rows = call(f), []
        for tangent in (torch.full((3,), 1 + 2j), torch.full((3,), 1 + 2j).conj(), torch.full((3,), 1 + 2j)):
            grads = torch.autograd.grad(region(x, w), (x, w), tangent)
            rows.append([g.tolist() for g in grads])
        seen.append(rows)
    assert all(row == seen[0] for row in seen)
