"""Right classes of 26 families are clean, and each of a hundred and sixty with one fault is caught, and named by its cause.

The classes are text (`families`, `strangers*.py`), written into modules. A part of the faults is judged by the sweep alone;
all of them by all rules in the slow test.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from families import FAMILIES, HEAD
from strangers import FAULTS, Fault
from strangers_fourth import FOURTH
from strangers_later import LATER
from strangers_third import THIRD

from subclass_trace.testing import check
from subclass_trace.testing.causes import causes_of
from subclass_trace.testing.isolation import run_rules
from subclass_trace.testing.resolve import resolve
from subclass_trace.testing.rules import Cost, Profile, load
from subclass_trace.testing.subject import Subject

#: where a fault keeps something outside of its class
CACHE = "CACHE = {}\n"

#: of four rounds
EVERY = [*FAULTS, *LATER, *THIRD, *FOURTH]

FEW = Profile("few", 4, 1)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder from which modules are imported."""
    folder = tmp_path_factory.mktemp("strangers")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


def made(home: Path, name: str, family: str, source: str) -> Subject:
    """The subject of a class whose source this is."""
    (home / f"{name}.py").write_text(f"{HEAD}\n{CACHE}\n\n{source}", encoding="utf-8")
    importlib.invalidate_caches()
    return resolve(getattr(importlib.import_module(name), family), **FAMILIES[family][1])


def broken(home: Path, fault: Fault) -> Subject:
    """The subject of a class with a fault."""
    source = FAMILIES[fault.family][0]
    assert source.count(fault.old) == 1
    return made(home, f"fault_{fault.name}", fault.family, source.replace(fault.old, fault.new))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.sweep(every=8)
def test_the_sweep_of_a_right_class_is_clean(home: Path, family: str) -> None:
    subject = made(home, f"right_{family.lower()}", family, FAMILIES[family][0])
    swept = [r for r in load() if r.cost is Cost.SWEEP]
    broken = {r.rule.id: r.reason for r in run_rules(subject, swept, FEW) if r.failure is not None}
    assert broken == {}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_right_class_is_clean(home: Path, family: str) -> None:
    subject = made(home, f"right_{family.lower()}", family, FAMILIES[family][0])
    report = check(subject)
    assert report.ok, str(report)
    assert report.coverage.right >= 50


@pytest.mark.parametrize("fault", EVERY[::8], ids=lambda f: f.name)
@pytest.mark.sweep(every=8)
def test_a_fault_is_found_by_the_sweep(home: Path, fault: Fault) -> None:
    swept = [r for r in load() if r.cost is Cost.SWEEP or r.id in fault.rules]
    causes = causes_of(r for r in run_rules(broken(home, fault), swept, FEW) if r.failure is not None)
    assert causes and causes[0].head.rule.id in fault.rules.split()


@pytest.mark.slow
@pytest.mark.parametrize("fault", EVERY, ids=lambda f: f.name)
def test_a_fault_is_found_and_named_by_its_cause(home: Path, fault: Fault) -> None:
    report = check(broken(home, fault))
    assert report.causes, str(report)
    assert report.causes[0].head.rule.id in fault.rules.split()
