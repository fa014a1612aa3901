"""Gradients that are differentiated again lead to what the inputs were before the region wrote to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def _part(x: Tensor) -> Tensor:
    x[1].exp_()
    return x.sin()


def _all(x: Tensor) -> Tensor:
    return x.sin_()


def _twice(x: Tensor) -> Tensor:
    y = x.exp()
    x.mul_(y)
    x.sin_()
    return x * y


def _copied(x: Tensor) -> Tensor:
    x.copy_(x.exp())
    return x.exp()


def _not_returned(x: Tensor) -> Tensor:
    y = x.exp()
    x.mul_(2)
    return y


def _each(x: Tensor) -> Tensor:
    torch._foreach_mul_([x], 2.0)
    return (x * x).sin()


FUNCTIONS = [_part, _all, _twice, _copied, _not_returned, _each]


def _start(kind: str) -> Tensor:
    numbers = (torch.arange(6.0).view(2, 3) * 0.3 + 0.1).sin()
    made: Any = numbers if kind == "dense" else TwoTensor(numbers, numbers.cos())
    if kind == "nested":
        made = TwoTensor(made, TwoTensor(numbers * 0.5, numbers + 0.2))
    return made.requires_grad_()


def _leaves(t: Any) -> list[Tensor]:
    return [t.detach()] if not isinstance(t, TwoTensor) else [*_leaves(t.a), *_leaves(t.b)]


def _orders(function: Callable[..., Any], kind: str, make: Callable[[Tensor], Any], order: int) -> list[Tensor]:
    """Gradients of all orders, and what the written tensor leads to besides."""
    start = _start(kind)
    given = make(start * 1.5)
    out = function(*given) if isinstance(given, tuple) else function(given)
    total = (out * out).sum() + sum((t * t).sum() for t in (given if isinstance(given, tuple) else [given]))
    assert total.requires_grad
    found = [total]
    for n in range(order):
        (grad,) = torch.autograd.grad(total, start, create_graph=n + 1 < order)
        found.append(grad)
        total = (grad * grad).sum()
    return [leaf for t in found for leaf in _leaves(t)]


def _assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["dense", "wrapper", "nested"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_of_a_written_argument(function: Callable[..., Any], kind: str) -> None:
    region = st.compile(function)
    for order in (2, 1, 3) if kind == "dense" else (2,):
        _assert_close(_orders(region, kind, lambda x: x, order), _orders(function, kind, lambda x: x, order))
    assert len(region.specializations) == 1


@pytest.mark.parametrize("way", ["no_grad", "detached"])
def test_of_a_view_that_is_written_without_a_history(way: str) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.exp() * 2
        if way == "no_grad":
            with torch.no_grad():
                x.mul_(2)
        else:
            x.detach().mul_(2)
        return y

    region = st.compile(function)
    for _ in range(2):
        _assert_close(*(_orders(f, "dense", lambda x: x[1], 2) for f in (region, function)))


def test_of_a_tensor_that_is_closed_over() -> None:
    held: list[Tensor] = []

    def function(scale: Tensor) -> Tensor:
        held[0].mul_(scale)
        return held[0].sin()

    results = []
    for run in (st.compile(function), function):
        start = _start("dense")
        held[:] = [start * 1.5]
        scale = torch.tensor(1.2, requires_grad=True)
        grads = torch.autograd.grad((run(scale) ** 2).sum(), (start, scale), create_graph=True)
        again = torch.autograd.grad(sum((g * g).sum() for g in grads), (start, scale))
        results.append([t.detach() for t in (*grads, *again)])
    _assert_close(*results)


@pytest.mark.parametrize("kind", ["dense", "wrapper"])
def test_under_no_grad_of_the_caller(kind: str) -> None:
    def function(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return x.sin_()

    def run(f: Callable[..., Any]) -> list[Tensor]:
        start = _start(kind)
        x = start * 1.5
        with torch.no_grad():
            out = f(x)
        (grad,) = torch.autograd.grad((out * out).sum(), start, create_graph=True)
        (again,) = torch.autograd.grad((grad * grad).sum(), start)
        return [leaf for t in (grad, again) for leaf in _leaves(t)]

    _assert_close(run(st.compile(function)), run(function))


def test_what_is_written_after_the_call() -> None:
    """The node knows the history that its inputs had in the call."""
    region = st.compile(lambda x: x.exp(), partitioner="default")
    start = _start("dense")
    for write in (lambda x: x.mul_(2), lambda x: x.detach_()):
        x = start * 1.5
        out = region(x)
        write(x)
        (grad,) = torch.autograd.grad(out.sum(), start, create_graph=True)
        torch.testing.assert_close(grad, (start * 1.5).exp() * 1.5)
        torch.testing.assert_close(torch.autograd.grad(grad.sum(), start)[0], (start * 1.5).exp() * 2.25)

    linear = st.compile(lambda x, w: x.sum() + w)
    weight = torch.ones((), requires_grad=True)
    x = start * 1.5
    out = linear(x, weight)
    x.mul_(2)
    assert torch.autograd.grad(out * out, start, create_graph=True)[0].requires_grad
