"""Run the conformance kit on real classes, and write docs/scorecard.md.

    python -m tools.scorecard                 all classes (about twenty minutes on two cores)
    python -m tools.scorecard TwoTensor       some; the page is written from all results that are
                                              there
    python -m tools.scorecard --page          write the page only

Each class runs in a process of its own; its report, with the counterexamples, is kept in
build/scorecard/. A finding counts only if somebody has run its program by hand and written whose
fault it is below the table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.testing.known import KNOWN

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "scorecard"
PAGE = ROOT / "docs" / "scorecard.md"
_RUN = """
import json, logging, sys
from importlib.metadata import version
logging.disable(logging.CRITICAL)
import torch
torch.set_num_threads(1)
from subclass_trace.testing import check
from subclass_trace.testing.resolve import load_target
from tests.testing.known import KNOWN
name, out = sys.argv[1:]
report = check(load_target(name), **KNOWN[name]).as_json()
library = {"optimum": "optimum-quanto", "torchao": "torchao"}.get(name.partition(".")[0], "torch")
report["libraries"] = [f"{d} {version(d).partition('+')[0]}" for d in {"torch", library}]
report["programs"] = {r["id"]: r["failure"]["script"] for r in report["rules"] if r["failure"]}
report["rules"] = {r["id"]: r["outcome"] for r in report["rules"]}
open(out, "w").write(json.dumps(report, indent=1))
"""


def run(name: str, limit: int) -> str:
    """Check one class in a process of its own; returns one line about it."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    out = RESULTS / f"{name}.json"
    out.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", _RUN, name, str(out)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit
        )
        trouble = (done.stderr.strip().splitlines() or ["the process died"])[-1]
    except subprocess.TimeoutExpired:
        trouble = f"more than {limit} s"
    return f"{name}: {'checked' if out.exists() else trouble[:200]}"


def page(text: str, reports: list[dict[str, Any]]) -> str:
    """The score card with the table of these results; what is written behind the table stays."""
    rows = []
    for r in reports:
        broken = [id for id, outcome in r["rules"].items() if outcome == "fail"]
        rows.append(f"| `{r['class']}` | {' '.join(broken) or 'none'} |\n")
    versions = ", ".join(sorted({v for r in reports for v in r["libraries"]}, key=len))
    text = re.sub(r"^torch .*?\. Profile", f"{versions}. Profile", text, flags=re.MULTILINE)
    head, rest = text.split("|---|---|\n")
    return head + "|---|---|\n" + "".join(rows) + rest[rest.index("\n## ") :]


def judged(text: str) -> set[tuple[str, str]]:
    """The findings that somebody has looked at: (last name of the class, rule); ``*`` stands for
    several classes."""
    found = set()
    for part in text.split("\n**")[1:]:
        name, _, bullets = part.partition("**\n")
        cls = "*" if name == "Several classes" else name.rpartition(".")[2]
        found |= {(cls, id) for id in re.findall(r"^- (ST\d+)", bullets, re.MULTILINE)}
    return found


def findings(text: str) -> dict[str, set[str]]:
    """What a page says: class -> ids of the rules that it breaks."""
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", text, re.MULTILINE)
    return {cls: set(re.findall(r"ST\d+", broken)) for cls, broken in rows}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.scorecard",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="parts of names of classes (all)")
    parser.add_argument("--page", action="store_true", help="write the page only")
    parser.add_argument("--limit", type=int, default=600, help="seconds per class")
    options = parser.parse_args()
    for name in KNOWN:
        if not options.page and (not options.names or any(part in name for part in options.names)):
            print(run(name, options.limit), flush=True)
    found = [RESULTS / f"{name}.json" for name in KNOWN]
    reports = [json.loads(p.read_text()) for p in found if p.exists()]
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), reports), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
