"""A tape as a picture: one HTML page with an SVG, made without other programs.

Nodes stand in running order from top to bottom; edges are gradients. Hooks and unpackings are listed in the box of the
node where they happen.
"""

from __future__ import annotations

import html
import pathlib
from collections.abc import Sequence
from typing import Any

import torch.fx as fx

from .graph import Tape
from .text import Row, counts, rows, short_line

_LINE, _GAP, _LEFT, _WIDTH = 16, 14, 160, 460
_COLOURS = {"hook": "#b3261e", "unpack": "#1b5e9c", "into": "#2e6b34"}


def page(tape: Tape, file: Any = None) -> str:
    """A complete page; also written to ``file`` (a path) if that is given."""
    title = f"tape of {counts(tape)}"
    text = (
        f'<!doctype html>\n<html><head><meta charset="utf-8"><title>{title}</title></head>\n'
        f'<body style="font-family: sans-serif"><h1 style="font-size: 1.2em">{title}</h1>\n{picture(tape)}\n</body></html>\n'
    )
    if file is not None:
        pathlib.Path(file).write_text(text, encoding="utf-8")
    return text


def edges(tape: Tape) -> list[tuple[int, int]]:
    """(from, to) for each pair of nodes between which a gradient goes, by their places in the tape."""
    found: dict[tuple[int, int], None] = {}
    for node in tape.graph.graph.nodes:
        place = node.meta.get("node", -1)
        for read in node.all_input_nodes:
            start = read.meta.get("node", -1) if isinstance(read, fx.Node) else -1
            if 0 <= start < place:
                found[start, place] = None
    return list(found)


def picture(tape: Tape) -> str:
    """The SVG alone."""
    tops: list[int] = []
    y = _GAP
    found = rows(tape)
    for row in found:
        tops.append(y)
        y += _height(row) + _GAP
    parts = [_edge(tops, found, a, b) for a, b in edges(tape)]
    parts += [_box(row, top) for row, top in zip(found, tops, strict=True)]
    size = f'width="{_LEFT + _WIDTH + 20}" height="{y}"'
    style = 'font-family="monospace" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(parts) + "\n</svg>"


def _height(row: Row) -> int:
    return _LINE * (1 + len(row.events)) + 8


def _edge(tops: Sequence[int], found: Sequence[Row], start: int, end: int) -> str:
    a, b = tops[start] + _height(found[start]) // 2, tops[end] + _LINE
    if end == start + 1:
        x = _LEFT + 40
        return f'<path d="M {x} {tops[start] + _height(found[start])} L {x} {tops[end]}" stroke="#666" fill="none"/>'
    bend = _LEFT - min(_LEFT - 10, 12 * (end - start))
    return f'<path d="M {_LEFT} {a} C {bend} {a}, {bend} {b}, {_LEFT} {b}" stroke="#999" fill="none"/>'


def _box(row: Row, top: int) -> str:
    number = "" if row.node.seq_nr is None else f"  #{row.node.seq_nr}"
    head = html.escape(f"{row.node.name}{number}  {short_line(row.node.line)}")
    lines = [
        f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_height(row)}" rx="4" fill="#f6f6f6" stroke="#444"/>',
        f'<text x="{_LEFT + 8}" y="{top + _LINE}" font-weight="bold">{head}</text>',
    ]
    for k, event in enumerate(row.events):
        colour = next((c for word, c in _COLOURS.items() if word in event), "#444")
        place = f'x="{_LEFT + 20}" y="{top + _LINE * (k + 2)}" fill="{colour}"'
        lines.append(f"<text {place}>{html.escape(event)}</text>")
    return "\n".join(lines)
