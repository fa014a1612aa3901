"""What a backward reads of an object in a context is compared, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from objects_in_contexts import Plain, Quantised, sine

import subclass_trace as st

Tensor = torch.Tensor


class Late(Plain):
    """The backward reads ``factor``, the forward does not."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def late(self) -> float:
        return self.factor


def _gradient(function: Any, q: Any, between: Callable[[], None] = lambda: None) -> Tensor:
    x = Quantised(torch.full((2,), 0.3), q).requires_grad_()
    out = function(x)
    between()
    out.backward(Quantised(torch.ones(2), q))
    return x.grad.a  # type: ignore[union-attr,no-any-return]


def test_what_the_backward_reads() -> None:
    q, region = Late(), st.compile(sine)
    for factor, count in ((1.0, 1), (1.0, 1), (3.0, 2), (1.0, 2)):
        q.factor = factor
        q.step += 1
        assert torch.equal(_gradient(region, q), _gradient(sine, q))
        assert len(region.specializations) == count


def test_an_object_that_changes_before_the_backward() -> None:
    q, region = Late(), st.compile(sine)

    def between() -> None:
        q.factor = 4.0

    for _ in range(3):
        found = []
        for function in (region, sine):
            q.factor = 1.0
            found.append(_gradient(function, q, between))
        assert torch.equal(*found)
    assert len(region.specializations) == 1
    q.factor = 1.0
    assert torch.equal(_gradient(region, q), _gradient(sine, q))


def test_a_backward_that_is_traced_later_reads_more() -> None:
    def second(function: Any, q: Any) -> Tensor:
        x = Quantised(torch.full((2,), 0.3), q).requires_grad_()
        (grad,) = torch.autograd.grad(function(x), x, Quantised(torch.ones(2), q), create_graph=True)
        (twice,) = torch.autograd.grad(grad, x, Quantised(torch.ones(2), q))
        return twice.a  # type: ignore[attr-defined,no-any-return]

    q, region = Late(), st.compile(lambda x: x.cos())
    for scale in (1.0, 3.0, 1.0):
        q.scale = scale  # the backward of cos is sin
        assert torch.equal(second(region, q), second(lambda x: x.cos(), q))
