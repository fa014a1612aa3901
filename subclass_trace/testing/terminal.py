"""The report in a terminal: a table of the rules, and each counterexample as a program."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .coverage import Support
from .report import Report
from .rules import Rule, Severity
from .runner import Outcome, Result

if TYPE_CHECKING:
    from rich.console import Console

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
