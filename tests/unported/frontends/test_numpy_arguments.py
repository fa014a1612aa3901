"""Numpy arrays among the arguments and globals of a region: constants, compared by value, that it may not write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor
TABLE = np.ones(2, dtype="float32")


def _in_place(x: Tensor, a: Any) -> Tensor:
    a += 1
    return x * 1


WRITES: list[Callable[[Tensor, Any], Tensor]] = [
    lambda x, a: torch.from_numpy(a).add_(x),
    lambda x, a: torch.as_tensor(a)[:1].copy_(x[:1]),
    lambda x, a: torch.from_numpy(TABLE).mul_(x),
    _in_place,
]


@pytest.mark.parametrize("number", range(len(WRITES)))
def test_a_write_is_refused_and_lost_nowhere(number: int) -> None:
    array = np.ones(2, dtype="float32")
    with pytest.raises(st.UnsupportedError, match="the region writes to a .*numpy array"):
        st.compile(WRITES[number])(torch.ones(2), array)
    assert array.tolist() == [1, 1] and TABLE.tolist() == [1, 1]


def test_an_array_that_changes_later_changes_no_other_call() -> None:
    region = st.compile(lambda x, a: torch.from_numpy(a) + x)
    x, array = torch.ones(2), np.ones(2, dtype="float32")
    assert region(x, array).tolist() == [2, 2]
    array += 5
    assert region(x, np.ones(2, dtype="float32")).tolist() == [2, 2] and region(x, array).tolist() == [7, 7]


def test_a_copy_may_be_written() -> None:
    region = st.compile(lambda x, a: torch.tensor(a).add_(x))
    for value in (1, 2):
        array = np.full(2, value, dtype="float32")
        assert region(torch.ones(2), array).tolist() == [value + 1] * 2 and array.tolist() == [value] * 2
