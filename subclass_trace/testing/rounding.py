"""Does a class round, and by how much?

That the dense value of a fresh instance is not what it was made of proves nothing: a mask, an added low-rank product or
a scale do that too, and are exact. Rounding shows in steps: the dense value *stays* where the number is moved by very
little. So numbers are moved by very little, and those that stay are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Tensor = torch.Tensor
#: the largest number; every row, column and block of four holds it with both signs, so that scales stay as they are
_LARGEST = 1.7


def rounding_of(dense_of: Callable[[Tensor], Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> float:
    """How far rounding moves a number, over the largest one; 0.0 for a class that does not round.

    Args:
        dense_of: the dense value of an instance that is made of a dense tensor.
        dtype: that of the dense tensors.
    """
    place = torch.zeros(shape, dtype=torch.int64)
    for dim, n in enumerate(shape):
        place += torch.arange(n).reshape(-1, *[1] * (len(shape) - dim - 1))
    free = place % 2 == 1  # the numbers that are moved
    if not free.any():
        return 0.0
    ends = torch.where(place % 4 == 0, _LARGEST, -_LARGEST).double()
    before, after, errors = [], [], []
    for seed in range(max(1, min(16, 256 // math.prod(shape)))):
        numbers, others = torch.rand(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        start, end = (torch.where(free, (x * 2.4 - 1.2).to(dtype).double(), ends) for x in (numbers, others))
        near = torch.where(free, start * (1 + max(2**-13, torch.finfo(dtype).eps)), ends)
        values = []
        for dense in (start, near, end):
            torch.manual_seed(seed)  # stochastic rounding
            values.append(dense_of(dense.to(dtype)).double())
        before.append(values[0][free])
        after.append(values[1][free])
        moved, value_moved = (end - start)[free], (values[2] - values[0])[free]
        errors.append(_scatter(moved, value_moved) / max(float(values[0].abs().max()), 1e-30))
    was, is_now = torch.cat(before), torch.cat(after)
    told = was != was.mode().values  # what has the most frequent value may be masked or pruned
    rounds = (was == is_now)[told].sum() * 2 > told.sum()
    return max(errors) if rounds else 0.0


def _scatter(moved: Tensor, value_moved: Tensor) -> float:
    """The largest distance from a line through the origin, for one number: it takes two to move. What is added at a place,
    and a scale, drop out."""
    slope = (moved * value_moved).sum() / (moved * moved).sum()
    return float((value_moved - slope * moved).abs().max()) / 2
