"""Every case of the semantics table holds, and docs/limits.md is the table of today's cases."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo
from cases import CASES, Case

import subclass_trace as st

ROOT = Path(__file__).resolve().parents[2]


def _parameter(case: Case) -> object:
    return pytest.param(case, id=f"{case.group}: {case.name}")


@pytest.mark.parametrize("case", [_parameter(c) for c in CASES])
@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
def test_case(case: Case, request: pytest.FixtureRequest) -> None:
    if case.refused or case.differs:  # small dense regions do what eager mode does in more cases
        request.getfixturevalue("own_backward")
    if case.fault:  # a known fault, listed in docs/limits.md; this flips when it is mended: delete `fault=` then
        with pytest.raises(Exception):
            case.run()
        return
    if not case.refused and not case.differs:
        case.run()
        return
    if case.refused == "eager":
        with pytest.warns(UserWarning, match="runs eagerly"):
            case.run()
        return
    with pytest.raises((AssertionError, st.SubclassTraceError)) as caught:
        case.run()
    error = caught.value
    if case.refused:  # the comparison with eager wraps the error of the region
        error = error if isinstance(error, st.SubclassTraceError) else error.__cause__
        assert type(error).__name__ == case.refused, f"{case.refused} was expected"
    else:
        assert isinstance(error, AssertionError) and error.__cause__ is None, f"another value was expected, not {error}"


@pytest.mark.parametrize("case", [_parameter(c) for c in CASES if c.refused])
@pytest.mark.filterwarnings("ignore")
def test_handed_over(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBCLASS_TRACE_FRONTEND", "auto")
    torch._dynamo.reset()
    if case.handed:
        case.run()
        return
    with pytest.raises(Exception) as caught:
        case.run()
    found = [caught.value, caught.value.__cause__]
    assert any(type(e).__name__ == case.refused for e in found), found


def test_names_are_different() -> None:
    names = [(c.group, c.name) for c in CASES]
    assert len(set(names)) == len(names)


def test_the_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    import limits_table

    assert limits_table.PAGE.read_text() == limits_table.page(), "run: python -m tools.limits_table"
