"""Iterators that code in backwards draws from: one of its own, which is gone afterwards, or one that gives each item once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def _numbers() -> Iterator[int]:
    yield from itertools.count(1)


class _Holder:
    def __init__(self) -> None:
        self.numbers = _numbers()

    def __call__(self, g: Tensor) -> Tensor:
        return g * next(self.numbers)


def _closed_over() -> Callable[[Tensor], Tensor]:
    numbers = _numbers()
    return lambda g: g * next(numbers)


def _in_a_list() -> Callable[[Tensor], Tensor]:
    held = [iter([1.0, 2.0, 3.0, 4.0])]
    return lambda g: g * next(held[0])


def _in_a_dict() -> Callable[[Tensor], Tensor]:
    held = {"a": itertools.count(1)}
    return lambda g: g * next(held["a"])


def _by_default() -> Callable[[Tensor], Tensor]:
    numbers = (_numbers(),)
    return lambda g, held=numbers: g * next(held[0])


def _method() -> Callable[[Tensor], Tensor]:
    draw = _numbers().__next__
    return lambda g: g * draw()


def _sum() -> Callable[[Tensor], Tensor]:
    numbers = _numbers()
    return lambda g: g * sum(itertools.islice(numbers, 2))


def _its_own() -> Callable[[Tensor], Tensor]:
    return lambda g: g * next(v for v in (3.0, 4.0))


HOOKS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "closed over": _closed_over,
    "an attribute": _Holder,
    "in a list": _in_a_list,
    "in a dict": _in_a_dict,
    "a default": _by_default,
    "a method": _method,
    "without next": _sum,
    "its own": _its_own,
}


@pytest.mark.parametrize("name", HOOKS)
def test_what_each_backward_draws(name: str) -> None:
    seen = []
    for compiled in (False, True):
        hook = HOOKS[name]()

        def f(x: Tensor, hook: Any = hook) -> Tensor:
            y = x * 2
            y.register_hook(hook)
            return y

        region, found = st.compile(f) if compiled else f, []
        for _ in range(4):
            x = torch.ones(2, requires_grad=True)
            region(x).sum().backward()
            assert x.grad is not None
            found.append(x.grad.tolist())
        seen.append(found)
    assert seen[0] == seen[1]


class First(TwoTensor):
    """Its code asks for the first tensor among the arguments, as many classes do."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = next(a for a in args if isinstance(a, Tensor))
        if first is None:
            raise NotImplementedError(func)
        return TwoTensor.__torch_dispatch__.__func__(cls, func, types, args, kwargs)  # type: ignore[attr-defined]


class Product(torch.autograd.Function):
    """The gradient of the second argument is a wrapper that is made of dense tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Any) -> Tensor:
        ctx.save_for_backward(x, w.a, w.b)
        return x @ (w.a + w.b)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, a, b = ctx.saved_tensors
        return g @ (a + b).t(), First(x.t() @ g, x.t() @ g * 2)


def test_a_wrapper_that_is_made_in_a_backward() -> None:
    grads = []
    for f in (Product.apply, st.compile(lambda x, w: Product.apply(x, w))):
        x = torch.ones(5, 4, requires_grad=True)
        w = torch.nn.Parameter(First(torch.ones(4, 3), torch.ones(4, 3)))  # type: ignore[call-arg]
        f(x, w).sum().backward()
        assert type(w.grad) is First
        grads.append((x.grad, w.grad.a, w.grad.b))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
