"""Writes are in place, where a region runs as it was recorded. (Generated ones: tests/differential/test_machine.py.)"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace import verify

Tensor = torch.Tensor


# ---------------------------------------------------------------------------------------------- what is in place
def stepwise(x: Tensor, r: Tensor) -> Tensor:
    x.mul_(2)
    total = x.sum()
    x.add_(r).clamp_(-1, 1)
    return total


#: function of a 2 x 4 x 4 and a 4 x 4 tensor -> what its program must not hold
WRITTEN: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "a row, then a read": (lambda x, r: (x.__setitem__((0, 1), r[1]), x[:, :2].sum(1))[1], ("scatter", "copy.default")),
    "with a read between": (stepwise, ("mul.Tensor", "add.Tensor", "clamp.default")),
    "filled": (lambda x, r: x.zero_().fill_(3), ("zero.default", "fill.Scalar")),
    "several at once": (lambda x, r: torch._foreach_mul_([x, r], 2.0), ("_foreach_mul.Scalar",)),
}


def source_of(region: Any) -> str:
    return inspect.getsource(region.specializations[0].program.forward)


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 4, 4, generator=generator), torch.randn(4, 4, generator=generator)


@pytest.mark.parametrize("name", WRITTEN)
@torch.no_grad()
def test_what_is_written_in_place(name: str) -> None:
    function, unwanted = WRITTEN[name]
    region, eager, ours = st.compile(function), inputs(), inputs()
    with verify.enabled():
        for _ in range(2):
            expected, got = function(*eager), region(*ours)
    assert (expected is None) is (got is None)
    for a, b in zip((expected, *eager), (got, *ours), strict=True):
        if isinstance(a, Tensor):
            assert torch.equal(a, b) and (a is expected or a._version == b._version)
    assert (got is ours[0]) is (expected is eager[0])
    source = source_of(region)
    assert not any(f"aten.{u}" in source or f"_{u}" in source for u in unwanted), source
    assert region.specializations[0].plan.mutations.in_program


def test_statistics_of_a_normalization() -> None:
    norm = torch.nn.BatchNorm2d(3)
    eager_norm, image = copy.deepcopy(norm), torch.randn(2, 3, 4, 4, requires_grad=True)
    region = st.compile(norm)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            for _ in range(2):
                assert torch.equal(region(image), eager_norm(image))
    for a, b in zip(norm.buffers(), eager_norm.buffers(), strict=True):
        assert torch.equal(a, b) and a._version == b._version
    assert region.specializations[0].plan.mutations.in_program
    assert "functional.default" not in source_of(region)


def test_sizes_that_are_symbols() -> None:
    def write(cache: Tensor, x: Tensor) -> Tensor:
        cache[:, 1] = x
        cache[:, 2:].mul_(2)
        return cache.sum(1)

    region = st.compile(write, dynamic=True)
    for n in (4, 6):
        eager, ours, x = torch.ones(n, 5), torch.ones(n, 5), torch.arange(float(n))
        assert torch.equal(write(eager, x), region(ours, x)) and torch.equal(eager, ours)
    assert len(region.specializations) == 1 and "scatter" not in source_of(region)


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
def test_one_tensor_twice_in_a_list_is_written_twice() -> None:
    def f(x: Tensor) -> None:
        torch._foreach_mul_([x, x[:1]], 2.0)

    for start in (lambda: torch.ones(2), lambda: torch.ones(2, requires_grad=True) * 1):
        x, y = start(), start()
        f(x)
        st.compile(f)(y)
        assert torch.equal(x, y)
