"""Composite operations that read values: one_hot, tensor_split, a cumulative batch norm; the same answers and errors as eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st

Tensor = torch.Tensor
X = torch.tensor([0, 1, 2])


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_hot_checks_each_call(dynamic: bool) -> None:
    region = st.compile(lambda x: F.one_hot(x, num_classes=3).float() * 2, dynamic=dynamic or None)
    assert torch.equal(region(X), torch.eye(3) * 2)
    for wrong in (X + 1, X - 1):
        with pytest.raises(RuntimeError, match=r"Class values must be non-negative and smaller than num_classes\."):
            region(wrong)
    assert len(region.specializations) == 1


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
def test_one_hot_of_any_number() -> None:
    assert torch.equal(st.compile(F.one_hot)(X), F.one_hot(X))
    with pytest.raises(RuntimeError, match="LongTensor"):
        st.compile(lambda x: F.one_hot(x, 3))(X.float())
