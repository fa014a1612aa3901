"""Strategies give what they say, and shrink to the smallest."""

from __future__ import annotations

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as s

from subclass_trace.testing import (
    dense_tensors,
    dtypes,
    nested_wrappers,
    op_programs,
    shapes,
    tangents,
    wrappers,
)
from subclass_trace.testing.strategies import Dense
from subclass_trace.zoo import Masked, TwoTensor

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
    assert find(op_programs(), lambda text: True, settings=quick) == "def f(x):\n    v0 = x * 2\n    return v0"
    assert find(shapes(min_dims=4), lambda shape: True, settings=quick) == (2, 2, 2, 2)
    assert find(op_programs(mutate=False), lambda text: True) == "def f(x):\n    v0 = x * 2\n    return v0"
    assert find(op_programs(), lambda text: "add_" in text, settings=quick) == "def f(x):\n    x.add_(1)\n    return x"


@FAST
@given(wrappers(Masked))
def test_wrappers(x: torch.Tensor) -> None:
    assert type(x) is Masked


@FAST
@given(nested_wrappers(TwoTensor, max_depth=3, min_depth=2))
def test_nested_wrappers(x: torch.Tensor) -> None:
    assert type(x) is TwoTensor and type(x.a) is TwoTensor


@FAST
@given(op_programs(max_lines=5, arguments=2))
def test_programs_are_functions(text: str) -> None:
    names: dict[str, object] = {}
    exec(text, names)
    assert callable(names["f"])


@FAST
@given(s.data())
def test_tangents_fit_their_output(data: s.DataObject) -> None:
    x = TwoTensor(torch.ones(2, 3), torch.ones(2, 3)).requires_grad_()
    y = x * 2
    tangent = data.draw(tangents(y))
    assert (tangent.shape, tangent.dtype) == (y.shape, y.dtype)
    y.backward(tangent)
    assert x.grad is not None
