"""The kit is tested: a sound class passes, and each broken subclass is caught by its rule, and reported as one cause."""

from __future__ import annotations

import warnings
from weakref import WeakKeyDictionary

import broken
import pytest
import rights
import sound
import torch

from subclass_trace.testing import isolation, rules, sweep
from subclass_trace.testing.ambient import set_torch_state, torch_state
from subclass_trace.testing.causes import causes_of
from subclass_trace.testing.isolation import run_rules
from subclass_trace.testing.rules import PROFILES, Cost, Profile, Rule
from subclass_trace.testing.runner import Outcome, Result, run_rule
from subclass_trace.testing.subject import Subject

RULES = rules.load()
BROKEN = broken.load()
SOUND = sound.subject()
#: what the rule about formulas of one's own is about
FORMULA = sound.subject(sound.WithFormula)
FEW = Profile("few", 2, 1)
QUICK = Profile("quick", 8, 1)
#: enough to catch the broken one
SEARCH = Profile("search", 40, 3)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.slug)
@pytest.mark.sweep(every=3)
def test_a_sound_class_passes_each_rule(rule: Rule) -> None:
    result = run_rule(FORMULA if rule.id in ("ST405", "ST407") else SOUND, rule, QUICK)
    assert result.outcome is Outcome.PASS, f"{result.reason}\n{result.failure and result.failure.script}{result.error}"
    assert result.checks > 0


def _id(b: broken.Broken) -> str:
    return f"{b.rule}-{b.subject.cls.__name__}"


@pytest.mark.parametrize("subject", BROKEN, ids=_id)
@pytest.mark.sweep(every=25)
def test_each_broken_subclass_is_caught_by_its_rule_and_reported_as_one_cause(
    subject: broken.Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the rules that the sweep judges together, or of its own rule alone; of all rules in the slow test."""
    rule = next(r for r in RULES if r.id == subject.rule)
    if rule.id == "ST802":  # which does not come to an end
        monkeypatch.setattr(isolation, "CALL_LIMIT", 1.0)
    if rule.cost is Cost.SWEEP:
        results = list(run_rules(subject.subject, [r for r in RULES if r.cost is Cost.SWEEP], FEW))
    else:  # what its check finds needs no sweep
        monkeypatch.setattr(sweep, "_DONE", WeakKeyDictionary())
        sweep.keep(subject.subject, sweep.unswept(subject.subject))
        results = [run_rule(subject.subject, rule, SEARCH)]
    result = next(r for r in results if r.rule is rule)
    assert result.outcome is Outcome.FAIL, f"{result.outcome} {result.reason} {result.error}"
    assert result.failure is not None
    _one_cause(subject, results)
    if rule.id == "ST802":  # its program does not come to an end
        return
    _fails_as_it_says(rule, result.failure.standalone)
    if rule.family != "compiled":
        assert len(result.failure.lines) <= (15 if rule.id != "ST517" else 20)


def _fails_as_it_says(rule: Rule, program: str) -> None:
    """The counterexample runs on its own, and ends in the failure."""
    if rule.family != "compiled":
        assert "subclass_trace" not in program
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        state = torch_state()
        try:
            with pytest.raises(Exception) as caught:
                exec(compile(program, "<counterexample>", "exec"), {"__name__": "__counterexample__"})
        finally:
            set_torch_state(state)
    assert not isinstance(caught.value, (NameError, SyntaxError, ImportError)), f"{caught.value}\n{program}"


@pytest.mark.parametrize("subject", rights.RIGHT, ids=lambda s: s.cls.__name__)
@pytest.mark.sweep(every=3)
def test_the_sweep_of_a_right_class_is_clean(subject: Subject) -> None:
    results = run_rules(subject, [r for r in RULES if r.cost is Cost.SWEEP], FEW)
    assert {r.rule.id: r.reason for r in results if r.failure or r.error} == {}


@pytest.mark.slow
@pytest.mark.parametrize("subject", BROKEN, ids=_id)
def test_all_that_it_breaks_follows_from_one_cause(subject: broken.Broken) -> None:
    _one_cause(subject, list(run_rules(subject.subject, RULES, PROFILES["dev"])))


def _one_cause(subject: broken.Broken, results: list[Result]) -> None:
    assert [r.error for r in results if r.outcome is Outcome.ERROR] == []
    causes = causes_of(r for r in results if r.failure is not None and r.rule.id not in subject.also)
    heads = {c.head.rule.id for c in causes}
    assert heads <= {subject.rule, *subject.heads}, [(c.title, c.head.reason) for c in causes]


def test_there_is_a_broken_subclass_for_each_rule() -> None:
    assert {b.rule for b in BROKEN} == {r.id for r in RULES}
