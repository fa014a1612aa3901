"""Write docs/limits.md from the cases that tests/semantics runs:
``python -m tools.limits_table``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "semantics")]

from cases import CASES  # noqa: E402

from subclass_trace.frontends.routes import table  # noqa: E402

PAGE = ROOT / "docs" / "limits.md"


def page() -> str:
    """The page."""
    kinds = [
        sum(c.expectation.startswith(k) for c in CASES)
        for k in ("right", "handed", "refused", "differs", "**fault")
    ]
    lines = [
        "# Limits",
        "",
        "A region means what eager means. Written by `python -m tools.limits_table`; each row is "
        "a case of",
        "`tests/semantics/cases.py`, which the tests run against eager (values, types, strides, "
        "aliasing, versions, gradients,",
        "random state), so the table says what was seen. Of these programs",
        "",
        f"- {kinds[0]} are **right** by our own trace;",
        f"- {kinds[1]} are **handed over**: our trace refuses them by the error that is named, "
        "and Dynamo serves them,",
        '  right, with one `HandOverWarning` (with `frontend="trace"` the error is raised);',
        f"- {kinds[2]} {'is' if kinds[2] == 1 else 'are'} **refused** by both, with the error "
        "that is named;",
        f"- {kinds[3]} **differ** from eager on purpose, among them what happens once, **at "
        "trace time**;",
        f"- {kinds[4]} is a known **fault**.",
        "",
        "The last column is what torch.compile (2.13, `aot_eager`) does with such a program over "
        "wrappers, from a survey of",
        '507 programs, which the tests do not repeat: "silently wrong" means other numbers or '
        "another type without an error;",
        '"supported", that the survey lists no failure of this kind.',
        "",
        "What a backward that is traced later refuses is never handed over: the forward has run. "
        "While a region is traced,",
        "other threads see what its code writes to Python state, until that is put back",
        "([architecture](architecture.md), point 11).",
        "Two threads that call one region at the same moment may both read a counter before "
        "either writes it: one count is",
        "lost, as with any `x.n += 1` without a lock, but the graph runs in between.",
        "A few small operations on dense tensors leave their backward to autograd, and have none "
        "of the differences of",
        "backwards below.",
    ]
    for group in dict.fromkeys(c.group for c in CASES):
        lines += ["", f"## {group}", "", "| program | here | torch.compile |", "|---|---|---|"]
        lines += [f"| {c.name} | {c.expectation} | {c.torch} |" for c in CASES if c.group == group]
    lines += [
        "",
        "## Who serves what is refused",
        "",
        "Each refusal has a code: `error.code`, and in brackets in `explain()`. This table, which "
        "is `subclass_trace/frontends/routes.py`,",
        'says who serves such a call with `frontend="auto"`, the default.',
        "",
        table(),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE.relative_to(ROOT)}: {len(CASES)} cases")
