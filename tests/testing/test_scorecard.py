"""Real classes break the rules that docs/scorecard.md says, and no others.

The page is for one version of torch, torchao and quanto; under another one, or without a library, its tests do not apply.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

import pytest
import torch.distributed as dist
from known import KNOWN

from subclass_trace.testing.resolve import load_target, resolve
from subclass_trace.testing.rules import PROFILES, Cost, Profile, Rule, load
from subclass_trace.testing.runner import Outcome, run_rule
from tools import scorecard

PAGE = scorecard.PAGE.read_text(encoding="utf-8")
FINDINGS = scorecard.findings(PAGE)
FEW = Profile("few", 2, 1)
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
@pytest.mark.sweep(every=4)
def test_a_class_breaks_no_more_than_the_card_says(name: str) -> None:
    """Rules that compile on two of them; on all, and with more examples, in the slow test.

    The findings of the sweep are on the card as far as somebody has judged them; a class of this package has none.
    """
    dear = name.endswith((".zoo.two.TwoTensor", ".DTensor"))
    own = name.startswith("subclass_trace.")
    kinds = {Cost.CHEAP, Cost.SEVERAL, *([Cost.SWEEP] if own else []), *([Cost.DEAR] if dear else [])}
    assert _broken(name, FEW, [r for r in load() if r.cost in kinds]) <= FINDINGS[of(name)]


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_a_class_breaks_what_the_card_says(name: str) -> None:
    rules = [r for r in load() if r.cost is not Cost.SWEEP]
    judged = {r.id for r in rules} & FINDINGS[of(name)]
    assert _broken(name, PROFILES["dev"], rules) == judged


def _broken(name: str, profile: Profile, rules: Sequence[Rule]) -> set[str]:
    of(name)
    options = dict(KNOWN[name])
    skip = options.pop("skip", ())
    subject = resolve(load_target(name), **options)
    results = [run_rule(subject, r, profile) for r in rules if r.id not in skip]
    assert [r.error for r in results if r.outcome is Outcome.ERROR] == []
    assert all(r.checks > 0 for r in results if r.outcome is Outcome.PASS)
    assert sum(r.outcome is Outcome.PASS for r in results) >= 10
    return {r.rule.id for r in results if r.outcome is Outcome.FAIL}


def test_the_classes_of_this_package_break_nothing() -> None:
    own = [cls for cls in FINDINGS if cls.startswith("subclass_trace.")]
    assert len(own) == 6 and not any(FINDINGS[cls] for cls in own)


def test_the_card_has_the_classes_that_people_use() -> None:
    assert len(FINDINGS) == len(KNOWN)
    assert sum(cls.startswith("torchao.") for cls in FINDINGS) >= 10


def test_every_finding_was_judged_and_no_judgement_is_left_over() -> None:
    told = scorecard.judged(PAGE)
    found = {(cls.rpartition(".")[2], rule) for cls, rules in FINDINGS.items() for rule in rules}
    assert [f for f in found if f not in told and ("*", f[1]) not in told] == []
    assert {rule for _, rule in told} <= {rule for _, rule in found}
    assert {f for f in told if f[0] != "*"} <= found
