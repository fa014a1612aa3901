"""`Report`: the results of all rules on one subject, and their JSON form.

The JSON has a ``schema`` number, which changes when a key is renamed or removed; keys may be added without notice:

    schema            1
    class             "package.module.Class"
    versions          {"python": ..., "torch": ..., "subclass_trace": ...}
    profile, seconds  name of the profile, wall time
    made_by           how instances were made: the expression, with gaps for dense tensors, and how it was found
    tolerance         [rtol, atol], with which numbers are compared
    ok                true if no rule fails or breaks
    counts            {"pass": n, "fail": n, "not applicable": n, "skipped": n, "error": n}
    rules             a list, in the order of the ids:
        id, title, family, severity, outcome, checks, examples, seconds
        reason        what failed, or why the rule does not apply; "" for a pass
        failure       null, or {"what", "got", "expected", "script"}
    operations        null, or a list of {"operation", "outcome", "reason", "rank"} (see coverage.py)
"""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .runner import Outcome, Result
from .script import NO_PROJECTION
from .subject import Subject

if TYPE_CHECKING:
    from .coverage import Coverage

SCHEMA = 1


@dataclass(frozen=True)
class Report:
    """The results of a run, in the order of the rules.

    Attributes:
        subject: what was checked.
        results: one per rule, skipped ones too.
        profile: name of the profile.
        seconds: wall time.
        coverage: which operations the class has, if that was asked for.
    """

    subject: Subject
    results: tuple[Result, ...]
    profile: str
    seconds: float
    coverage: Coverage | None = None

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
        missing = sum(r.outcome is Outcome.NOT_APPLICABLE and r.reason == NO_PROJECTION for r in self.results)
        text = "rules about numbers did not apply; give to_dense= (--to-dense '{0}.name'), the dense value of a wrapper"
        return (f"{missing} {text}",) if missing else ()

    @property
    def made_by(self) -> str:
        """How instances were made, and of what."""
        subject = self.subject
        if subject.strategy is not None or not subject.arity:
            return subject.made_by
        sizes = f" of sizes {_shortened(subject.listed)}" if subject.listed else ""
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
            "rules": [_row(r) for r in self.results],
            "operations": None if self.coverage is None else self.coverage.as_json(),
        }

    def __str__(self) -> str:
        from .terminal import plain

        return plain(self)


def _shortened(sizes: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(map(str, sizes[:4])) + (" ..." if len(sizes) > 4 else "")


def versions() -> dict[str, str]:
    """Of Python, torch and this package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("subclass_trace")
    except PackageNotFoundError:  # run from a checkout
        own = "checkout"
    return {"python": platform.python_version(), "torch": str(torch.__version__), "subclass_trace": own}


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
        "failure": failure
        and {"what": failure.what, "got": failure.got, "expected": failure.expected, "script": failure.script},
    }
