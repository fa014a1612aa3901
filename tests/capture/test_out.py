"""``out=`` with arguments of the right size, of another size and empty ones, which grow: as in eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
Case = tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]


def numbers(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def places(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


CASES: dict[str, Case] = {
    "empty": (lambda x, y: torch.add(x, 1, out=y), lambda: (numbers(3), torch.empty(0))),
    "transposed": (lambda x, y: torch.add(x, 1, out=y), lambda: (numbers(2, 3), torch.zeros(3, 2).t())),
    "every second element": (lambda x, y: torch.add(x, 1, out=y), lambda: (numbers(3), torch.zeros(6)[::2])),
    "made in the region": (lambda x: torch.add(x, 1, out=torch.empty(0)), lambda: (numbers(3),)),
    "read afterwards": (lambda x, y: (torch.add(x, 1, out=y), y * 2)[1], lambda: (numbers(3), torch.empty(0))),
    "two results": (
        lambda x, v, i: torch.sort(x, out=(v, i)),
        lambda: (torch.tensor([3.0, 1, 2]), torch.empty(0), places(0)),
    ),
    "inner tensor": (
        lambda x, w: (torch.add(x, 1, out=w.a), None)[1],
        lambda: (numbers(3), TwoTensor(torch.zeros(3), torch.zeros(3))),
    ),
    "wrapper": (
        lambda x, w: torch.add(x, 1, out=w),
        lambda: (TwoTensor(numbers(3), numbers(3)), TwoTensor(torch.zeros(3), torch.zeros(3))),
    ),
}


#: what is written to another size runs eagerly
KEEP_THEIR_SIZES = ("transposed", "every second element", "inner tensor", "wrapper")


def seen(function: Callable[..., Any], arguments: tuple[Tensor, ...]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "An output with one or more elements was resized")
        result = function(*arguments)
    results = [t for t in (result if isinstance(result, tuple) else [result]) if t is not None]
    same = [[r is a for a in arguments] for r in results]
    leaves = [t for v in (*arguments, *results) for t in ((v.a, v.b) if isinstance(v, TwoTensor) else (v,))]
    rows: list[Any] = [(t.tolist(), t.dtype, t.shape, t.stride(), t.storage_offset()) for t in leaves]
    return [*rows, same, [t._version for t in arguments], [t.untyped_storage().nbytes() for t in arguments]]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str, dynamic: bool) -> None:
    function, arguments = CASES[name]
    region = st.compile(function, dynamic=dynamic or None)
    for _ in range(2):
        assert seen(region, arguments()) == seen(function, arguments())
    assert len(region.specializations) == (name in KEEP_THEIR_SIZES)
