"""All operations of torch's OpInfo database on wrapped samples; by default some of each family, with ``-m slow`` the rest."""

from __future__ import annotations

from typing import Any

import pytest
from samples import EAGER_DIES, VARIANTS, database, run

BAD = ("crash", "wrong", "recompiles")
#: what a run of the default tests takes
QUICK = [
    "add",
    "div.no_rounding_mode",
    "exp",
    "nn.functional.relu",
    "sum",
    "std",
    "prod",
    "argmax",
    "max.reduction_with_dim",
    "masked_select",
    "transpose",
    "expand",
    "select",
    "chunk",
    "as_strided",
    "cat",
    "scatter",
    "index_put",
    "__getitem__",
    "bmm",
    "matmul",
    "nn.functional.layer_norm",
    "nn.functional.cross_entropy",
    "linalg.svd",
    "fft.fft",
    "to",
]
#: refused by a typed error: they depend on the values inside a tensor, or make a sparse one
REFUSED = [
    "allclose",
    "argwhere",
    "bincount",
    "combinations",
    "cov",
    "equal",
    "istft",
    "item",
    "masked_select",
    "narrow",
    "nn.functional.ctc_loss",
    "nn.functional.gaussian_nll_loss",
    "nn.functional.one_hot",
    "nonzero",
    "to_sparse",
    "unique",
    "unique_consecutive",
]
OPERATIONS: dict[str, Any] = database()


def _outcomes(name: str, count: int, variants: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    return run(OPERATIONS[name], count, variants)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.sweep(every=4)
def test_operation(name: str) -> None:
    assert not {v: row for v, row in _outcomes(name, 1, ("two", "in-place")).items() if row[0] in BAD}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_in_all_variants(name: str) -> None:
    found = _outcomes(name, 3, VARIANTS)
    assert not {v: row for v, row in found.items() if row[0] in BAD}
    refused = {row[1] for row in found.values() if row[0] == "refused"}
    assert bool(refused) == (name in REFUSED), refused


def test_the_lists_name_operations() -> None:
    assert {*QUICK, *REFUSED, *EAGER_DIES} <= set(OPERATIONS)
