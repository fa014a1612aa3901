"""What the demo prints: tables of one part, and the summary of all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from .side_by_side import WARM_UP, Result

ROWS = 12  # of a table; the rest is added up


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


def part(
    console: Console, title: str, result: Result, tolerance: float, report: bool = False
) -> None:
    """Everything about one training."""
    console.rule(f"[bold]{title}")
    console.print(_curve(result, tolerance))
    console.print(_unwrapped(result), _saved(result), highlight=False)
    if report:
        console.print(result.report, markup=False, highlight=False, soft_wrap=True)


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
        "saved_bytes": {
            "eager": result.eager_saved_bytes,
            "compiled": sum(row.bytes for row in result.saved),
        },
        "unwrapped": [asdict(row) for row in result.unwrapped],
        "saved": [asdict(row) for row in result.saved],
        "specializations": result.specializations,
        "report": result.report,
    }


def _curve(result: Result, tolerance: float) -> Table:
    table = Table(
        "step",
        "eager loss",
        "compiled loss",
        "relative difference",
        title=f"Loss, tolerance {tolerance:g}",
    )
    pairs = list(zip(result.eager.losses, result.compiled.losses, strict=True))
    shown = sorted({0, len(pairs) - 1, *range(0, len(pairs), max(1, len(pairs) // 5))})
    for index in shown:
        eager, compiled = pairs[index]
        table.add_row(
            str(index + 1),
            f"{eager:.5f}",
            f"{compiled:.5f}",
            f"{abs(eager - compiled) / eager:.1e}",
        )
    return table


def _unwrapped(result: Result) -> Table:
    wrappers = [row for row in result.unwrapped if row.leaves]
    dense, leaves = len(result.unwrapped) - len(wrappers), sum(len(row.leaves) for row in wrappers)
    table = Table(
        "input",
        Column("of them", justify="right"),
        "wrapper",
        "what the graph gets",
        title=f"Unwrapped: {len(wrappers)} wrappers into {leaves} dense tensors; {dense} inputs "
        "are dense already",
    )
    groups = Counter(
        (re.sub(r"\[\d+\](?=\.)", "[*]", row.path), row.kind, row.leaves) for row in wrappers
    )
    rows = [
        (path.replace("args[*].", "", 1), count, kind, parts)
        for (path, kind, parts), count in groups.items()
    ]
    for path, count, kind, parts in rows[:ROWS]:
        table.add_row(Text(path), str(count), Text(kind), Text(", ".join(parts)))
    if rest := rows[ROWS:]:
        table.add_row(f"{len(rest)} more rows", str(sum(row[1] for row in rest)), "", "")
    return table


def _saved(result: Result) -> Table:
    groups: dict[tuple[str, str, str], list[int]] = {}
    free = 0
    for row in result.saved:
        if row.bytes:
            groups.setdefault((row.operation, row.shape, row.where), []).append(row.bytes)
        else:
            free += 1
    rows = sorted(
        ((sum(sizes), len(sizes), *key) for key, sizes in groups.items()), key=lambda row: -row[0]
    )
    table = Table(
        "made by",
        "each",
        Column("of them", justify="right"),
        Column("bytes", justify="right"),
        "at",
        title=f"Saved for backward: {len(result.saved)} tensors, {_total(result)}; {free} of "
        "them cost nothing "
        "(inputs, views)",
    )
    for count_bytes, count, operation, shape, where in rows[:ROWS]:
        place = where.removeprefix(f"{Path.cwd()}/")
        table.add_row(
            Text(_short(operation)), Text(shape), str(count), f"{count_bytes:,}", Text(place)
        )
    if rest := rows[ROWS:]:
        table.add_row(
            f"{len(rest)} more rows",
            "",
            str(sum(r[1] for r in rest)),
            f"{sum(r[0] for r in rest):,}",
            "",
        )
    return table


def _short(operation: str) -> str:
    return operation.removeprefix("aten.").replace(".default", "")


def _total(result: Result) -> str:
    return size(sum(row.bytes for row in result.saved))


def _summary_rows(results: Iterable[Result], tolerance: float) -> Iterable[tuple[str, list[str]]]:
    results = list(results)
    yield (
        "loss, first step to mean of the last 5",
        [f"{r.eager.losses[0]:.3f} to {r.eager.end():.3f}" for r in results],
    )
    yield (
        f"largest relative difference (at most {tolerance:g})",
        [f"{r.largest_difference():.1e}" for r in results],
    )
    yield "first step compiled", [f"{r.compiled.gradient_seconds[0]:.2f} s" for r in results]
    yield (
        f"forward and backward, eager to compiled (median after {WARM_UP} steps)",
        [
            f"{r.eager.gradient_median() * 1e3:.1f} to {r.compiled.gradient_median() * 1e3:.1f} ms"
            for r in results
        ],
    )
    yield (
        "  times as fast",
        [f"{r.eager.gradient_median() / r.compiled.gradient_median():.2f}" for r in results],
    )
    yield (
        "whole step with the (eager) optimizer, eager to compiled",
        [
            f"{r.eager.step_median() * 1e3:.1f} to {r.compiled.step_median() * 1e3:.1f} ms"
            for r in results
        ],
    )
    yield (
        "  times as fast",
        [f"{r.eager.step_median() / r.compiled.step_median():.2f}" for r in results],
    )
    yield (
        "saved for backward, eager to compiled",
        [f"{size(r.eager_saved_bytes)} to {_total(r)}" for r in results],
    )
    yield "specializations", [str(r.specializations) for r in results]
