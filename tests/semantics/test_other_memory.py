"""What lies in which memory: shapes set in place, data set after views were made, and arguments that repeat their elements."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
CALLS: list[Callable[[Any], Any]] = [lambda f: f, st.compile, lambda f: st.compile(f, dynamic=True)]


def dense(t: Tensor) -> Tensor:
    return t.a if isinstance(t, TwoTensor) else t


def facts(results: Any) -> list[Any]:
    rows = results if isinstance(results, tuple) else (results,)
    return [(type(t), dense(t).tolist(), t.stride(), t.requires_grad) if isinstance(t, Tensor) else t for t in rows]


def data_of_a_view(x: Tensor) -> Any:
    v = x[1:]
    v.data = x.clone()
    return v


def data_of_a_view_of_a_value(x: Tensor) -> Any:
    h = x * 2
    v = h[1:]
    v.data = x + 1
    h.mul_(5)
    return v, h


@pytest.mark.parametrize(
    ("f", "wrapper"),
    [
        (data_of_a_view, False),  # of a wrapper, eager sets the outer size alone
        (data_of_a_view_of_a_value, False),
    ],
)
def test_data_that_is_set_after_a_view_was_made(f: Callable[..., Any], wrapper: bool) -> None:
    seen = []
    for call in CALLS:
        x = torch.arange(6.0).view(3, 2)
        held = x[0]
        x = TwoTensor(x, x + 10) if wrapper else x
        results = call(f)(x)
        first = results[0] if isinstance(results, tuple) else results
        dense(first).add_(100)  # seen by whatever shares its memory
        seen.append(([dense(t).tolist() for t in (first, x)], held.tolist(), first.shape))
    assert all(row == seen[0] for row in seen)


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


def test_a_wrapper_takes_the_data_of_one_that_spans_more() -> None:
    """``x.data = y``, where the strides of ``y`` reach further than what stands for the memory of ``x``."""

    def made() -> tuple[Any, Any]:
        numbers = torch.arange(80.0)
        x = TwoTensor(numbers.as_strided((2, 3), (7, 2), 0), numbers.as_strided((2, 3), (7, 2), 40))
        return x, TwoTensor(numbers.as_strided((2, 3), (7, 3), 1), numbers.as_strided((2, 3), (7, 3), 41))

    def function(x: Any, y: Any) -> Any:
        x.data = y
        return x.add_(1), y * 1

    region = st.compile(function)
    for _ in range(2):
        (x, y), (p, q) = made(), made()
        found, expected = region(x, y), function(p, q)
        for a, b in ((x, p), (y, q), *zip(found, expected, strict=True)):
            assert (a.stride(), a._version) == (b.stride(), b._version)
            assert torch.equal(a.a, b.a) and torch.equal(a.b, b.b)
        assert found[0] is x
