"""What rules return, and what stands above autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from authored import (
    FunctionScaled,
    Pair,
    Scaled,
    randn,
)
from torch import Tensor
from torch.nn import functional as F

import subclass_trace as st
from subclass_trace.authoring import Outer, WrapperTensor

aten = torch.ops.aten


def scaled(*size: int) -> Scaled:
    return Scaled(randn(*size), torch.tensor(2.0))


# ------------------------------------------------------------------------------------------------- what rules return
class Factors(WrapperTensor, default="dequantize"):
    """A product of two matrices: its size is derived, and nothing is said of strides."""

    left: torch.Tensor
    right: torch.Tensor

    @classmethod
    def outer_metadata(cls, fields):
        return Outer(size=(fields.left.shape[0], fields.right.shape[1]))

    def dequantize(self):
        return self.left @ self.right


@Factors.implements(aten.t.default)
def _transposed(func, x):
    return x.replace(left=x.right.t(), right=x.left.t())


def test_views_of_a_class_with_a_derived_size_have_the_strides_of_dense_ones() -> None:
    x = Factors(torch.randn(3, 2), torch.randn(2, 4))
    assert x.t().stride() == x.dequantize().t().stride() == (1, 4)
    assert (x.t().t().stride(), x.t().t().shape) == ((4, 1), (3, 4))
    assert torch.equal(x.t().dequantize(), x.dequantize().t())
    square = Factors(torch.randn(2, 2).t(), torch.randn(2, 2).t())
    assert (square.stride(), square.t().stride()) == ((2, 1), (1, 2))
    traced = st.compile(lambda x: x.t(), dynamic=True)
    for n in (3, 4, 5):
        assert traced(Factors(torch.randn(n, 2), torch.randn(2, n + 1))).stride() == (1, n + 1)
    assert len(traced.specializations) == 1


def test_a_rule_that_returns_no_tensor_is_named() -> None:
    class Three(Factors):
        pass

    @Three.implements(aten.exp.default)
    def exp(func, x):
        return 3

    with pytest.raises(st.ProtocolError, match="the rule of Three for aten.exp.default returned no tensor") as error:
        Three(torch.ones(2, 2), torch.ones(2, 2)).exp()
    assert "exp" in str(error.value.path) and error.value.got == "int: 3"


class NoFields(WrapperTensor, default="per_inner"):
    """No fields at all."""

    @classmethod
    def outer_metadata(cls, fields):
        return Outer(size=(2,), dtype=torch.float32)


def test_a_class_without_fields() -> None:
    x = NoFields()
    assert (repr(x), x.shape, x.__tensor_flatten__()) == ("NoFields()", (2,), ([], None))
    assert NoFields.__tensor_unflatten__({}, None, x.shape, x.stride()).shape == (2,)


# ------------------------------------------------------------------------------------------------- above autograd
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
