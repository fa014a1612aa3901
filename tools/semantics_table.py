"""Write docs/semantics.md from the cases that tests/semantics runs: ``python tools/semantics_table.py``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "semantics")]

from cases import CASES  # noqa: E402

PAGE = ROOT / "docs" / "semantics.md"


def page() -> str:
    """The page."""
    kinds = [sum(c.expectation.startswith(k) for c in CASES) for k in ("supported", "refused", "differs", "**fault")]
    lines = [
        "# What a region means",
        "",
        "A region means what eager means. Written by `python tools/semantics_table.py`; each row is a case of",
        "`tests/semantics/cases.py`, which the tests run against eager (values, types, strides, aliasing, versions, gradients,",
        "random state), so the table says what was seen.",
        "",
        f"{kinds[0]} supported, {kinds[1]} refused by a typed error, {kinds[2]} that differ from eager on purpose,",
        f"{kinds[3]} faults (tests that are expected to fail, until somebody mends them). The last column",
        "is what torch.compile (2.13, `aot_eager`) does with such a program over wrappers, from a survey of 507 programs;",
        'which the tests do not repeat: "silently wrong" means other numbers or another type without an error; "supported",',
        "that the survey lists no failure of this kind.",
    ]
    for group in dict.fromkeys(c.group for c in CASES):
        lines += ["", f"## {group}", "", "| program | here | torch.compile |", "|---|---|---|"]
        lines += [f"| {c.name} | {c.expectation} | {c.torch} |" for c in CASES if c.group == group]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE.relative_to(ROOT)}: {len(CASES)} cases")
