"""A region that was traced for a normal tensor gets an inference tensor, and the reverse: each call is as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
W = torch.ones(2, 2, requires_grad=True)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "write": lambda x: (x.add_(1), x * 2)[1],
    "shape": lambda x: x.t_(),
    "save": lambda x: x * W,
    "view": lambda x: x[0:1],
    "itself": lambda x: x,
    "detach": lambda x: x.detach(),
    "requires grad": lambda x: x.requires_grad_() * 1,
}
MAKE: dict[str, Callable[[], Any]] = {
    "dense": lambda: torch.ones(2, 2),
    "wrapper": lambda: TwoTensor(torch.ones(2, 2), torch.ones(2, 2)),
}


def _input(kind: str, inference: bool) -> Any:
    with torch.inference_mode(inference):
        return MAKE[kind]()


def _call(function: Callable[[Any], Any], x: Any) -> Any:
    """What a caller can see of a call."""
    W.grad = None
    try:
        y = function(x)
        if y.requires_grad:
            y.sum().backward()
        seen = None if x.is_inference() else x._version
        return (
            type(y),
            y.is_inference(),
            y.requires_grad,
            y._is_view(),
            x.requires_grad,
            seen,
            str(y.detach()),
            str(W.grad),
        )
    except RuntimeError as error:
        return str(error).splitlines()[0]


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_then_the_other(name: str, kind: str) -> None:
    for mode in (False, True):
        for first in (False, True):
            region = st.compile(FUNCTIONS[name])
            for inference in (first, not first, first):
                x, y = _input(kind, inference), _input(kind, inference)
                with torch.inference_mode(mode):
                    assert _call(region, x) == _call(FUNCTIONS[name], y)


@pytest.mark.parametrize("function", [lambda x: x.mul_(2), lambda x: (x.a.add_(1), x)[1], lambda x: x.detach().add_(1)])
def test_a_normal_wrapper_around_inference_tensors(function: Callable[[Any], Any]) -> None:
    """Its class may write to them; other code may not, outside of inference mode."""
    for first in (False, True):
        region = st.compile(function)
        for inference in (first, not first, first):
            found = []
            for f in (function, region):
                with torch.inference_mode(inference):
                    a, b = torch.ones(2), torch.ones(2)
                x = TwoTensor(a, b)
                seen = _call(f, x)
                # Eager mode writes before it refuses; a region that fails leaves its inputs as they were.
                found.append(seen if isinstance(seen, str) else (seen, x.a.tolist(), x.a.is_inference(), x.b.tolist()))
            assert found[0] == found[1]


def test_normal_tensors_pay_nothing() -> None:
    region = st.compile(lambda x: (x.add_(1), x[0:1])[1])
    region(torch.ones(2))
    assert "is_inference" not in (region.specializations[0].source or "is_inference")
