"""Every specialization of the case tables goes ``describe -> JSON -> bind`` in place of itself, and all cases still pass."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "semantics"))
from cases import CASES, Case
from through import Through

from subclass_trace.frontends import region

#: what all of them were
_SEEN: list[Through] = []


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch) -> Iterator[Through]:
    """Whatever is traced goes through JSON."""
    made = Through()
    monkeypatch.setattr(region, "compile_call", made)
    yield made
    _SEEN.append(made)


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=f"{c.group}: {c.name}") for c in CASES if not (c.refused or c.differs or c.fault)]
)
@pytest.mark.filterwarnings("ignore")
def test_case(case: Case, through: Through) -> None:
    case.run()


def test_few_are_not_portable() -> None:
    """Each of them says why, with a path."""
    if len(_SEEN) < 100:
        pytest.skip("the cases did not run before, in this process")
    portable, gaps = sum(t.portable for t in _SEEN), [reasons for t in _SEEN for reasons in t.gaps]
    assert len(gaps) < 0.1 * (portable + len(gaps))
    assert all(": " in reason for reasons in gaps for reason in reasons)
