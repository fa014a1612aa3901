"""The kit is tested: sound classes pass, and each broken subclass is caught by its rule and by no other."""

from __future__ import annotations

import warnings

import broken
import pytest
import sound
import torch

from subclass_trace.testing import rules
from subclass_trace.testing.rules import Cost, Profile, Rule
from subclass_trace.testing.runner import Outcome, run_rule

RULES = rules.load()
BROKEN = broken.load()
FEW = Profile("few", 2, 1, 0.0)
QUICK = Profile("quick", 8, 1, 0.5)
#: enough to catch the broken one
SEARCH = Profile("search", 40, 3, 1.0)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.slug)
def test_a_sound_class_passes_each_rule(rule: Rule) -> None:
    result = run_rule(sound.subject(), rule, QUICK)
    assert result.outcome is Outcome.PASS, f"{result.reason}\n{result.failure and result.failure.script}{result.error}"
    assert result.checks > 0


@pytest.mark.parametrize("subject", BROKEN, ids=lambda b: f"{b.rule}-{b.subject.cls.__name__}")
def test_each_broken_subclass_is_caught_by_its_rule(subject: broken.Broken) -> None:
    rule = next(r for r in RULES if r.id == subject.rule)
    result = run_rule(subject.subject, rule, SEARCH)
    assert result.outcome is Outcome.FAIL, f"{result.outcome} {result.reason} {result.error}"
    assert result.failure is not None
    _fails_as_it_says(rule, result.failure.script)


def _fails_as_it_says(rule: Rule, program: str) -> None:
    """The counterexample runs on its own, and ends in the failure."""
    if rule.family != "compiled":
        assert "subclass_trace" not in program
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception) as caught:
            exec(compile(program, "<counterexample>", "exec"), {"__name__": "__counterexample__"})
    assert not isinstance(caught.value, (NameError, SyntaxError, ImportError)), f"{caught.value}\n{program}"


@pytest.mark.parametrize("subject", BROKEN, ids=lambda b: f"{b.rule}-{b.subject.cls.__name__}")
def test_no_other_rule_catches_it(subject: broken.Broken) -> None:
    """A third of the rules of its family, and some of the others; all of them in the slow test."""
    own = next(k for k, r in enumerate(RULES) if r.id == subject.rule)
    some = [r for k, r in enumerate(RULES) if (k - own) % (3 if r.family == RULES[own].family else 22) == 0]
    _only(subject, [r for r in some if r.cost is Cost.CHEAP], FEW)


@pytest.mark.slow
@pytest.mark.parametrize("subject", BROKEN, ids=lambda b: f"{b.rule}-{b.subject.cls.__name__}")
def test_no_other_rule_catches_it_after_many_examples(subject: broken.Broken) -> None:
    _only(subject, list(RULES), QUICK)


def _only(subject: broken.Broken, candidates: list[Rule], profile: Profile) -> None:
    results = [run_rule(subject.subject, r, profile) for r in candidates if r.id != subject.rule]
    caught = {
        r.rule.id: r.reason
        for r in results
        if r.outcome in (Outcome.FAIL, Outcome.ERROR) and r.rule.id not in subject.also
    }
    assert caught == {}


def test_there_is_a_broken_subclass_for_each_rule() -> None:
    assert {b.rule for b in BROKEN} == {r.id for r in RULES}
