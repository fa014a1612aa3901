"""Fake kernels lay results out as the real ones do: every operation, over several layouts."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from layouts import Compared, differences
from samples import EAGER_DIES, database

OPERATIONS: dict[str, Any] = database()
#: one for each row of the table of repairs
QUICK = [
    "addr",
    "copysign",
    "floor_divide",
    "ldexp",
    "normal",
    "roll",
    "nn.functional.batch_norm",
    "nn.functional.binary_cross_entropy",
    "nn.functional.channel_shuffle",
    "nn.functional.hardtanh",
    "nn.functional.huber_loss",
    "nn.functional.layer_norm",
    "nn.functional.leaky_relu",
    "nn.functional.logsigmoid",
    "nn.functional.max_unpool2d",
    "nn.functional.pad.reflect",
    "nn.functional.prelu",
    "nn.functional.rrelu",
    "nn.functional.threshold",
]


def _found(name: str, count: int) -> dict[Any, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return differences(OPERATIONS[name], count)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.sweep(every=4)
def test_layouts(name: str) -> None:
    assert not _found(name, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in OPERATIONS if n not in EAGER_DIES])
def test_layouts_of_all(name: str) -> None:
    assert not _found(name, 3)


def test_the_comparison_can_fail() -> None:
    compared = Compared()
    results: Any = compared.results
    results.run = lambda func, args, kwargs: torch.empty(2, 3)
    a, b = torch.rand(2, 3), torch.rand(3, 2).t()
    with compared:
        a + 1
        assert not compared.found
        b + 1
    assert list(compared.found) == [torch.ops.aten.add.Tensor]
