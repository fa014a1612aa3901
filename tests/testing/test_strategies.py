"""Strategies give what they say, and shrink to the smallest."""

from __future__ import annotations

import pytest
import torch
from hypothesis import find, given, settings

from subclass_trace.testing import dense_tensors, dtypes, shapes, wrappers
from subclass_trace.testing.strategies import Dense
from subclass_trace.zoo import TwoTensor

FAST = settings(max_examples=30, deadline=None)


@FAST
@given(shapes(min_dims=1, max_dims=2, min_side=1, max_side=3))
def test_shapes_keep_their_limits(shape: tuple[int, ...]) -> None:
    assert 1 <= len(shape) <= 2 and all(1 <= n <= 3 for n in shape)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_source_of_a_dense_tensor_makes_it(layout: str, dtype: torch.dtype, seed: int) -> None:
    x = eval(Dense((2, 3), dtype, layout, seed).code, {"torch": torch})
    assert (x.shape, x.dtype) == ((2, 3), dtype)
    assert x.is_contiguous() == (layout != "transposed")
    assert (x.storage_offset() != 0) == (layout == "sliced")


def test_everything_shrinks_to_the_smallest() -> None:
    quick = settings(max_examples=200, deadline=None, database=None)
    assert find(shapes(), lambda shape: True, settings=quick) == ()
    assert find(shapes(), lambda shape: len(shape) == 2, settings=quick) == (2, 2)
    assert find(dtypes(), lambda d: True, settings=quick) is torch.float32
    smallest = find(dense_tensors(), lambda t: t.dim() == 1, settings=quick)
    assert torch.equal(smallest, torch.tensor([1.0, 2.0]))
    assert find(shapes(min_dims=4), lambda shape: True, settings=quick) == (2, 2, 2, 2)


@FAST
@given(wrappers(TwoTensor))
def test_wrappers(x: torch.Tensor) -> None:
    assert type(x) is TwoTensor
