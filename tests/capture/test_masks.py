"""Masks of bytes, which eager mode still takes; and indices of kinds that it does not take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
MASK = torch.tensor([0, 1, 2], dtype=torch.uint8)
pytestmark = pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")

CASES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "read": lambda x, i: x[i],
    "read, rows": lambda x, i: x.view(1, 3)[:, i],
    "beside an index": lambda x, i: x.view(1, 3)[torch.tensor([0]), i],
    "written": lambda x, i: x.__setitem__(i, torch.tensor([7.0, 8.0])),
    "written, by booleans": lambda x, i: x.__setitem__(i > 0, torch.tensor([7.0, 8.0])),
    "written, by integers": lambda x, i: x.__setitem__(i.long(), torch.tensor([7.0, 8.0, 9.0])),
    "index_put_": lambda x, i: x.index_put_((i,), torch.tensor(9.0), accumulate=True),
    "out of place": lambda x, i: x.index_put((i,), torch.tensor([9.0, 8.0])),
}


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str) -> None:
    region = st.compile(CASES[name])
    for mask in (MASK, torch.tensor([1, 1, 0], dtype=torch.uint8)):
        x, y = torch.tensor([1.0, 2, 3]), torch.tensor([1.0, 2, 3])
        expected, got = CASES[name](x, mask), region(y, mask)
        assert torch.equal(x, y) and (expected is None if got is None else torch.equal(got, expected))


def test_gradient() -> None:
    x = torch.tensor([1.0, 2, 3], requires_grad=True)
    st.compile(lambda x, i: (x[i] ** 2).sum())(x, MASK).backward()
    assert x.grad is not None and x.grad.tolist() == [0, 4, 6]


def test_wrapper_is_written() -> None:
    x = TwoTensor(torch.ones(3), torch.ones(3))
    st.compile(lambda x, i: x.index_put_((i,), torch.tensor(5.0), accumulate=True))(x, MASK)
    assert x.a.tolist() == x.b.tolist() == [1, 6, 6]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.float32])
def test_other_kinds_are_refused(dtype: torch.dtype) -> None:
    index = torch.tensor([0, 1, 1], dtype=dtype)
    with pytest.raises(IndexError) as eager:
        torch.ones(3)[index]
    with pytest.raises(IndexError, match="tensors used as indices must be long, int, byte or bool tensors") as ours:
        st.compile(lambda x, i: x[i])(torch.ones(3), index)
    assert str(eager.value) == str(ours.value)


def test_one_value_is_refused_as_in_eager() -> None:
    def f(x: Tensor, i: Tensor) -> None:
        x[i] = 7.0

    with pytest.raises(RuntimeError) as eager:
        f(torch.ones(3), MASK)
    with pytest.raises(RuntimeError, match="masked_fill_ only supports boolean masks") as ours:
        st.compile(f)(torch.ones(3), MASK)
    assert str(eager.value) == str(ours.value)


def test_deprecation_is_told() -> None:
    with pytest.warns(UserWarning, match="indexing with dtype torch.uint8 is now deprecated"):
        st.compile(lambda x, i: x[i])(torch.ones(3), MASK)
