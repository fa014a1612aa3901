"""What a benchmark yields, and how it is printed: `Figure`, goals, a plain table, markdown,
JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

COLUMNS = ("by hand", "aot_function", "torch.compile", "eager", "dense eager")


@dataclass(frozen=True)
class Goal:
    """A bound that a figure should keep.

    >>> Goal("<=", 1.4).met(1.31), Goal(">=", 2.2).met(1.9), str(Goal(">=", 2.2))
    (True, False, '>= 2.2')
    """

    sign: Literal["<=", ">="]
    bound: float

    def met(self, value: float) -> bool:
        """Does ``value``, rounded as it is printed, keep the bound?"""
        value = float(number(value))
        return value <= self.bound if self.sign == "<=" else value >= self.bound

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}"


@dataclass(frozen=True)
class Figure:
    """One measured ratio.

    Attributes:
        benchmark: the module that measured it.
        what: what the ratio is of, for example "time / bare dense graph".
        case: on which program, tensors and partitioner.
        ours: our ratio.
        goal: its bound; None where there is none.
        others: the same ratio for other stacks; see `COLUMNS`.
        raw: what it was computed of, for the JSON file.
    """

    benchmark: str
    what: str
    case: str
    ours: float
    goal: Goal | None = None
    others: Mapping[str, float] = field(default_factory=dict)
    raw: Mapping[str, float] = field(default_factory=dict)

    @property
    def missed(self) -> bool:
        """Is there a goal that the figure does not meet?"""
        return self.goal is not None and not self.goal.met(self.ours)


def number(value: float) -> str:
    """
    >>> number(1.2345), number(23.45), number(0.98765)
    ('1.23', '23.4', '0.99')
    """
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _cells(figure: Figure) -> list[str]:
    goal = "" if figure.goal is None else str(figure.goal)
    mark = "  (missed)" if figure.missed else ""
    others = [number(figure.others[c]) if c in figure.others else "" for c in COLUMNS]
    return [figure.case, goal, number(figure.ours) + mark, *others]


_HEAD = ["case", "goal", "ours", *COLUMNS]


def sections(figures: Iterable[Figure]) -> dict[str, list[Figure]]:
    """Figures by what they measure, in the order of their first appearance."""
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        found.setdefault(f"{figure.benchmark}: {figure.what}", []).append(figure)
    return found


def _used(rows: Sequence[Sequence[str]]) -> list[int]:
    """Columns that hold anything."""
    return [k for k in range(len(_HEAD)) if any(row[k] for row in rows)]


def as_text(figures: Iterable[Figure]) -> str:
    """Aligned plain tables, one for each thing that was measured."""
    out = []
    for title, group in sections(figures).items():
        rows = [_cells(f) for f in group]
        used = _used(rows)
        table = [[row[k] for k in used] for row in [_HEAD, *rows]]
        widths = [max(len(row[k]) for row in table) for k in range(len(used))]
        padded = [
            [cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in table
        ]
        out.append("\n".join([title, *("  " + "  ".join(row).rstrip() for row in padded)]))
    return "\n\n".join(out)


def as_markdown(figures: Iterable[Figure]) -> str:
    """The tables of docs/benchmarks.md."""
    out = []
    for title, group in sections(figures).items():
        rows = [_cells(f) for f in group]
        used = _used(rows)
        lines = ["| " + " | ".join(row[k] for k in used) + " |" for row in [_HEAD, *rows]]
        lines.insert(1, "|" + "---|" * len(used))
        out.append("\n".join([f"**{title}**", "", *lines]))
    return "\n\n".join(out)


def as_json(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    """The figures for a program."""
    return [
        {
            "benchmark": f.benchmark,
            "what": f.what,
            "case": f.case,
            "ours": f.ours,
            "goal": None if f.goal is None else str(f.goal),
            "met": not f.missed,
            "others": dict(f.others),
            "raw": dict(f.raw),
        }
        for f in figures
    ]
