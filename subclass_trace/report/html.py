"""A trace as one self-contained web page: its tables, and its graphs as code in which a name's uses light up."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from string import Template

from .tables import Table

_NAME = re.compile(r"[A-Za-z_]\w*")

_PAGE = Template("""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>$title</title>
<style>
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
table { border-collapse: collapse; font-size: 13px }
td, th { padding: .15rem .8rem .15rem 0; text-align: left }
th { font-weight: 600; border-bottom: 1px solid #8888 }
td, pre { font-family: ui-monospace, monospace; white-space: pre; font-size: 13px }
td.number, th.number { text-align: right }
.wide, pre { overflow-x: auto }
.comment { opacity: .6 }
.lit { background: #fd08; border-radius: 2px }
summary { font-weight: 600; cursor: pointer }
</style>
<h1>$title</h1>
$tables
<p>$note</p>
$graphs
<script>
const all = name => document.querySelectorAll(`[data-name="$${name}"]`);
for (const on of [true, false])
  document.addEventListener(on ? "mouseover" : "mouseout", e => {
    const name = e.target.dataset && e.target.dataset.name;
    if (name) all(name).forEach(x => x.classList.toggle("lit", on));
  });
</script>
</html>
""")


def page(title: str, tables: Iterable[Table], note: str, graphs: Mapping[str, tuple[str, Sequence[str]]]) -> str:
    """The page.

    Args:
        graphs: title -> (code, the names in it that are values).
    """
    return _PAGE.substitute(
        title=html.escape(title),
        tables="\n".join(map(_table, tables)),
        note=html.escape(note),
        graphs="\n".join(_graph(name, code, frozenset(names)) for name, (code, names) in graphs.items()),
    )


def _table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        kinds = [' class="number"' if k in table.right else "" for k in range(len(cells))]
        inner = "".join(f"<{tag}{kind}>{html.escape(c)}</{tag}>" for kind, c in zip(kinds, cells, strict=True))
        return f"<tr>{inner}</tr>"

    rows = "\n".join([row(table.columns, "th"), *[row(cells, "td") for cells in table.rows]])
    return f'<h2>{html.escape(table.title)}</h2>\n<div class="wide"><table>{rows}</table></div>'


def _graph(title: str, code: str, names: frozenset[str]) -> str:
    lines = "\n".join(_line(line, names) for line in code.splitlines())
    return f"<details open><summary>{html.escape(title)}</summary><pre>{lines}</pre></details>"


def _line(line: str, names: frozenset[str]) -> str:
    code, mark, comment = line.partition("# ")

    def lit(match: re.Match[str]) -> str:
        name = match.group()
        return f'<span data-name="{name}">{name}</span>' if name in names else name

    text = _NAME.sub(lit, html.escape(code, quote=False))
    return f'{text}<span class="comment">{html.escape(mark + comment)}</span>' if mark else text
