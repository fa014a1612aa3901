"""The calls that models make: the table of ``calls.txt``, and what its names stand for."""

from __future__ import annotations

import re
from pathlib import Path

OPERANDS = {
    "x": "a wrapper of the shape (rows, columns)",
    "y": "another one: positive numbers, and another context where the factory has them",
    "p": "a dense tensor of the shape and dtype of x",
    "q": "a dense tensor of the shape of m",
    "m": "a wrapper of the shape (columns, rows)",
    "a": "a wrapper of three dimensions",
    "u": "two dense matrices, each of the shape of x",
    "r": "a dense vector, as long as a row of x",
    "l": "a dense vector, as long as a column of x",
    "s": "a dense number",
    "c": "a bool mask of the shape of x",
    "i": "indices of rows",
    "j": "indices for gather",
}


def _table() -> dict[str, tuple[str, list[tuple[str, ...]]]]:
    """The sections of the file by name: what stands in the head, and the calls of each line."""
    found = {}
    text = (Path(__file__).parent / "calls.txt").read_text(encoding="utf-8")
    for part in re.split(r"^# ", text, flags=re.MULTILINE)[1:]:
        head, *lines = part.strip().splitlines()
        name, kind = head.partition(":")[0].split()
        calls = [tuple(line.replace("\\n", "\n").split("  ")) for line in lines]
        found[name] = kind, calls
    return found


_TABLE = _table()


def section(*names: str) -> tuple[str, ...]:
    """The calls of these sections."""
    return tuple(text for name in names for line in _TABLE[name][1] for text in line)


#: calls by the rule that a wrong value breaks
KINDS = {
    kind: section(*(n for n, (k, _) in _TABLE.items() if k == kind))
    for kind, _ in _TABLE.values()
    if kind.startswith("ST")
}
#: calls of which one must run, by what the class is used for
NEEDED = {name: tuple(lines) for name, (kind, lines) in _TABLE.items() if kind == "use"}
