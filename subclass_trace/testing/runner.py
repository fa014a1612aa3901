"""Runs rules on a subject: on examples, the plainest first, until one fails.

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
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..stages import stage
from .ambient import set_torch_state, torch_state
from .calls import KINDS
from .evidence import Failure
from .operands import NoOperands, case
from .rules import Profile, Rule
from .script import NotApplicable, Script
from .subject import Subject
from .sweep import Swept, sweep_of


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
        failure: the counterexample.
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


#: what does not hold of a rule whose check hangs or kills the interpreter
ENDS = "the check of this rule comes to an end"
#: how often a rule tries another example, beyond four for each, where there is none of its kind
TRIES = 40


def run_rule(subject: Subject, rule: Rule, profile: Profile) -> Result:
    """Run one rule. Never raises on behalf of the subject; leaves random state, modes and warnings
    as they were."""
    swept = sweep_of(subject, profile.cheap // 2)
    if rule.id in swept.failures or rule.check is None:
        return _by_sweep(rule, swept)
    start = time.perf_counter()
    with (
        stage(rule.id),
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[]),
        _without_logs(),
    ):
        warnings.simplefilter("ignore")
        result = _explore(subject, rule, swept, profile.examples(rule.cost))
    return replace(result, seconds=time.perf_counter() - start)


def _by_sweep(rule: Rule, swept: Swept) -> Result:
    """What the sweep says about a rule."""
    found = swept.failures.get(rule.id, [])
    counted = rule.id in KINDS or rule.id.startswith(("ST40", "ST306"))
    count = swept.passed[rule.id] or len(swept.right) * (not counted and not found)
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
        ((swept.unbuilt or "there is no call of this kind that it does", 1),),
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


def _explore(subject: Subject, rule: Rule, swept: Swept, wanted: int) -> Result:
    """Check examples, the plainest first, until so many have been of the kind that the rule
    needs."""
    assert rule.check is not None
    refused, unbuilt = Counter[str](), Counter[str]()
    checks = examples = 0
    failure: Failure | None = None

    def result(outcome: Outcome, **more: Any) -> Result:
        said = (*refused.most_common(), *unbuilt.most_common())
        return Result(rule, outcome, checks, examples, said, **more)

    for number in range(4 * wanted + TRIES):
        # torch.manual_seed keeps a stack for each device that is not there
        torch.default_generator.manual_seed(0)
        ambient, script = torch_state(), None
        try:
            script = Script(subject, case(subject, number, swept.makes), swept.dangerous)
            rule.check(script)
        except NoOperands as reason:
            unbuilt.update([str(reason)] * (str(reason) != ""))
            continue
        except NotApplicable as reason:
            refused[str(reason)] += 1
        except Failure as found:
            failure = found
        except Exception as error:
            return result(Outcome.ERROR, error="".join(traceback.format_exception(error)))
        finally:
            checks += script.checks if script else 0
            set_torch_state(ambient)
        examples += 1
        if failure:
            return result(Outcome.FAIL, failure=failure)
        if examples == wanted:
            break
    if checks:
        return result(Outcome.PASS)
    refused.update(["there is no example of the kind that the rule needs"] * (not refused))
    return result(Outcome.NOT_APPLICABLE)
