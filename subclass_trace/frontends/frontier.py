"""`memory_frontier`: what saving fewer bytes for the backward costs, for a whole function, in one call.

>>> import torch, subclass_trace as st
>>> x = torch.ones(64, 64, requires_grad=True)
>>> found = st.memory_frontier(lambda x: (x @ x).sin().exp().sum(), x)
>>> found.points[0].flops, found.points[-1].bytes
(0, 0)
>>> found.points[-1].flops == 2 * 64**3  # the product is computed again
True
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import UnsupportedError
from ..options import Options
from ..partition.costs import flops
from ..partition.min_cut import MinCut
from ..partition.split import make_split
from ..partition.table import Table
from ..report.tables import bytes_text
from ..runtime.backward import TRACE_LOCK
from ..runtime.specialize import facts_of
from .calls import CallSite
from .compile import captured_for, region_of


@dataclass(frozen=True)
class Point:
    """One way to partition.

    Attributes:
        bytes: of unique storages saved beyond inputs and results. It may be passed as ``activation_memory_budget``.
        flops: floating-point operations that the backward does again.
        seconds: estimated time for all that it does again.
        operations: how many operations that are (views not counted).
        name: "min_cut" for what is chosen without a budget.
    """

    bytes: int
    flops: float
    seconds: float
    operations: int
    name: str = ""


@dataclass(frozen=True)
class MemoryFrontier:
    """All corners between saving most and saving least, from most bytes to fewest. ``print`` it."""

    function: str
    points: tuple[Point, ...]

    def __str__(self) -> str:
        head = ("bytes", "extra FLOPs", "extra seconds", "operations", "")
        rows = [
            (bytes_text(p.bytes), f"{p.flops:.3g}", f"{p.seconds:.3g}", str(p.operations), p.name) for p in self.points
        ]
        widths = [max(len(r[k]) for r in [head, *rows]) for k in range(5)]
        lines = ["  ".join(c.rjust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in [head, *rows]]
        return "\n".join([f"saved for the backward of {self.function}", *lines])

    def to_svg(self) -> str:
        """A picture: saved bytes to the right, estimated seconds computed again upwards."""
        return _svg(self.points)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """One self-contained page with the picture and the table; written to ``path`` if that is given."""
        text = (
            f"<!doctype html><meta charset=utf-8><title>memory frontier of {html.escape(self.function)}</title>"
            f"<body style='font-family:sans-serif'>{self.to_svg()}<pre>{html.escape(str(self))}</pre>"
        )
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return text


def memory_frontier(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> MemoryFrontier:
    """What saving less for the backward of ``function`` costs, for a call with these arguments; nothing runs.

    The costs are those of `MinCut` with its defaults; `frontier_with` takes another.

    Raises:
        UnsupportedError: no result is differentiable.
    """
    return frontier_with(MinCut(), function, *args, **kwargs)


def frontier_with(cut: MinCut, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> MemoryFrontier:
    """`memory_frontier` for a partitioner with options: another objective, a measured machine."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    region = region_of(function, Options())
    with TRACE_LOCK:
        captured, arguments, _ = captured_for(region, CallSite.of_function(function, args, kwargs), {})
        traced = None if captured.tape is None else captured.tape.trace(captured.tape.guess())
    if traced is None:
        raise UnsupportedError(
            "there is no backward to save anything for", path=name, fix="pass inputs that require grad"
        )
    facts = facts_of(captured, arguments, traced.joint)
    cut = replace(cut, budget=None)
    table = cut.table(traced.joint, traced.num_forward)
    hull = cut.hull(table, facts)
    chosen = [(corner.bytes, corner.saved, "") for corner in hull.corners()]
    free = tuple(cut.choose(table, facts))
    chosen.append((hull.bytes(free), free, "min_cut"))
    points = [_point(table, cut, size, saved, label) for size, saved, label in chosen]
    return MemoryFrontier(name, tuple(sorted(points, key=lambda p: (-p.bytes, p.seconds))))


def _point(table: Table, cut: MinCut, size: int, saved: Sequence[int], name: str) -> Point:
    again = [i for i in make_split(table, saved).again if not table.view[i] and table.nodes[i].op == "call_function"]
    work = sum(flops(table, i) for i in again)
    seconds = sum(cut.costs.seconds(table, i) for i in again)
    return Point(size, work, seconds, len(again), name)


# ---------------------------------------------------------------------------------------------- the picture
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 360, 80, 50


def _svg(points: Sequence[Point]) -> str:
    most_bytes = max([p.bytes for p in points], default=0) or 1
    most_seconds = max([p.seconds for p in points], default=0.0) or 1.0

    def place(p: Point) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - 20) * p.bytes / most_bytes
        y = (_HEIGHT - _BOTTOM) - (_HEIGHT - _BOTTOM - 20) * p.seconds / most_seconds
        return round(x, 1), round(y, 1)

    hull = " ".join(f"{x},{y}" for x, y in map(place, [p for p in points if not p.name]))
    dots = []
    for p in points:
        x, y = place(p)
        title = (
            f"{bytes_text(p.bytes)}, {p.seconds:.3g} s and {p.flops:.3g} FLOPs again{f' ({p.name})' if p.name else ''}"
        )
        colour = "#c33" if p.name else "#36c"
        dots.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"><title>{html.escape(title)}</title></circle>')
    base = _HEIGHT - _BOTTOM
    axes = (
        f'<path d="M{_LEFT},20V{base}H{_WIDTH - 20}" fill="none" stroke="#888"/>'
        f'<text x="{_WIDTH - 20}" y="{base + 20}" text-anchor="end">{bytes_text(most_bytes)}</text>'
        f'<text x="{_LEFT}" y="{base + 20}">0</text>'
        f'<text x="{_LEFT - 6}" y="30" text-anchor="end">{most_seconds:.2g} s</text>'
        f'<text x="{(_WIDTH + _LEFT) / 2}" y="{base + 40}" text-anchor="middle">'
        "saved bytes; upwards: estimated seconds computed again</text>"
    )
    style = 'style="font:12px sans-serif"'
    line = f'<polyline points="{hull}" fill="none" stroke="#36c"/>'
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} {style}>{axes}{line}{"".join(dots)}</svg>'
