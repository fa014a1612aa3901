"""Composite operations that read values: one_hot, tensor_split, a cumulative batch norm; the same answers and errors as eager."""

from __future__ import annotations

from typing import Any

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


SIZES: dict[str, Any] = {
    "reshape": lambda x, n: x.reshape(n, 2) * 2,
    "pieces": lambda x, n: x.split([n, 3])[1],
    "pad": lambda x, n: F.pad(x, (n, 1)),
    "interpolate": lambda x, n: F.interpolate(x.view(1, 1, 6), size=(n,)),
    "zeros": lambda x, n: torch.zeros(n, 2) + x[0],
    "new": lambda x, n: x.new_ones((n, 2)).sum(),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_that_are_numbers_inside_tensors(name: str, dynamic: bool) -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        return SIZES[name](x, n.item())  # type: ignore[no-any-return]

    region, x = st.compile(f, dynamic=dynamic or None), torch.arange(6.0)
    for k in (3, 4):
        try:
            expected: Any = f(x, torch.tensor(k))
        except RuntimeError:
            with pytest.raises(RuntimeError):
                region(x, torch.tensor(k))
        else:
            assert torch.equal(region(x, torch.tensor(k)), expected)
    assert len(region.specializations) == 1
