"""`Report`: the results of all rules on one subject, as text, JSON and a page.

The JSON has a ``schema`` number, which changes when a key is renamed or removed; keys may be added
without notice:

    schema            3
    class             "package.module.Class"
    versions          {"python": ..., "torch": ..., "subclass_trace": ...}
    profile, seconds  name of the profile, wall time
    made_by           how instances were made: the expression, with gaps for dense tensors, and how
                      it was found
    tolerance         [rtol, atol], with which numbers are compared
    ok                true if no rule fails or breaks
    counts            {"pass": n, "fail": n, "not applicable": n, "skipped": n, "error": n}
    coverage          {"use": ..., "right": n, "wrong": n, "refused": {call: what it says},
                      "untried": [calls]}
    causes            a list, what hurts most first: {"cause", "rule", "also"}
    rules             a list, in the order of the ids:
        id, title, family, severity, outcome, checks, examples, seconds
        reason        what failed, or why the rule does not apply; "" for a pass
        calls         calls of the sweep that break it
        failure       null, or {"what", "got", "expected", "script", "standalone"}
"""

from __future__ import annotations

import html
import platform
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..report.page import document
from .causes import Cause, Coverage, causes_of
from .runner import Outcome, Result
from .subject import Subject

SCHEMA = 3


@dataclass(frozen=True)
class Report:
    """The results of a run, in the order of the rules.

    Attributes:
        subject: what was checked.
        results: one per rule, skipped ones too.
        profile: name of the profile.
        seconds: wall time.
        coverage: how many calls of the sweep were right, wrong, refused, not tried.
    """

    subject: Subject
    results: tuple[Result, ...]
    profile: str
    seconds: float
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def causes(self) -> list[Cause]:
        """The failures by likely cause, what would hurt a user most first."""
        return causes_of(self.failures)

    @property
    def failures(self) -> tuple[Result, ...]:
        """Results of rules that do not hold."""
        return tuple(r for r in self.results if r.outcome is Outcome.FAIL)

    @property
    def errors(self) -> tuple[Result, ...]:
        """Results of rules that broke: faults of the kit."""
        return tuple(r for r in self.results if r.outcome is Outcome.ERROR)

    @property
    def ok(self) -> bool:
        """Did no rule fail or break?"""
        return not self.failures and not self.errors

    @property
    def counts(self) -> Counter[Outcome]:
        """How many rules had which outcome."""
        return Counter(r.outcome for r in self.results)

    @property
    def hints(self) -> tuple[str, ...]:
        """What would let more rules apply."""
        text = (
            "numbers were not compared; give to_dense= (--to-dense '{0}.name'), the dense "
            "value of a wrapper"
        )
        return () if self.subject.dense is not None else (text,)

    @property
    def made_by(self) -> str:
        """How instances were made, and of what."""
        subject = self.subject
        sizes = f" of sizes {_shortened(subject.sizes)}" if subject.sizes else ""
        dtypes = ", ".join(str(d).removeprefix("torch.") for d in subject.dtypes)
        return f"{subject.made_by} from dense tensors{sizes}, {dtypes}"

    def result(self, id: str) -> Result:
        """The result of one rule."""
        return next(r for r in self.results if r.rule.id == id)

    def as_json(self) -> dict[str, Any]:
        """The report as plain data, see the top of this file."""
        return {
            "schema": SCHEMA,
            "class": self.subject.name,
            "versions": versions(),
            "profile": self.profile,
            "seconds": round(self.seconds, 3),
            "made_by": self.made_by,
            "tolerance": list(self.subject.tolerance),
            "ok": self.ok,
            "counts": {o.value: self.counts[o] for o in Outcome},
            "coverage": self.coverage.as_json(),
            "causes": [c.as_json() for c in self.causes],
            "rules": [_row(r) for r in self.results],
        }

    def __str__(self) -> str:
        return text(self)


def _shortened(sizes: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(map(str, sizes[:4])) + (" ..." if len(sizes) > 4 else "")


def versions() -> dict[str, str]:
    """Of Python, torch and this package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("subclass_trace")
    except PackageNotFoundError:  # run from a checkout
        own = "checkout"
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "subclass_trace": own,
    }


def _row(r: Result) -> dict[str, Any]:
    failure = r.failure
    return {
        "id": r.rule.id,
        "title": r.rule.title,
        "family": r.rule.family,
        "severity": r.rule.severity.value,
        "outcome": r.outcome.value,
        "checks": r.checks,
        "examples": r.examples,
        "seconds": round(r.seconds, 3),
        "reason": r.reason,
        "calls": list(r.calls),
        "failure": failure
        and {
            "what": failure.what,
            "got": failure.got,
            "expected": failure.expected,
            "script": failure.script,
            "standalone": failure.standalone,
        },
    }


# ---- in a terminal


MARKS = {
    Outcome.PASS: "✓",
    Outcome.FAIL: "✗",
    Outcome.NOT_APPLICABLE: "–",
    Outcome.ERROR: "!",
}


def text(report: Report) -> str:
    """The report for people: each cause with one program, a line for each rule, a summary."""
    lines = [report.subject.name]
    for number, cause in enumerate(report.causes, 1):
        lines += ["", *_cause(number, cause)]
    lines.append("")
    for r in report.results:
        if r.outcome is not Outcome.SKIPPED:
            lines.append(
                f"{MARKS[r.outcome]} {r.rule.id} {r.rule.title}"
                + (f" ({r.checks})" if r.checks else "")
            )
            lines += [] if r.outcome is Outcome.PASS else [f"      {r.reason[:200]}"]
    for r in report.errors:
        lines += [
            "",
            _ruled(f"{r.rule.id} broke: a fault of the kit, please report it"),
            r.error or "",
        ]
    text = "\n".join([*lines, summary(report)])
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _cause(number: int, cause: Cause) -> list[str]:
    """One cause: what is wrong, the program that shows it, and what else it breaks."""
    head = cause.head
    assert head.failure is not None
    lines = [
        _ruled(
            f"{number}. {cause.title}: {head.rule.id} {head.rule.title} "
            f"({head.rule.severity.value})"
        )
    ]
    lines += [str(head.failure), "", head.failure.script]
    if len(head.calls) > 1:
        others = [_one_line(c) for c in head.calls if c != head.failure.call]
        lines.append(
            f"The same in {len(others)} other call{'s' * (len(others) > 1)}: "
            f"{'; '.join(others[:8])}{' ...' * (len(others) > 8)}"
        )
    if cause.others:
        lines.append(
            "It also breaks: " + "; ".join(f"{r.rule.id} {r.rule.title}" for r in cause.others)
        )
    return [*lines, head.rule.advice]


def _one_line(call: str) -> str:
    return " ".join(call.split())[:80]


def _ruled(title: str) -> str:
    return f"{title} ".ljust(100, "-")


def summary(report: Report) -> str:
    """What came of all rules, what was not exercised, and how instances were made."""
    counts = report.counts
    parts = [f"{counts[o]} {o.value}" for o in Outcome if counts[o]]
    checks = sum(r.checks for r in report.results)
    line = (
        f"{report.subject.name}: {', '.join(parts)}; {checks} checks in {report.seconds:.1f} "
        f"s ({report.profile})"
    )
    notes = (f"note: {n}" for n in (*report.subject.notes, *report.hints))
    return "\n".join([line, *report.coverage.text, report.made_by, *notes])


def write_page(report: Report, path: Path) -> Path:
    """Write the report as an HTML page that needs nothing else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        document(report.subject.name, f"<pre>{html.escape(text(report))}</pre>"), encoding="utf-8"
    )
    return path
