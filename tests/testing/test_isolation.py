"""Rules in a forked process: what hangs or dies is named, and a class is not blamed for what it did not do."""

from __future__ import annotations

import gc
import os

import pytest
import torch
from sound import Sound, subject

from subclass_trace.testing import isolation
from subclass_trace.testing.causes import causes_of
from subclass_trace.testing.isolation import run_rules
from subclass_trace.testing.rules import Cost, Profile, load
from subclass_trace.testing.runner import Outcome, Result

aten = torch.ops.aten
FEW = Profile("few", 2, 1)


def results_of(cls: type, *ids: str) -> dict[str, Result]:
    """The results of the sweep and of these rules."""
    rules = [r for r in load() if r.cost is Cost.SWEEP or r.id in ids]
    return {r.rule.id: r for r in run_rules(subject(cls), rules, FEW)}


class Waits(Sound):
    """erf waits for a shape that does not come."""

    @classmethod
    def compute(cls, func, args, kwargs):
        while func is aten.erf.default and args[0].dim() < 9:
            pass
        return super().compute(func, args, kwargs)


class Dies(Sound):
    """tan ends the process."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.tan.default:
            os._exit(3)
        return super().compute(func, args, kwargs)


class PrintsForEver(Sound):
    """repr, which the sweep does not call, does not come to an end."""

    def __repr__(self):
        while True:
            pass


class SeesOldGarbage(Sound):
    """sin is another one where the collector walks what the parent of a process has made."""

    frozen = 0

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.sin.default and gc.get_freeze_count() <= cls.frozen:
            out.data_ = out.data_ + 1
        return out


class AsksForIds(Sound):
    """Its code calls id, which a region refuses; torch.compile does not."""

    @classmethod
    def compute(cls, func, args, kwargs):
        seen = {id(args[0]): 1}
        return super().compute(func, args[: len(args) * len(seen)], kwargs)


pytestmark = pytest.mark.skipif(not isolation.can_fork(), reason="rules run in this process here")


@pytest.mark.long
def test_a_call_that_hangs_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "CALL_LIMIT", 0.5)
    result = results_of(Waits)["ST802"]
    assert result.calls == ("x.erf()",)
    assert "it does not come to an end: File" in result.reason and "in compute" in result.reason


@pytest.mark.long
def test_a_call_that_ends_the_process_is_named() -> None:
    result = results_of(Dies)["ST802"]
    assert result.calls == ("x.tan()",)
    assert "the interpreter dies (status 3)" in result.reason


@pytest.mark.long
def test_a_rule_that_hangs_costs_that_rule_and_is_said_to_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "RULE_LIMIT", 2.0)
    results = results_of(PrintsForEver, "ST804", "ST805")
    broken = [r for r in results.values() if r.failure is not None]
    assert [(c.title, c.head.rule.id) for c in causes_of(broken)] == [("it crashes or hangs", "ST804")]
    assert results["ST805"].outcome is Outcome.PASS


@pytest.mark.long
def test_the_time_to_walk_what_the_parent_made_is_no_time_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeesOldGarbage, "frozen", gc.get_freeze_count())
    assert results_of(SeesOldGarbage)["ST310"].failure is None


@pytest.mark.long
def test_what_a_region_alone_refuses_is_no_fault_of_the_class() -> None:
    result = results_of(AsksForIds, "ST704")["ST704"]
    assert (result.outcome, result.reason) == (Outcome.PASS, "")


@pytest.mark.long
def test_a_fault_of_the_kit_is_no_fault_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise RuntimeError("of the kit")

    monkeypatch.setattr(isolation, "run_rule", fails)
    results = results_of(Sound)
    assert {r.outcome for r in results.values()} == {Outcome.ERROR}
    assert "RuntimeError: of the kit" in results["ST310"].reason
