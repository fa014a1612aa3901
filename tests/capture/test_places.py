"""``as_strided`` views of inputs, which count from the start of the storage: as in eager, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.errors import UnsupportedError
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
Arguments = Callable[[Tensor], tuple[Tensor, ...]]


def at(x: Tensor, size: int, offset: int, stride: int = 1) -> Tensor:
    return x.as_strided((size,), (stride,), offset)


def tail(b: Tensor) -> tuple[Tensor, ...]:
    return (b[2:],)


def overlapping(b: Tensor) -> tuple[Tensor, ...]:
    return b[2:], b[3:]


def neighbours(b: Tensor) -> tuple[Tensor, ...]:
    return b[4:], b[:4]


RIGHT: dict[str, tuple[Callable[..., Any], Arguments]] = {
    "inside": (lambda x: at(x, 3, 3).mul_(2), tail),
    "in front, read": (lambda x: at(x, 3, 0) * 1, tail),
    "past it, read": (lambda x: at(x, 3, 1) * 1, lambda b: (b[:2],)),
    "in front, returned": (lambda x: (x.mul_(2), at(x, 3, 0))[1], tail),
    "inputs that overlap, written through it": (lambda x, y: (at(x, 2, 2).mul_(2), y * 1)[1], overlapping),
    "inputs that overlap, read by it": (lambda x, y: (y.mul_(2), at(x, 2, 3) * 1)[1], overlapping),
    "across two inputs, written": (lambda x, y: (at(x, 6, 1).mul_(2), y * 1, x * 1)[1:], neighbours),
    "across two inputs, read": (lambda x, y: (y.mul_(3), at(x, 6, 1) * 1)[1], neighbours),
    "across two inputs, returned": (lambda x, y: (y.mul_(3), at(x, 6, 1))[1], neighbours),
    "all of it in the other input": (lambda x, y: (at(x, 2, 0).mul_(2), y * 1)[1], neighbours),
    "a view of a view": (lambda x: at(x[1:], 3, 2)[1:].mul_(2), tail),
    "elements of a scattered view": (lambda x: at(x, 3, 2, 2).mul_(2), lambda b: (b[::2],)),
    "scatter": (lambda x, y: (y.mul_(2), torch.as_strided_scatter(x, torch.zeros(2), (2,), (1,), 4))[1], overlapping),
    "in place": (lambda x, y: (y.mul_(2), x.as_strided_((2,), (1,), 4) * 1)[1], overlapping),
    "inside of a wrapper": (lambda x: at(x.a, 2, 3).mul_(2), lambda b: (TwoTensor(b[2:], b[2:].clone()),)),
}
REFUSED: dict[str, tuple[Callable[..., Any], Arguments]] = {
    "in front": (lambda x: at(x, 3, 0).mul_(2), tail),
    "past it": (lambda x: at(x, 3, 1).add_(10), lambda b: (b[:2],)),
    "into a gap between two inputs": (lambda x, y: (at(x, 6, 0).add_(10), y * 1)[1], lambda b: (b[:2], b[4:])),
    "a part of a view in front": (lambda x: at(x[1:], 3, 0)[1:].mul_(2), tail),
    "between the elements of a scattered view": (lambda x: at(x, 7, 0).mul_(2), lambda b: (b[::2],)),
    "read, in front of what was written": (lambda x: (x.mul_(2), at(x, 3, 0) * 1)[1], tail),
}


@pytest.mark.parametrize(("name", "dynamic"), [(n, d) for n in RIGHT for d in (False, True)])
def test_as_in_eager(name: str, dynamic: bool) -> None:
    function, arguments = RIGHT[name]
    region = st.compile(function, dynamic=dynamic)
    for _ in range(2):
        expected, got = torch.arange(1.0, 9.0), torch.arange(1.0, 9.0)
        want, have = function(*arguments(expected)), region(*arguments(got))
        assert torch.equal(got, expected)
        for a, b in zip(torch.utils._pytree.tree_leaves(want), torch.utils._pytree.tree_leaves(have), strict=True):
            assert torch.equal(a, b)
    assert len(region.specializations) == 1


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    function, arguments = REFUSED[name]
    base = torch.arange(1.0, 9.0)
    with pytest.raises(UnsupportedError, match="outside of its inputs, through as_strided") as error:
        st.compile(function)(*arguments(base))
    assert "test_places.py" in str(error.value.path)
    assert torch.equal(base, torch.arange(1.0, 9.0))


def test_inputs_that_overlap_in_the_middle_of_a_storage() -> None:
    region = st.compile(lambda x, y: (y.mul_(2), x * 1)[1], dynamic=True)
    for size in (8, 9):
        base = torch.arange(size) * 1.0
        expected = torch.cat([base[2:3], base[3:] * 2])
        assert torch.equal(region(base[2:], base[3:]), expected)
        assert torch.equal(base[2:], expected)


def test_another_place_is_another_specialization() -> None:
    region = st.compile(lambda x: at(x, 2, 3).mul_(2))
    for start in (2, 3, 2):
        base = torch.arange(1.0, 9.0)
        region(base[start:])
        assert base.tolist() == [1, 2, 3, 8, 10, 6, 7, 8]
    assert len(region.specializations) == 2
