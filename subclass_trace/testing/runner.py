"""Runs rules on a subject: draws examples, counts the checks, keeps the smallest counterexample.

A rule passes only if it made at least one check; one whose examples all did not apply is "not
applicable", with the reasons. An exception inside of a rule that is no failure of the subject is an
"error": a fault of the kit.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, reject, settings
from hypothesis import strategies as s
from hypothesis.errors import HypothesisException, Unsatisfiable, UnsatisfiedAssumption

from ..stages import stage
from .calls import KINDS
from .rules import Cost, Profile, Rule
from .script import Failure, NotApplicable, NotBuilt, Script
from .subject import Subject
from .sweep import Swept, set_torch_state, sweep_of, torch_state


class Outcome(enum.Enum):
    """What came of a rule."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"
    SKIPPED = "skipped"
    ERROR = "error"


@dataclass(frozen=True)
class Result:
    """What came of one rule on one subject.

    Attributes:
        rule: the rule.
        outcome: see `Outcome`.
        checks: comparisons made; at least 1 for a pass.
        examples: examples that were run.
        refused: why examples did not apply, most frequent first, with how often; what the factory
            refused comes last.
        failure: the smallest counterexample.
        error: the traceback of a fault in the kit.
        seconds: wall time.
        calls: all calls of the sweep that break it.
        suspects: operations of these calls that no right call takes.
    """

    rule: Rule
    outcome: Outcome
    checks: int = 0
    examples: int = 0
    refused: tuple[tuple[str, int], ...] = ()
    failure: Failure | None = None
    error: str | None = None
    seconds: float = 0.0
    calls: tuple[str, ...] = ()
    suspects: frozenset[str] = frozenset()

    @property
    def reason(self) -> str:
        """One line: what failed, or why the rule does not apply."""
        if self.failure is not None:
            return f"{self.failure.what}: got {self.failure.got}, expected {self.failure.expected}"
        if self.error is not None:
            return self.error.strip().splitlines()[-1]
        return self.refused[0][0] if self.refused and self.outcome is not Outcome.PASS else ""


@dataclass
class _Tally:
    """What the examples of one rule have left behind."""

    checks: int = 0
    examples: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    unbuilt: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    error: str | None = None
    failing_since: float | None = None
    rejected: int = 0  # examples of another kind than the rule needs
    tries_left: int = 0  # how often another example may be drawn for one that cannot be built


#: what does not hold of a rule whose check hangs or kills the interpreter
ENDS = "the check of this rule comes to an end"
#: how often a rule draws another example, beyond four for each, where the class refuses to be built
TRIES = 40
#: after so many examples of another kind, and none of the kind that the rule needs, it does not
# apply
REJECTIONS = 120


def run_rule(subject: Subject, rule: Rule, profile: Profile) -> Result:
    """Run one rule. Never raises on behalf of the subject; leaves random state, modes and warnings
    as they were."""
    swept = sweep_of(subject, profile.cheap // 2)
    if rule.id in swept.failures or rule.cost is Cost.SWEEP:
        return _by_sweep(rule, swept)
    tally = _Tally(tries_left=TRIES + 4 * profile.examples(rule.cost))
    start = time.perf_counter()
    ambient = torch_state()
    try:
        with (
            stage(rule.id),
            warnings.catch_warnings(),
            torch.random.fork_rng(devices=[]),
            _without_logs(),
        ):
            warnings.simplefilter("ignore")
            _explore(subject, rule, profile, tally)
    finally:
        set_torch_state(ambient)
    return replace(_judge(rule, tally), seconds=time.perf_counter() - start)


def _by_sweep(rule: Rule, swept: Swept) -> Result:
    """What the sweep says about a rule."""
    found = swept.failures.get(rule.id, [])
    counted = rule.id in KINDS or rule.id.startswith(("ST40", "ST306"))
    count = swept.passed[rule.id] or len(swept.right) * (not counted)
    if found:
        calls = tuple(dict.fromkeys(f.call for f in found))
        clean = frozenset[str]().union(*swept.right.values())
        suspects = frozenset[str]().union(*(f.operations for f in found)) - clean
        worst = min(found, key=_length)
        return Result(
            rule, Outcome.FAIL, count + len(found), 1, failure=worst, calls=calls, suspects=suspects
        )
    if count:
        return Result(rule, Outcome.PASS, count, 1)
    return Result(
        rule,
        Outcome.NOT_APPLICABLE,
        0,
        1,
        ((swept.unbuilt or "it refuses all calls of this kind", 1),),
    )


def _length(failure: Failure) -> tuple[int, int]:
    return len(failure.lines), sum(map(len, failure.lines))


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Drop what torch logs: an error for each operation that is refused under tracing, and
    thousands of records of its structured trace for each compilation, which pytest would collect
    and print.

    With TORCH_LOGS or TORCH_TRACE somebody has asked for them.
    """
    if os.environ.get("TORCH_LOGS") or os.environ.get("TORCH_TRACE"):
        yield
        return
    trace, before = logging.getLogger("torch.__trace"), logging.root.manager.disable
    trace.addFilter(_drop)  # torch makes this logger ignore `logging.disable`
    logging.disable(max(before, logging.ERROR))
    try:
        yield
    finally:
        logging.disable(before)
        trace.removeFilter(_drop)


def _drop(record: logging.LogRecord) -> bool:
    return False


def _explore(subject: Subject, rule: Rule, profile: Profile, tally: _Tally) -> None:
    shrink = rule.cost is not Cost.DEAR

    @settings(
        max_examples=profile.examples(rule.cost),
        database=None,
        derandomize=True,
        deadline=None,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
    )
    @given(s.data())
    def explore(data: Any) -> None:
        late = (
            tally.failing_since is not None
            and time.perf_counter() - tally.failing_since > profile.shrink_seconds
        )
        if not late:
            swept = sweep_of(subject)
            _example(Script(subject, data.draw, swept.makes, swept.dangerous), rule, tally)

    try:
        explore()
    except (Failure, _KitError, Unsatisfiable):
        pass
    except HypothesisException as error:
        # Shrinking was cut short, or the failure does not come again: the counterexamples seen so
        # far count.
        if not tally.failures and tally.error is None:
            tally.error = "".join(traceback.format_exception(error))


class _KitError(Exception):
    """A rule broke."""


def _example(script: Script, rule: Rule, tally: _Tally) -> None:
    tally.examples += 1
    torch.default_generator.manual_seed(
        0
    )  # torch.manual_seed keeps a stack for each device that is not there
    ambient = torch_state()
    try:
        rule.check(script)
    except NotBuilt as reason:
        tally.unbuilt[str(reason)] += 1
        if tally.tries_left:  # hypothesis draws another one
            tally.tries_left -= 1
            tally.examples -= 1
            reject()
    except NotApplicable as reason:
        tally.refused[str(reason)] += 1
    except Failure as failure:
        tally.failures.append(failure)
        tally.failing_since = tally.failing_since or time.perf_counter()
        raise
    except UnsatisfiedAssumption:
        tally.rejected += 1
        if tally.checks or tally.rejected < REJECTIONS:
            raise
    except HypothesisException:
        raise
    except Exception as error:
        tally.error = "".join(traceback.format_exception(error))
        raise _KitError from error
    finally:
        tally.checks += script.checks
        set_torch_state(ambient)


def _judge(rule: Rule, tally: _Tally) -> Result:
    refused = (*tally.refused.most_common(), *tally.unbuilt.most_common())
    if tally.failures:
        smallest = min(tally.failures, key=_length)
        return Result(rule, Outcome.FAIL, tally.checks, tally.examples, refused, smallest)
    if tally.error is not None:
        return Result(rule, Outcome.ERROR, tally.checks, tally.examples, refused, error=tally.error)
    if tally.checks:
        return Result(rule, Outcome.PASS, tally.checks, tally.examples, refused)
    refused = refused or (
        ("no example of the kind that the rule needs can be drawn", tally.examples),
    )
    return Result(rule, Outcome.NOT_APPLICABLE, 0, tally.examples, refused)
