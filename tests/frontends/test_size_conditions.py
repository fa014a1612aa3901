"""What a trace takes for true of a size is guarded, also where that size turns out to be another one, or constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor


def _if(condition: Any) -> int:
    return 1 if condition else 0  # a result that is a condition is none that was taken for true


def _square(x: Any) -> Any:
    found = _if(x.shape[0] != 7), _if(x.shape[1] % 2 == 0), _if(x.shape[0] > 8)
    return found, (x + x.t() if x.shape[0] == x.shape[1] else x * 2)


def _multiple(x: Any) -> Any:
    found = _if(x.shape[1] != 6), _if(x.shape[0] != 6)
    return found, (x * 3 if x.shape[0] == 2 * x.shape[1] else x * 2)


def _constant(x: Any) -> Any:
    found = _if(x.shape[0] < 6), _if(x.shape[0] * x.shape[1] > 40)
    return found, (x * 3 if x.shape[0] == 6 else x * 2)


def _two(*shape: int) -> TwoTensor:
    return TwoTensor(torch.ones(shape), torch.ones(shape) * 2)


@pytest.mark.parametrize(
    ("make", "dynamic"),
    [(torch.ones, False), (torch.ones, True), (_two, True), pytest.param(_two, False, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("function", [_square, _multiple, _constant])
@pytest.mark.parametrize("backwards", [False, True])
def test_conditions_on_sizes_that_were_found_to_be_equal(
    function: Callable[..., Any], make: Callable[..., Any], dynamic: bool, backwards: bool
) -> None:
    shapes = [(4, 5), (6, 6), (7, 7), (8, 8), (9, 9), (10, 5), (12, 6), (14, 7), (6, 5), (6, 9), (5, 9)]
    region = st.compile(function, dynamic=dynamic or None)
    for shape in reversed(shapes) if backwards else shapes:
        x = make(*shape)
        expected, found = function(x), region(x)
        assert found[0] == expected[0], shape
        assert torch.equal(getattr(found[1], "a", found[1]), getattr(expected[1], "a", expected[1]))


class _Branching(torch.autograd.Function):
    """Its backward looks at a size, and goes on as if it were another one."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        factor = 2 + _if(g.shape[0] == 7)
        return g * factor if g.shape[0] == g.shape[1] else g


def test_conditions_of_a_backward() -> None:
    region = st.compile(_Branching.apply, dynamic=True)
    for shape in [(4, 5), (6, 6), (7, 7), (8, 8), (7, 3)]:
        grads = []
        for run in (_Branching.apply, region):
            x = torch.ones(shape, requires_grad=True)
            run(x).sum().backward()
            grads.append(x.grad)
        assert torch.equal(*grads), shape


TRUTHS_AS_KEYS = {
    "dict": lambda x: x * {True: 2.0, False: 3.0}[x.shape[0] > 5],
    "set": lambda x: x * (1 + ((x.shape[0] > 5) in {True})),
    "tuple": lambda x: x * {(True, 1): 2.0, (False, 1): 3.0}[x.shape[0] > 5, 1],
    "compared": lambda x: x * (2.0 if (x.shape[0] % 2 == 0) == True else 3.0),  # noqa: E712
    "differs": lambda x: x * (2.0 if (x.shape[0] % 2 == 0) != False else 3.0),  # noqa: E712
}


@pytest.mark.parametrize("f", TRUTHS_AS_KEYS.values(), ids=TRUTHS_AS_KEYS)
def test_a_condition_on_a_size_as_a_key(f) -> None:
    compiled = st.compile(f)
    for n in (4, 6, 9, 3, 8):
        assert torch.equal(compiled(torch.ones(n)), f(torch.ones(n)))
    assert len(compiled.specializations) <= 3
