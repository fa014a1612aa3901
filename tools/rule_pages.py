"""Write docs/rules.md, the list of the rules of the conformance kit.
``python -m tools.rule_pages``."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from subclass_trace.testing.rules import load

PAGE = Path(__file__).resolve().parent.parent / "docs" / "rules.md"


def page() -> str:
    """The list of all rules, by family."""
    rules = load()
    lines = [
        "# The rules",
        "",
        f"Written by `python -m tools.rule_pages`. The {len(rules)} promises of a traceable "
        "wrapper subclass that",
        "`subclass-trace check` tests; `subclass-trace check --explain ST101` says more about "
        "one. An *error*",
        "gives wrong results or a crash in torch's own machinery; after a *warning* the class "
        "works, but some feature of torch",
        "is out of reach.",
    ]
    for family, members in groupby(rules, key=lambda r: r.family):
        lines += ["", f"## {family}", ""]
        for r in members:
            severity = "" if r.severity.value == "error" else f" ({r.severity.value})"
            lines.append(f"- **{r.id}** {r.title}{severity}. {r.reason}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
