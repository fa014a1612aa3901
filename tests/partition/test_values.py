"""Values and gradients are those of eager mode, whatever the partitioner saves; traps that partitioners fall into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from programs import program

import subclass_trace as st


def step(call: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Results and gradients, with one seed for all draws."""
    torch.manual_seed(0)
    results = call(*inputs)
    torch.manual_seed(1)  # whatever a backward drew would differ
    roots = [o for o in results if o.requires_grad]
    wanted = [t for t in inputs if t.requires_grad]
    return [*results, *torch.autograd.grad([o.sum() for o in roots], wanted, allow_unused=True)]


SLOW = [pytest.param(seeds, marks=pytest.mark.slow) for seeds in (range(7, 15), range(2000, 2175))]


@pytest.mark.parametrize("seeds", [range(7), *SLOW], ids=str)
def test_generated_programs(seeds: range) -> None:
    """Bit for bit as with torch's default partitioner, which computes nothing twice; close to eager mode."""
    for seed in seeds:
        function, make = program(seed)
        calls = (st.compile(function), st.compile(function, partitioner="default"), function)
        for a, b, c in zip(*[step(call, make()) for call in calls], strict=True):
            assert (a is None) == (b is None) == (c is None)
            if c is not None:
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
                torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-4, equal_nan=True)
