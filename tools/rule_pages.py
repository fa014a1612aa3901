"""Write docs/rules/: one page per rule of the conformance kit, and an index. ``python -m tools.rule_pages``."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from subclass_trace.testing.rules import Rule, load

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "rules"


def page(rule: Rule) -> str:
    """One rule."""
    alone = f"Check it alone: `subclass-trace check package.module:Class --rules {rule.id}`."
    return f"{rule.page}\n{alone} All rules: [README](README.md).\n"


def index(rules: tuple[Rule, ...]) -> str:
    """The list of all rules."""
    lines = [
        "# The rules",
        "",
        f"Written by `python -m tools.rule_pages`. The {len(rules)} promises of a traceable wrapper subclass that",
        "`subclass-trace check` tests. An *error* gives wrong results or a crash in torch's own machinery; after a *warning*",
        "the class works, but some feature of torch is out of reach.",
    ]
    for family, members in groupby(rules, key=lambda r: r.family):
        lines += ["", f"## {family}", "", "| rule | | severity |", "|---|---|---|"]
        lines += [f"| [{r.id}]({r.slug}.md) | {r.title} | {r.severity.value} |" for r in members]
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """File name -> text."""
    rules = load()
    return {"README.md": index(rules), **{f"{r.slug}.md": page(r) for r in rules}}


def main() -> None:
    """Write them, and remove pages of rules that are gone."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"docs/rules: {len(wanted) - 1} rules")


if __name__ == "__main__":
    main()
