"""DTensors over windows of a growing buffer: their outer strides differ in each call, and their class hashes them."""

from __future__ import annotations

import pytest
import torch
from spmd import COLUMNS, REPLICATE, ROWS, difference, seen
from torch.distributed.tensor import DTensor

import subclass_trace as st

PROGRAMS = {
    "product": (lambda x: x * 2, (REPLICATE, ROWS)),
    "window": (lambda x: x[:, 1:].sin(), (REPLICATE,)),
    "row": (lambda x: x[0] + 1, (REPLICATE, ROWS)),
    "matrix product": (lambda x: x @ x.t(), (REPLICATE, ROWS)),
    "written": (lambda x: (x.add_(1), x * 2)[1], (REPLICATE, ROWS)),
}


def _windows(mesh, placements):
    for size in (20, 24, 28, 32):
        buffer = torch.arange(4.0 * size).reshape(4, size)
        yield [DTensor.from_local(buffer.clone()[:, -16:], mesh, placements, run_check=False) for _ in range(2)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_growing_buffer_costs_one_more_specialization(mesh, name) -> None:
    function, ways = PROGRAMS[name]
    for placements in ways:
        region = st.compile(function)
        for x, y in _windows(mesh, placements):
            assert difference(seen(function(x)), seen(region(y))) is None
            assert torch.equal(x.to_local(), y.to_local())
        assert len(region.specializations) == 2


@pytest.mark.parametrize("placements", [ROWS, COLUMNS], ids=str)
def test_where_the_class_would_need_numbers_each_stride_has_its_own(mesh, placements) -> None:
    def function(x):
        return x[:, 3] * 2, x[:, :8] + 1

    region = st.compile(function)
    for x, y in _windows(mesh, placements):
        pairs = zip(function(x), region(y), strict=True)
        assert [d for a, b in pairs if (d := difference(seen(a), seen(b)))] == []
    assert len(region.specializations) == 4
