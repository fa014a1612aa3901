"""Above autograd and beside other classes: torch functions, foreign wrappers, a differentiable ``dequantize``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from authored import MAKERS, FunctionScaled, Pair, Scaled, randn
from torch import Tensor
from torch.nn import functional as F

import subclass_trace as st
from subclass_trace.zoo import Constant, Masked

aten = torch.ops.aten
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def scaled(*size: int) -> Scaled:
    return Scaled(randn(*size), torch.tensor(2.0))


# ------------------------------------------------------------------------------------------------- foreign and torch_function
@every
def test_foreign_wrappers_are_left_alone(make) -> None:
    x = make()
    for other in (Constant(1.0, (4, 4)), Masked(randn(4, 4), randn(4, 4) > 0)):
        for pair in ((x, other), (other, x)):
            with pytest.raises(TypeError, match="Multiple dispatch failed"):
                torch.mm(*pair)


def test_base_and_derived_mix() -> None:
    x, y = scaled(4, 4), FunctionScaled(randn(4, 4), torch.tensor(3.0))
    want = x.dequantize() @ y.dequantize()
    torch.testing.assert_close(x @ y, want)
    torch.testing.assert_close(torch.mm(y, x), y.dequantize() @ x.dequantize())


def test_torch_functions() -> None:
    x, w = randn(3, 4).requires_grad_(), FunctionScaled(randn(5, 4), torch.tensor(2.0)).requires_grad_()
    out = F.linear(x, w, torch.ones(5))
    torch.testing.assert_close(out, F.linear(x, w.dequantize(), torch.ones(5)))
    out.sum().backward()
    dense = randn(3, 4).requires_grad_(), w.detach().dequantize().requires_grad_()
    F.linear(*dense).sum().backward()
    torch.testing.assert_close((x.grad, w.grad), (dense[0].grad * 10, dense[1].grad * 10))
    torch.testing.assert_close(F.linear(w.detach(), w.detach()), dense[1] @ dense[1].t())  # NotImplemented: as usual
    assert type(torch.sin(w)) is Tensor and type(w[1:]) is FunctionScaled
    assert Scaled.__torch_function__ is Pair.__torch_function__ is not FunctionScaled.__torch_function__


def test_torch_functions_inherit_and_meet_others() -> None:
    class Derived(FunctionScaled):
        pass

    class Other(st.WrapperTensor, default="per_inner"):
        data_: Tensor

    @Other.implements_torch_function(torch.add)
    def add(func: Any, x: Any, y: Any) -> str:
        return "added"

    w = Derived(randn(5, 4), torch.tensor(2.0))
    assert F.linear(randn(3, 4), w.requires_grad_()).grad_fn.name() == "ScaledLinearBackward"
    assert torch.add(Other(torch.ones(2)), torch.ones(2)) == "added"
    with pytest.raises(TypeError, match=r"no implementation found|Multiple dispatch failed"):
        torch.add(w, Other(torch.ones(2)))


def test_dequantize_is_differentiable() -> None:
    w = scaled(2, 2).requires_grad_()
    y = w.dequantize()
    assert type(y) is Tensor and y.requires_grad
    (y * torch.arange(4.0).view(2, 2)).sum().backward()
    assert w.grad.tolist() == [[0, 1], [2, 3]]
    assert not w.detach().dequantize().requires_grad
    with torch.no_grad():
        assert not w.dequantize().requires_grad

    class Doubled(Scaled):
        pass

    @Doubled.implements(aten.neg.default)
    def neg(func: Any, x: Doubled) -> Tensor:
        return x.dequantize()  # inside of a rule nothing is recorded; torch records the operation itself

    v = Doubled(randn(2, 2), torch.tensor(2.0)).requires_grad_()
    out = -v
    assert type(out.grad_fn).__name__ == "NegBackward0"
    out.sum().backward()
    assert v.grad.tolist() == [[-1, -1], [-1, -1]]
    assert w.__coerce_same_metadata_as_tangent__(None, Tensor).shape == (2, 2)
    assert w.__coerce_same_metadata_as_tangent__(None, Pair) is None
    assert not hasattr(Pair, "__coerce_same_metadata_as_tangent__")
