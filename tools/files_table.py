"""Write docs/files.md, a line for each file but the kit's, from their docstrings:
``python -m tools.files_table``."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, PAGE = ROOT / "subclass_trace", ROOT / "docs" / "files.md"
#: from what users call down to torch, as `pyproject.toml` orders the floors
FOLDERS = (
    *("frontends", "artifacts", "exporting", "tape", "data", "report", "runtime", "backends"),
    *("verify", "partition", "passes", "capture", "state", "plan", "subclass", "torch_api"),
)


def first_sentence(path: Path) -> str:
    """What a file says that it is."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    paragraph = " ".join(re.split(r"\n\n|\n>>>|\n *\* ", text)[0].split())
    found = re.match(r"(.+?)\.(?= [A-Z`\d])", paragraph)
    told = found.group(1) if found else paragraph
    return re.sub(r"[ .:]+$", "", told).replace("|", "\\|")


def page() -> str:
    """The page."""
    lines = [
        "# Each file, in a line",
        "",
        "Written by `python -m tools.files_table` from the files themselves. Which of them decides "
        "what: [architecture](architecture.md).",
    ]
    top = sorted(p for p in PACKAGE.glob("*.py"))
    groups = [("subclass_trace/", top)] + [
        (f"{folder}/", sorted((PACKAGE / folder).rglob("*.py"))) for folder in FOLDERS
    ]
    for name, files in groups:
        lines += ["", f"## {name}", "", "| file | what it is |", "|---|---|"]
        base = PACKAGE if name == "subclass_trace/" else PACKAGE / name
        for path in files:
            told = first_sentence(path)
            if told and path.name != "__init__.py":
                lines.append(f"| `{path.relative_to(base).as_posix()}` | {told} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {page().count(chr(10))} lines")
