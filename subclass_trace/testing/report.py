"""`Report`: the results of all rules on one subject, as text, JSON and a page.

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

import io
import platform
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .coverage import Coverage, Support
from .rules import Rule, Severity
from .runner import Outcome, Result
from .script import NO_PROJECTION
from .subject import Subject

if TYPE_CHECKING:
    from rich.console import Console

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
            "rules": [_row(r) for r in self.results],
            "operations": None if self.coverage is None else self.coverage.as_json(),
        }

    def __str__(self) -> str:
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


# ------------------------------------------------------------------------------------------------------ in a terminal
MARKS = {
    Outcome.PASS: ("✓", "green"),
    Outcome.FAIL: ("✗", "bold red"),
    Outcome.NOT_APPLICABLE: ("–", "dim"),
    Outcome.SKIPPED: ("·", "dim"),
    Outcome.ERROR: ("!", "bold magenta"),
}
SUPPORT_COLOURS = {
    Support.SUPPORTED: "green",
    Support.DENSE: "blue",
    Support.REFUSED: "yellow",
    Support.WRONG: "red",
}


def show(report: Report, console: Console | None = None) -> None:
    """Print a report with rich."""
    from rich.console import Console
    from rich.markup import escape
    from rich.syntax import Syntax
    from rich.table import Table

    console = console or Console()
    table = Table(title=report.subject.name, title_justify="left", show_header=False, box=None, pad_edge=False)
    for how in ({}, {"overflow": "fold"}, {"justify": "right"}):
        table.add_column(**how)  # type: ignore[arg-type]
    for r in report.results:
        if r.outcome is Outcome.SKIPPED:
            continue
        mark, colour = MARKS[r.outcome]
        if r.outcome is Outcome.FAIL and r.rule.severity is Severity.WARNING:
            colour = "bold yellow"
        note = "" if r.outcome is Outcome.PASS else f"\n[dim]{escape(r.reason[:200])}[/]"
        text = f"[bold]{r.rule.id}[/] {escape(r.rule.title)}{note}"
        table.add_row(f"[{colour}]{mark}[/]", text, f"[dim]{r.checks or ''}[/]")
    console.print(table)
    for r in report.failures:
        console.rule(f"[bold]{r.rule.id}[/] {escape(r.rule.title)} ({r.rule.severity.value})", align="left")
        assert r.failure is not None
        # not wrapped, and nothing behind the lines: a program that is copied from here must run
        console.print(f"{r.failure}\n", markup=False, highlight=False, soft_wrap=True)
        program = Syntax("", "python", background_color="default").highlight(r.failure.script)
        console.print(program, soft_wrap=True, end="")
        console.print(f"\n{r.rule.advice}\n", style="dim", markup=False, highlight=False, soft_wrap=True)
    for r in report.errors:
        console.rule(f"[bold magenta]{r.rule.id} broke: a fault of the kit, please report it[/]", align="left")
        console.print(r.error or "", markup=False, highlight=False, soft_wrap=True)
    if report.coverage is not None:
        _show_coverage(report, console)
    style = "bold green" if report.ok else "bold red"
    console.print(summary(report), style=style, markup=False, highlight=False, soft_wrap=True)


def summary(report: Report) -> str:
    """One line."""
    counts = report.counts
    parts = [f"{counts[o]} {o.value}" for o in Outcome if counts[o]]
    checks = sum(r.checks for r in report.results)
    line = f"{report.subject.name}: {', '.join(parts)}; {checks} checks in {report.seconds:.1f} s ({report.profile})"
    return "\n".join([line, report.made_by, *(f"note: {n}" for n in (*report.subject.notes, *report.hints))])


def plain(report: Report) -> str:
    """The report without colours."""
    from rich.console import Console

    out = io.StringIO()
    show(report, Console(file=out, width=120, no_color=True, force_terminal=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def write_page(report: Report, path: Path) -> Path:
    """Write the report as an HTML page that needs nothing else."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120, record=True)
    show(report, console)
    path.parent.mkdir(parents=True, exist_ok=True)
    console.save_html(str(path))
    return path


def progress_bar(console: Console, total: int) -> tuple[Any, Callable[[Rule, Result | None], None]]:
    """A context manager that shows a bar, and the function to tell it about rules."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task("rules", total=total)

    def tell(rule: Rule, result: Result | None) -> None:
        if result is None:
            bar.update(task, description=f"{rule.id} {rule.title[:40]:40}")
        else:
            bar.advance(task)

    return bar, tell


def _show_coverage(report: Report, console: Console) -> None:
    from rich.table import Table

    assert report.coverage is not None
    counts = report.coverage.counts
    total = max(1, sum(counts.values()))
    width = 60
    bar = "".join(f"[{SUPPORT_COLOURS[k]}]{'█' * round(width * counts[k] / total)}[/]" for k in Support)
    console.rule("operations", align="left")
    console.print(bar, "  ".join(f"[{SUPPORT_COLOURS[k]}]{k.value} {counts[k]}[/]" for k in Support))
    missing = report.coverage.missing
    if missing:
        table = Table(title="most used that are missing or wrong", title_justify="left", box=None, pad_edge=False)
        for name in ("operation", "outcome", "reason"):
            table.add_column(name, overflow="fold")
        for row in missing[:15]:
            table.add_row(row.operation, f"[{SUPPORT_COLOURS[row.support]}]{row.support.value}[/]", row.reason[:100])
        console.print(table)
