"""Python's and numpy's random numbers in a region are refused: it would use those of its trace for ever."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import subclass_trace as st

OWN, BITS = random.Random(1), np.random.default_rng(0)


class Drops(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.rng.random() < 0.5 else x


def seeds(x: torch.Tensor) -> torch.Tensor:
    random.seed(0)
    return x


FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "random": (lambda x: x * random.random(), "random"),
    "a branch": (lambda x: x if random.random() < 0.5 else x * 2, "random"),
    "a seed": (seeds, "random"),
    "numpy": (lambda x: x * float(np.random.rand()), "numpy.random"),
    "a generator of Python's": (lambda x: x * OWN.random(), "OWN"),
    "a generator of numpy's": (lambda x: x * float(BITS.random()), "BITS"),
    "a generator in a module": (Drops(), "self.rng"),
}


def states() -> list[Any]:
    """Those of objects are put back always, the global ones if no other thread (inductor's, say) may have drawn."""
    rows: list[Any] = [OWN.getstate(), BITS.bit_generator.state]
    if threading.active_count() == 1:
        rows += [random.getstate(), np.random.get_state()[1].tolist()]
    return rows


@pytest.mark.parametrize("name", FUNCTIONS)
def test_refused_by_name_and_nothing_is_drawn(name: str) -> None:
    function, where = FUNCTIONS[name]
    before = states()
    with pytest.raises(st.UnsupportedError, match="draws random numbers") as error:
        st.compile(function)(torch.ones(2))
    assert str(error.value.path) == where
    assert states() == before


def test_outside_of_the_region_they_are_arguments() -> None:
    region = st.compile(lambda x, n: x * n)
    for _ in range(3):
        n = torch.tensor(random.random())
        torch.testing.assert_close(region(torch.ones(2), n), torch.ones(2) * n)


def test_a_generator_that_is_only_there() -> None:
    module = Drops()
    region = st.compile(lambda x: x * (2 if module.rng is not None else 3))
    assert region(torch.ones(2)).tolist() == [2.0, 2.0]
