"""Forms that authors give the protocol: each traces like eager; those that cannot be traced are refused by name, and where."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.masked import masked_tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

import subclass_trace as st
from subclass_trace.authoring import Outer
from subclass_trace.errors import ProtocolError
from subclass_trace.zoo import OptionalBias, TwoTensor

aten = torch.ops.aten


def make_class(name: str, unflatten: Any, context: Any = lambda x: x.tag) -> type:
    """A one-inner wrapper that keeps its tag; ``unflatten(cls)`` gives the descriptor."""

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, data, tag="t", size=None, stride=None):
            size, stride = data.shape if size is None else size, data.stride() if stride is None else stride
            self = torch.Tensor._make_wrapper_subclass(cls, size, strides=stride, dtype=data.dtype)
            self.data_, self.tag = data, tag
            return self

        def __tensor_flatten__(self):
            return ["data_"], context(self)

        @classmethod
        def __torch_dispatch__(cls, func, types, args, kwargs=None):
            tags = [a.tag for a in args if isinstance(a, cls)]
            out = func(
                *tree_map_only(cls, lambda x: x.data_, args), **tree_map_only(cls, lambda x: x.data_, kwargs or {})
            )
            out = tree_map_only(torch.Tensor, lambda d: cls(d, tags[0]), out)
            return return_and_correct_aliasing(func, args, kwargs or {}, out)

    Wrapper.__name__ = Wrapper.__qualname__ = name
    Wrapper.__tensor_unflatten__ = unflatten(Wrapper)
    return Wrapper


FORMS = {
    "static": lambda cls: staticmethod(lambda inner, context, size, stride: cls(inner["data_"], context, size, stride)),
    "class": lambda cls: classmethod(lambda c, inner, context, size, stride: c(inner["data_"], context, size, stride)),
    "old static": lambda cls: staticmethod(lambda inner, context: cls(inner["data_"], context)),
    "old class": lambda cls: classmethod(lambda c, inner, context: c(inner["data_"], context)),
    "defaults": lambda cls: staticmethod(
        lambda inner, context, size=None, stride=None: cls(inner["data_"], context, size, stride)
    ),
    "named": lambda cls: staticmethod(
        lambda inner_tensors, meta, outer_size, outer_stride: cls(inner_tensors["data_"], meta)
    ),
    "drops grad": lambda cls: staticmethod(
        lambda inner, context, size, stride: cls(inner["data_"].detach(), context, size, stride)
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_unflatten(form: str) -> None:
    cls = make_class("Form", FORMS[form])
    region = st.compile(lambda x: (x * x, x.detach(), x))
    for k in range(2):
        x = cls(torch.arange(3.0) + k, "mine").requires_grad_()
        y, d, same = region(x)
        assert (type(y), y.tag, y.requires_grad, y.is_leaf) == (cls, "mine", True, False)
        assert (type(d), d.requires_grad) == (cls, False) and same is x
        y.backward(cls(torch.ones(3), "mine"))
        assert type(x.grad) is cls
        torch.testing.assert_close(x.grad.data_, 2 * (torch.arange(3.0) + k))
    assert len(region.specializations) == 1


@pytest.mark.parametrize(
    ("first", "same", "other"),
    [
        (np.array([1, 2]), np.array([1, 2]), np.array([1, 3])),
        ([1, {2}], [1, {2}], [1, {3}]),
        (float("nan"), math.nan, 0.0),
        ((1, float("nan")), (1, float("nan")), (2, float("nan"))),
        (torch.float32, torch.float32, torch.float64),
        (1, 1, True),
        (0.0, 0.0, -0.0),
        ("x", "x", "y"),
        (None, None, 0),
    ],
)
def test_contexts_are_compared_by_value(first: object, same: object, other: object) -> None:
    cls = make_class("Context", FORMS["static"])
    region = st.compile(lambda x: x.data_ * 2)
    for context, count in ((first, 1), (same, 1), (other, 2), (first, 2)):
        assert region(cls(torch.ones(2), context)).tolist() == [2, 2]
        assert len(region.specializations) == count


# ---------------------------------------------------------------------------------------------- inner tensors
def test_an_optional_inner_tensor() -> None:
    region = st.compile(lambda x: x * 2)
    plain, biased = OptionalBias(torch.ones(2)), OptionalBias(torch.ones(2), torch.full((2,), 3.0))
    for x, count in ((plain, 1), (biased, 2), (plain, 2), (biased, 2)):
        out = region(x)
        assert (out.bias is None) == (x.bias is None)
        assert len(region.specializations) == count
    assert out.bias.tolist() == [6, 6]


class Diagonal(st.WrapperTensor, default="dequantize"):
    """An (n, n) matrix that holds its n diagonal elements."""

    diag_: torch.Tensor

    @classmethod
    def outer_metadata(cls, fields):
        return Outer(size=(fields.diag_.shape[0],) * 2)

    def dequantize(self):
        return torch.diag_embed(self.diag_)


@Diagonal.implements(aten.neg.default)
def _neg(func, x):
    return x.replace(diag_=func(x.diag_))


def test_outer_shape_of_another_rank() -> None:
    def f(x, v):
        return x @ v, -x, x * 2

    region = st.compile(f)
    x, v = Diagonal(torch.tensor([1.0, 2.0, 3.0])), torch.ones(3)
    for got, want in zip(region(x, v), f(x, v), strict=True):
        assert type(got) is type(want) and got.shape == want.shape and got.stride() == want.stride()
    assert region(x, v)[0].tolist() == [1, 2, 3]


def test_attributes_that_cannot_be_set() -> None:
    class Listed(torch.Tensor):
        """Serves its inner tensors from a list, by __getattr__."""

        @staticmethod
        def __new__(cls, parts):
            self = torch.Tensor._make_wrapper_subclass(cls, parts[0].shape)
            self.parts = list(parts)
            return self

        def __getattr__(self, name):
            if name.startswith("part"):
                return self.parts[int(name[4:])]
            raise AttributeError(name)

        def __tensor_flatten__(self):
            return [f"part{k}" for k in range(len(self.parts))], None

        @staticmethod
        def __tensor_unflatten__(inner, context, size, stride):
            return Listed([inner[k] for k in sorted(inner)])

        @classmethod
        def __torch_dispatch__(cls, func, types, args, kwargs=None):
            n = len(next(a for a in args if isinstance(a, cls)).parts)
            each = [func(*tree_map_only(cls, lambda x, k=k: x.parts[k], args), **(kwargs or {})) for k in range(n)]
            return return_and_correct_aliasing(func, args, kwargs or {}, cls(each))

    region = st.compile(lambda x: (x.add_(1), x * 3)[1])
    for n in (2, 3):
        x = Listed([torch.full((2,), float(k)) for k in range(n)])
        out = region(x)
        assert [p.tolist() for p in out.parts] == [[3.0 * (k + 1)] * 2 for k in range(n)]
        assert [p.tolist() for p in x.parts] == [[k + 1.0] * 2 for k in range(n)]
    assert len(region.specializations) == 2


def test_three_levels_deep() -> None:
    def build(k):
        leaf = lambda j: torch.full((2,), float(j + k))
        pair = lambda j: TwoTensor(leaf(j), leaf(j + 1))
        return TwoTensor(TwoTensor(pair(0), pair(2)), TwoTensor(pair(4), pair(6))).requires_grad_()

    region = st.compile(lambda x: x * x)
    x = build(1)
    out = region(x)
    assert type(out.a.b.a) is torch.Tensor and out.a.b.a.tolist() == [9, 9]
    out.backward(build(0).detach())
    assert x.grad.b.b.b.tolist() == [2 * 8 * 7] * 2


# -------------------------------------------------------------------------------- classes that cannot be traced through
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors is in prototype stage:UserWarning")


class Holder:
    """Something with an attribute."""


def masked() -> torch.Tensor:
    return masked_tensor(torch.ones(3), torch.tensor([True, False, True]))


# ---------------------------------------------------------------------------------------------- MaskedTensor
def test_a_masked_tensor_as_an_argument() -> None:
    with pytest.raises(ProtocolError, match="MaskedTensor is a tensor subclass that cannot be traced") as caught:
        st.compile(lambda x: x * 2)(masked())
    assert caught.value.path == "args[0]"


def test_a_masked_tensor_as_a_result() -> None:
    """It is made in the region, of traced tensors: nothing could rebuild it in a call."""
    with pytest.raises(ProtocolError, match="MaskedTensor") as caught:
        st.compile(lambda x: (x * 2, masked_tensor(x, x > 0)))(torch.ones(3))
    assert caught.value.path == "result"


def test_a_result_of_a_masked_tensor_that_the_region_closes_over() -> None:
    holder = Holder()
    holder.value = masked()
    with pytest.raises(ProtocolError, match="MaskedTensor"):
        st.compile(lambda x: holder.value * x)(torch.ones(3))
    assert type(holder.value.get_data()) is torch.Tensor


def test_a_masked_tensor_within_the_region_is_the_users_business() -> None:
    mask = torch.tensor([True, False, True])

    def zeros_where_masked(x):
        return masked_tensor(x, mask).get_data() * 2

    x = torch.randn(3)
    torch.testing.assert_close(st.compile(zeros_where_masked)(x), x * 2)


def test_a_class_that_branches_on_values() -> None:
    from subclass_trace.zoo import TwoTensor

    class Positive(TwoTensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            if args[0].a.sum().item() > 0:
                return super().__torch_dispatch__(func, types, args, kwargs)
            return args[0]

    with pytest.raises(st.errors.DataDependentError, match="depend on the values") as caught:
        st.compile(lambda x: x.sin())(Positive(torch.ones(2), torch.ones(2)))
    assert str(caught.value.path).startswith(__file__)
