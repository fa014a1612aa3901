"""What the demo prints: tables of one part, and the summary of all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from .side_by_side import WARM_UP, Result

ROWS = 12  # of the table of saved activations; the rest is added up


def size(count: float) -> str:
    """
    >>> size(1536)
    '1.5 KiB'
    """
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} GiB"


def part(console: Console, title: str, result: Result, tolerance: float) -> None:
    """Everything about one training."""
    console.rule(f"[bold]{title}")
    console.print(_curve(result, tolerance))
    console.print("[bold]What was unwrapped and what is rebuilt[/bold]")
    console.print(result.report, markup=False, highlight=False)
    console.print(_saved(result))


def summary(console: Console, results: dict[str, Result], tolerance: float) -> None:
    """All trainings in one table, one column each."""
    console.rule("[bold]Summary")
    table = Table("", *results)
    for name, cells in _summary_rows(results.values(), tolerance):
        table.add_row(name, *cells)
    console.print(table)


def as_json(result: Result, failures: list[str]) -> dict[str, Any]:
    """The same for a program."""
    return {
        "ok": not failures,
        "failures": failures,
        "losses": {"eager": result.eager.losses, "compiled": result.compiled.losses},
        "largest_relative_difference": result.largest_difference(),
        "seconds": {
            name: {
                "first_call": curve.gradient_seconds[0],
                "forward_backward": curve.gradient_median(),
                "step": curve.step_median(),
            }
            for name, curve in (("eager", result.eager), ("compiled", result.compiled))
        },
        "saved_bytes": {"eager": result.eager_saved_bytes, "compiled": sum(row.bytes for row in result.saved)},
        "saved": [{"name": row.name, "bytes": row.bytes, "where": row.where} for row in result.saved],
        "specializations": result.specializations,
        "report": result.report,
    }


def _curve(result: Result, tolerance: float) -> Table:
    table = Table("step", "eager loss", "compiled loss", "relative difference", title=f"Loss, tolerance {tolerance:g}")
    pairs = list(zip(result.eager.losses, result.compiled.losses, strict=True))
    shown = sorted({0, len(pairs) - 1, *range(0, len(pairs), max(1, len(pairs) // 5))})
    for index in shown:
        eager, compiled = pairs[index]
        table.add_row(str(index + 1), f"{eager:.5f}", f"{compiled:.5f}", f"{abs(eager - compiled) / eager:.1e}")
    return table


def _saved(result: Result) -> Table:
    rows = sorted(result.saved, key=lambda row: -row.bytes)
    table = Table(
        "saved activation", "bytes", "made at", title=f"Saved for backward: {len(rows)} tensors, {_total(result)}"
    )
    for row in rows[:ROWS]:
        table.add_row(row.name, f"{row.bytes:,}", row.where)
    if rest := rows[ROWS:]:
        table.add_row(f"{len(rest)} smaller ones", f"{sum(row.bytes for row in rest):,}", "")
    return table


def _total(result: Result) -> str:
    return size(sum(row.bytes for row in result.saved))


def _summary_rows(results: Iterable[Result], tolerance: float) -> Iterable[tuple[str, list[str]]]:
    results = list(results)
    yield "loss, first step to mean of the last 5", [f"{r.eager.losses[0]:.3f} to {r.eager.end():.3f}" for r in results]
    yield f"largest relative difference (at most {tolerance:g})", [f"{r.largest_difference():.1e}" for r in results]
    yield "first step compiled", [f"{r.compiled.gradient_seconds[0]:.2f} s" for r in results]
    yield (
        f"forward and backward, eager to compiled (median after {WARM_UP} steps)",
        [f"{r.eager.gradient_median() * 1e3:.1f} to {r.compiled.gradient_median() * 1e3:.1f} ms" for r in results],
    )
    yield "  times as fast", [f"{r.eager.gradient_median() / r.compiled.gradient_median():.2f}" for r in results]
    yield (
        "whole step with the (eager) optimizer, eager to compiled",
        [f"{r.eager.step_median() * 1e3:.1f} to {r.compiled.step_median() * 1e3:.1f} ms" for r in results],
    )
    yield "  times as fast", [f"{r.eager.step_median() / r.compiled.step_median():.2f}" for r in results]
    yield "saved for backward, eager to compiled", [f"{size(r.eager_saved_bytes)} to {_total(r)}" for r in results]
    yield "specializations", [str(r.specializations) for r in results]
