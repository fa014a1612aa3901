"""What a rule returns, and what a class is told that cannot work as it is written."""

from __future__ import annotations

import pytest
import torch

import subclass_trace as st
from subclass_trace.authoring import Outer, WrapperTensor

aten = torch.ops.aten


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


class Empty(WrapperTensor, default="per_inner"):
    """No fields at all."""

    @classmethod
    def outer_metadata(cls, fields):
        return Outer(size=(2,), dtype=torch.float32)


def test_a_class_without_fields() -> None:
    x = Empty()
    assert (repr(x), x.shape, x.__tensor_flatten__()) == ("Empty()", (2,), ([], None))
    assert Empty.__tensor_unflatten__({}, None, x.shape, x.stride()).shape == (2,)


@pytest.mark.parametrize(("name", "free"), [("log", "inner_log"), ("log_", "inner_log"), ("data", "data_")])
def test_a_name_that_is_taken_is_answered_with_one_that_is_free(name: str, free: str) -> None:
    with pytest.raises(st.ProtocolError, match=f"rename it, for example {free}$"):
        type(WrapperTensor)("Bad", (WrapperTensor,), {"__annotations__": {name: torch.Tensor}})
    type(WrapperTensor)("Good", (WrapperTensor,), {"__annotations__": {free: torch.Tensor}})


def test_a_refused_view_of_packed_codes_is_not_told_to_view_each_inner_tensor() -> None:
    with pytest.raises(st.UnsupportedError, match=r"implements_views\(inner=...\)"):
        Factors(torch.ones(2, 2), torch.ones(2, 2)).unsqueeze(0)
