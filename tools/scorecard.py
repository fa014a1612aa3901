"""Run the conformance kit on real classes, and write docs/scorecard.md.

    python -m tools.scorecard                 all classes (about twenty minutes on two cores)
    python -m tools.scorecard TwoTensor       some; the page is written from all results that are there
    python -m tools.scorecard --page          write the page only

Each class runs in a process of its own; its report, with the counterexamples, is kept in build/scorecard/. A finding counts
only if somebody has run its program by hand and seen whose fault it is: see tests/testing/verdicts.py.
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
from tests.testing.verdicts import VERDICTS

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
_HEAD = """# Score card

Written by `make scorecard`: the [conformance rules](rules.md) on wrapper classes of this package, torch, torchao and quanto.
{versions}. Profile `dev`, CPU. The programs that show what is broken are in `build/scorecard/` afterwards.

| class | holds | does not apply | breaks |
|---|---|---|---|
"""
_VERDICTS = """
## Whose fault it is

Read off the programs and the classes: *class* means a fault of the class, *torch* one of torch's that the class may be able to
avoid, *design* that the class is made so on purpose, and the rule tells what one has to live with. Where it says *run by
hand*, a shorter program was also run outside of the kit. What was the kit's own fault was mended there.
"""


def run(name: str, limit: int) -> str:
    """Check one class in a process of its own; returns one line about it."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    out = RESULTS / f"{name}.json"
    out.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", _RUN, name, str(out)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
        trouble = (done.stderr.strip().splitlines() or ["the process died"])[-1]
    except subprocess.TimeoutExpired:
        trouble = f"more than {limit} s"
    return f"{name}: {'checked' if out.exists() else trouble[:200]}"


def page(reports: list[dict[str, Any]]) -> str:
    """The Markdown of the score card."""
    versions = {v for r in reports for v in r["libraries"]}
    text = _HEAD.format(versions=", ".join(sorted(versions, key=len)))
    used: dict[tuple[str, str], None] = {}
    for r in reports:
        broken = [id for id, outcome in r["rules"].items() if outcome == "fail"]
        holds, other = (list(r["rules"].values()).count(outcome) for outcome in ("pass", "not applicable"))
        text += f"| `{r['class']}` | {holds} | {other} | {' '.join(broken) or 'none'} |\n"
        used |= dict.fromkeys(verdict_of(r["class"], id) for id in broken)
    text += _VERDICTS
    for cls in sorted({cls for cls, _ in used}):
        text += f"\n**{'Several classes' if cls == '*' else cls}**\n\n"
        text += "".join(f"- {id}: {VERDICTS.get((c, id), 'Not judged.')}\n" for c, id in sorted(used) if c == cls)
    return text


def verdict_of(cls: str, rule: str) -> tuple[str, str]:
    """The entry of VERDICTS for a finding: classes are known by their last name, or by module and name."""
    keys = ((cls, rule), (cls.rpartition(".")[2], rule), ("*", rule))
    return next((key for key in keys if key in VERDICTS), keys[1])


def findings(text: str) -> dict[str, set[str]]:
    """What a page says: class -> ids of the rules that it breaks."""
    rows = re.findall(r"^\| `(.+?)` \| \d+ \| \d+ \| (.+) \|$", text, re.MULTILINE)
    return {cls: set(re.findall(r"ST\d+", broken)) for cls, broken in rows}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.scorecard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="parts of names of classes (all)")
    parser.add_argument("--page", action="store_true", help="write the page only")
    parser.add_argument("--limit", type=int, default=600, help="seconds per class")
    options = parser.parse_args()
    for name in KNOWN:
        if not options.page and (not options.names or any(part in name for part in options.names)):
            print(run(name, options.limit), flush=True)
    found = [RESULTS / f"{name}.json" for name in KNOWN]
    PAGE.write_text(page([json.loads(p.read_text()) for p in found if p.exists()]), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
