"""Real classes break the rules that docs/scorecard.md says, and no others; the page's programs show it.

The page is for one version of torch, torchao and quanto; under another one, or without a library, its tests do not apply.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

import pytest
import torch
import torch.distributed as dist

from subclass_trace.testing.known import KNOWN
from subclass_trace.testing.profiles import PROFILES, Profile
from subclass_trace.testing.resolve import load_target, resolve
from subclass_trace.testing.rules import Cost, Rule, load
from subclass_trace.testing.runner import Outcome, run_rule
from tools import scorecard

PAGE = scorecard.PAGE.read_text(encoding="utf-8")
FINDINGS = scorecard.findings(PAGE)
FEW = Profile("few", 2, 1, 0.0)
QUICK = [n for n in KNOWN if n.startswith("subclass_trace.") or n.endswith((".two_tensor.TwoTensor", ".DTensor"))]


def of(name: str) -> str:
    """The name that the page has for an entry of the table of known classes."""
    library = name.partition(".")[0]
    wanted = {"optimum": "optimum-quanto", "subclass_trace": "torch"}.get(library, library)
    try:
        found = version(wanted).partition("+")[0]
    except PackageNotFoundError:
        pytest.skip(f"{wanted} is not installed")
    if not re.search(rf"\b{wanted} {re.escape(found)}\b", PAGE):
        pytest.skip(f"the score card is for another version of {wanted}")
    cls = load_target(name)
    return f"{cls.__module__}.{cls.__qualname__}"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What classes and programs log, warn about and leave behind is not of interest here."""
    had_group = dist.is_initialized()
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)
    if dist.is_initialized() and not had_group:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", QUICK)
def test_a_class_breaks_no_more_than_the_card_says(name: str) -> None:
    """Rules that compile on two of them; on all, and with more examples, in the slow test."""
    dear = name.endswith((".zoo.two.TwoTensor", ".DTensor"))
    assert _broken(name, FEW, [r for r in load() if dear or r.cost is Cost.CHEAP]) <= FINDINGS.get(of(name), {}).keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_a_class_breaks_what_the_card_says(name: str) -> None:
    assert _broken(name, PROFILES["dev"], load()) == FINDINGS.get(of(name), {}).keys()


def _broken(name: str, profile: Profile, rules: Sequence[Rule]) -> set[str]:
    of(name)
    subject = resolve(name)
    results = [run_rule(subject, r, profile) for r in rules]
    assert [r.error for r in results if r.outcome is Outcome.ERROR] == []
    assert all(r.checks > 0 for r in results if r.outcome is Outcome.PASS)
    assert sum(r.outcome is Outcome.PASS for r in results) >= 35
    return {r.rule.id for r in results if r.outcome is Outcome.FAIL}


def test_the_classes_of_this_package_break_nothing() -> None:
    own = [n for n in KNOWN if n.startswith("subclass_trace.")]
    assert len(own) == 7 and all(f"`{n}`" in PAGE for n in own)
    assert [cls for cls in FINDINGS if cls.startswith("subclass_trace.")] == []


def test_the_card_has_the_classes_that_people_use() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert "not run" not in PAGE and len(rows) == len(KNOWN)
    assert sum("`torchao." in row for row in rows) >= 10
    for name in ("two_tensor.TwoTensor", "DTensor", "NestedTensor", "SparseSemiStructuredTensorCUTLASS", "quanto"):
        assert any(name in row for row in rows), name


def test_every_finding_was_judged() -> None:
    unjudged = [
        (c, r) for c, rules in FINDINGS.items() for r in rules if scorecard.verdict(c, r) == scorecard.UNCHECKED
    ]
    assert unjudged == [] and scorecard.UNCHECKED not in PAGE
    assert sum(map(len, FINDINGS.values())) > 50


def test_no_judgement_is_left_over() -> None:
    found = {
        (key, rule) for cls, rules in FINDINGS.items() for rule in rules for key in (cls, cls.rpartition(".")[2], "*")
    }
    assert set(scorecard.VERDICTS) <= found


#: shows what happens to be in uninitialised memory
CHANCE = ("torch.testing._internal.common_subclass.SubclassWithTensorFactory", "ST306")
PROGRAMS = [(c, r, text) for c, rules in FINDINGS.items() for r, text in rules.items() if (c, r) != CHANCE]


@pytest.mark.parametrize(("cls", "rule", "text"), PROGRAMS, ids=[f"{c.rpartition('.')[2]}-{r}" for c, r, _ in PROGRAMS])
def test_the_programs_fail_as_they_say(cls: str, rule: str, text: str) -> None:
    of(next(n for n in KNOWN if n.partition(".")[0] == cls.partition(".")[0]))
    names = {"__name__": "__counterexample__"}
    with torch.random.fork_rng(devices=[]), pytest.raises(Exception) as caught:
        exec(compile(text, f"<{cls} {rule}>", "exec"), names)
    assert not isinstance(caught.value, (NameError, SyntaxError, ImportError)), caught.value
