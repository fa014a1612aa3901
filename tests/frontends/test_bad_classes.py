"""Tensor classes that cannot be traced through are refused by name, and where."""

from __future__ import annotations

import pytest
import torch
from torch.masked import masked_tensor

import subclass_trace as st
from subclass_trace.errors import ProtocolError

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
