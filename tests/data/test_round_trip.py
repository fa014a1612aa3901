"""Every specialization of the case tables goes ``describe -> JSON -> bind`` in place of itself, and all cases still pass."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "semantics"))
from cases import CASES, Case
from through import Through

from subclass_trace.frontends import region

RIGHT = [c for c in CASES if not (c.refused or c.differs or c.fault)]


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch) -> Through:
    """Whatever is traced goes through JSON."""
    made = Through()
    monkeypatch.setattr(region, "compile_call", made)
    return made


@pytest.mark.parametrize("case", [pytest.param(c, id=f"{c.group}: {c.name}") for c in RIGHT])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.sweep(every=4)
def test_case(case: Case, through: Through) -> None:
    case.run()


@pytest.mark.filterwarnings("ignore")
def test_few_are_not_portable(through: Through) -> None:
    """Each of them says why, with a path."""
    for case in RIGHT[::2]:
        case.run()
    assert through.portable > 50
    assert len(through.gaps) < 0.1 * (through.portable + len(through.gaps))
    assert all(": " in reason for reasons in through.gaps for reason in reasons)
