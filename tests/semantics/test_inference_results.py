"""Results that a region computes in inference mode, or out of the caller's, are inference tensors or not as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def _value(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y, y[0], x * 3


def _view(x: Tensor) -> Any:
    with torch.inference_mode():
        z = (x * 2).view(-1)
        return z, x.view(-1)


def _members(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
        return y.unbind(0), y


def _constant(x: Tensor) -> Any:
    with torch.inference_mode():
        y = torch.ones(3, 3)
    return y, y.detach(), torch.cat([y, y])


def _normal(x: Tensor) -> Any:
    with torch.inference_mode(False):
        y = x.detach() * 2
    return y, y * 2, x.detach()


PROGRAMS: list[Callable[[Tensor], Any]] = [_value, _view, _members, _constant, _normal]


def _seen(out: Any) -> list[Any]:
    rows = []
    for t in pytree.tree_leaves(out):
        parts = [t.a, t.b] if isinstance(t, TwoTensor) else [t]
        rows.append((type(t), t.is_inference(), t.requires_grad, t.is_leaf, t._is_view(), t.stride()))
        rows.append([(p.is_inference(), p.tolist()) for p in parts])
    keys = [(t.a if isinstance(t, TwoTensor) else t).untyped_storage().data_ptr() for t in pytree.tree_leaves(out)]
    return [rows, [a == b for k, a in enumerate(keys) for b in keys[:k]]]


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("function", PROGRAMS)
def test_what_is_an_inference_tensor(function: Callable[[Tensor], Any], wrap: bool, around: bool) -> None:
    region = st.compile(function)
    for grad in (False, True):
        for inference in (False, True) if around else (False,):
            seen = []
            for call in (function, region, region):
                torch.manual_seed(0)
                with torch.inference_mode(inference):
                    x = TwoTensor(torch.randn(3, 3), torch.randn(3, 3)) if wrap else torch.randn(3, 3)
                    x.requires_grad_(grad and not inference)
                with torch.inference_mode(around):
                    seen.append(_seen(call(x)))
            assert seen[0] == seen[1] == seen[2]


def test_a_differentiable_result_made_out_of_inference_mode_is_refused() -> None:
    def function(x: Tensor) -> Tensor:
        with torch.inference_mode(False):
            return x * 2

    with torch.inference_mode(), pytest.raises(st.UnsupportedError, match="leaves inference mode"):
        st.compile(function)(torch.ones(2).requires_grad_())


def test_autograd_refuses_what_it_refuses_in_eager() -> None:
    def function(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return x * 2

    w = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        w * st.compile(function)(w)
