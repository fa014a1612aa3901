"""``check`` and ``assert_conforms``: the kit as functions."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

from ..errors import OptionError, SubclassTraceError
from ..stages import working
from .causes import coverage_of
from .isolation import run_rules
from .report import Report
from .resolve import Target, resolve
from .rules import Profile, load, profile_of, select
from .runner import Outcome, Result
from .sweep import sweep_of


class ConformanceError(SubclassTraceError, AssertionError):
    """A class breaks rules of the conformance kit. ``report`` has all results."""

    _contents = re.compile("(?!)(.)")  # the numbers of a counterexample are the kit's own

    def __init__(self, report: Report) -> None:
        self.report = report
        broken = [*report.failures, *report.errors]
        lines = [f"{r.rule.id} {r.rule.title}: {r.reason}" for r in broken]
        super().__init__(
            f"{report.subject.name} breaks {len(broken)} of {len(report.results)} rules\n"
            + "\n".join(lines),
            fix="`report.failures[0].failure.script` is a program that shows the first one, "
            f"`subclass-trace check --explain {broken[0].rule.id}` says how to mend it",
        )


def check(
    target: Target,
    *,
    rules: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    profile: str | Profile = "dev",
    max_examples: int | None = None,
    **options: Any,
) -> Report:
    """Run the rules on a class; never raises because of the class's faults.

    Args:
        target: a wrapper class, a function that makes one from dense tensors, the name of either
            (``"pkg.mod:Cls"``), or a `Subject`.
        rules, skip: ids (``ST101``), beginnings of ids (``ST1``) or families.
        profile: ``"dev"`` (seconds), ``"ci"`` (a minute or two) or ``"thorough"``.
        max_examples: another number of examples per rule.
        options: how to build instances, see `subject.subject_of`: ``factory``, ``to_dense``,
            ``sizes``, ``dtypes``, ``tolerance``.

    Raises:
        OptionError: a rule, profile or option does not exist, no rule is left, or no instance can
            be built.
        ProtocolError: the class is no traceable wrapper subclass.
    """
    level = profile_of(profile).at_most(max_examples)
    chosen = select(rules, skip)
    if not chosen:
        raise OptionError(
            "no rule is left to check", got=f"rules={rules}, skip={skip}", fix="skip fewer"
        )
    subject = resolve(target, **options)
    start = time.perf_counter()
    with working(f"check of {subject.name}"):
        found = {result.rule: result for result in run_rules(subject, chosen, level)}
        results = [found.get(r) or Result(r, Outcome.SKIPPED) for r in load()]
    return Report(
        subject,
        tuple(results),
        level.name,
        time.perf_counter() - start,
        coverage_of(sweep_of(subject)),
    )


def assert_conforms(target: Target, **how: Any) -> Report:
    """`check`, for tests.

    Raises:
        ConformanceError: a rule fails (warnings count).
    """
    report = check(target, **how)
    if not report.ok:
        raise ConformanceError(report)
    return report
