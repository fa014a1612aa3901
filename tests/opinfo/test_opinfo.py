"""Operations of torch's OpInfo database on wrapped samples; ``-m fuzz`` takes all of them (see `sweep.py`)."""

from __future__ import annotations

from typing import Any

import pytest
from sweep import EAGER_DIES, QUICK, VARIANTS, database, run

BAD = ("crash", "timeout", "wrong", "recompiles")
#: operation -> what is known to be wrong; each with its cause, none for good
FAULTS: dict[str, str] = {}


@pytest.fixture(scope="module")
def ops() -> dict[str, Any]:
    return database()


def _bad(op: Any, count: int, variants: tuple[str, ...]) -> dict[str, Any]:
    return {v: row for v, row in run(op, count, variants).items() if row[0] in BAD}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if k % 3 else ()) for k, name in enumerate(QUICK)]
)
def test_operation(ops: dict[str, Any], name: str) -> None:
    found = _bad(ops[name], 1, ("two", "in-place"))
    if found and name in FAULTS:
        pytest.xfail(FAULTS[name])
    assert not found


@pytest.mark.fuzz
def test_all_operations(ops: dict[str, Any]) -> None:
    found = {name: bad for name, op in ops.items() if (bad := _bad(op, 3, VARIANTS))}
    assert not {name: bad for name, bad in found.items() if name not in FAULTS}
    assert set(FAULTS) == set(found), "take what is mended out of FAULTS"


def test_the_lists_name_operations(ops: dict[str, Any]) -> None:
    assert {*FAULTS, *QUICK, *EAGER_DIES} <= set(ops) and len(set(QUICK)) == len(QUICK)
