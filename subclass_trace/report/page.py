"""Pages that need nothing else: specializations with their graphs, wrappers, saved values, guards
and seconds."""

from __future__ import annotations

import collections
import html
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .names import saved_where, seconds_text
from .text import guards_of, misses_text, tables
from .trace import trace_of

_STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, CanvasText 20%, Canvas) }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
h2 { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: 1rem }
table { border-collapse: collapse; display: block; overflow-x: auto }
td { border-top: 1px solid var(--line); padding: .15rem 1.2rem .15rem 0;
     vertical-align: top; white-space: nowrap }
td, pre, code { font: 12px/1.5 ui-monospace, monospace }
pre { border: 1px solid var(--line); border-radius: 4px; overflow-x: auto; padding: .8rem }
summary { cursor: pointer; font-weight: 600; margin: .4rem 0 }
"""


def document(title: str, body: str) -> str:
    """A whole page around a body, in the colours, light or dark, of whoever reads it."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>{html.escape(title)}</title>'
    )
    return (
        "<!doctype html>\n<html "
        f'lang="en">\n<head>{head}<style>{_STYLE}</style></head>\n<body>{body}</body>\n</html>\n'
    )


def page(
    title: str, entries: Sequence[Any], path: str | os.PathLike[str] | None = None, about: str = ""
) -> str:
    """A page about specializations.

    Args:
        title: the name of the region.
        path: the page is written there, too.
        about: shown in front of them.
    """
    parts = [f"<h1>{html.escape(title)}</h1>", _pre(about) if about else ""]
    parts += [
        part for number, entry in enumerate(entries) for part in _section(title, number, entry)
    ]
    text = document(title, "\n".join(parts))
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def _section(title: str, number: int, entry: Any) -> Iterator[str]:
    yield f"<h2>[{number}]</h2>"
    yield f"<p>{html.escape(seconds_text(entry.seconds))}</p>"
    yield (
        _folded("made because these guards failed", _pre(misses_text(entry)), is_open=True)
        if entry.misses
        else ""
    )
    for name, rows in tables(entry.plan):
        yield _folded(name, _table(rows), is_open=True) if rows else ""
    by_line = collections.Counter[str]()
    for row in entry.plan.gradients.saved:
        by_line[saved_where(row)] += row.bytes
    rows = [(where, f"{size:,} B") for where, size in by_line.most_common() if size]
    yield _folded("saved bytes by line", _table(rows), is_open=True) if rows else ""
    guards = guards_of(entry)
    yield _folded(f"guards: {len(guards)}", _pre("\n".join(guards)))
    trace = trace_of(title, entry)
    for name in trace.graphs:
        yield _folded(f"{name} graph", _pre(trace.code(name)))
    for record in entry.passes:
        yield _folded(f"pass {record}", _pre("\n".join(record.diff)))
    yield _folded("entry: the code that each call runs", _pre(entry.source))


def _folded(title: str, body: str, *, is_open: bool = False) -> str:
    return f"<details{' open' * is_open}><summary>{html.escape(title)}</summary>{body}</details>"


def _pre(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def _table(rows: Iterable[Sequence[str]]) -> str:
    cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
