"""Run the conformance kit on real classes, and write docs/scorecard.md.

    python -m tools.scorecard                 all classes (about twenty minutes on two cores)
    python -m tools.scorecard TwoTensor       some; the page is written from all results that are there
    python -m tools.scorecard --page          write the page only

Each class runs in a process of its own; results are kept in build/scorecard/. A finding counts only if somebody has run
its program by hand and seen that it is the fault of the class: see VERDICTS in tools/scorecard_verdicts.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from subclass_trace.testing.known import KNOWN
from tools.scorecard_verdicts import VERDICTS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "scorecard"
PAGE = ROOT / "docs" / "scorecard.md"
_MARKS = {"pass": "✓", "fail": "✗", "not applicable": "·", "error": "!", "skipped": ""}
_RUN = """
import json, logging, sys
logging.disable(logging.CRITICAL)
import torch
torch.set_num_threads(1)
from subclass_trace.testing import check
from subclass_trace.testing.resolve import load_target
name, out, profile = sys.argv[1:]
report = check(load_target(name), profile=profile)
open(out, "w").write(json.dumps(report.as_json()))
"""


def run(name: str, limit: int, profile: str) -> str:
    """Check one class in a process of its own; returns one line about it."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    out = RESULTS / f"{name.rpartition('.')[2]}-{len(name)}.json"
    out.unlink(missing_ok=True)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", _RUN, name, str(out), profile]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
        trouble = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except subprocess.TimeoutExpired:
        trouble = [f"more than {limit} s"]
    if not out.exists():
        out.write_text(json.dumps({"class": name, "trouble": (trouble or ["the process died"])[0][:300]}))
        return f"{name}: {(trouble or ['the process died'])[0][:200]}"
    report = json.loads(out.read_text())
    return f"{name}: {report['counts']} in {report['seconds']:.0f} s"


def page(reports: list[dict[str, Any]]) -> str:
    """The Markdown of the score card."""
    done = [r for r in reports if "rules" in r]
    lines = [
        "# Score card",
        "",
        "Written by `python -m tools.scorecard`: the conformance rules (docs/rules/) on wrapper classes of torch, torchao",
        f"and this package. {_versions()}. Profile `{done[0]['profile'] if done else 'dev'}`, CPU.",
        "",
        "A rule that a class breaks is listed below with a program that shows it. *Class* means that a reader of the program",
        "and of the class takes the fault to be the class's (or torch's, where it says so); where it says *run by hand*, the",
        "program was also run outside of the kit. *Design* means that the class is made so on purpose, and that the rule tells",
        "what one has to live with.",
        "",
        "| class | holds | broken | warnings | does not apply | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for r in done:
        bad = [x for x in r["rules"] if x["outcome"] == "fail"]
        errors = sum(x["severity"] == "error" for x in bad)
        counts = r["counts"]
        lines.append(
            f"| `{r['class']}` | {counts['pass']} | {errors} | {len(bad) - errors} | {counts['not applicable']} "
            f"| {r['seconds']:.0f} |"
        )
    lines += [f"| `{r['class']}` | not run: {r['trouble']} | | | | |" for r in reports if "rules" not in r]
    lines += ["", *_matrix(done), "", "## Findings", ""]
    for r in done:
        lines += _findings(r)
    return "\n".join(lines).rstrip() + "\n"


def _versions() -> str:
    found = []
    for name in ("torch", "torchao", "optimum-quanto"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def _matrix(done: list[dict[str, Any]]) -> list[str]:
    if not done:
        return []
    lines = ["## Rule by rule", "", "✓ holds, ✗ broken, · does not apply", ""]
    names = [r["class"].rpartition(".")[2] for r in done]
    lines += ["| rule | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for k, rule in enumerate(done[0]["rules"]):
        cells = [_MARKS[r["rules"][k]["outcome"]] if k < len(r["rules"]) else "" for r in done]
        lines.append(f"| {rule['id']} | " + " | ".join(cells) + " |")
    return lines


def _findings(report: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    cls = report["class"].rpartition(".")[2]
    for x in report["rules"]:
        if x["outcome"] not in ("fail", "error"):
            continue
        verdict = VERDICTS.get((cls, x["id"])) or VERDICTS.get(("*", x["id"])) or "Not checked by hand."
        lines += [f"### {cls}: {x['id']} {x['title']}", "", verdict, ""]
        if x["failure"]:
            f = x["failure"]
            lines += [f"{f['what']}: got `{_short(f['got'])}`, expected `{_short(f['expected'])}`.", ""]
            lines += ["```python", f["script"].rstrip(), "```", ""]
    return lines


def _short(text: str) -> str:
    flat = " ".join(text.split()).replace("`", "'")
    return flat if len(flat) < 300 else flat[:300] + " ..."


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.scorecard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="parts of names of classes (all)")
    parser.add_argument("--page", action="store_true", help="write the page only")
    parser.add_argument("--limit", type=int, default=600, help="seconds per class")
    parser.add_argument("--profile", default="dev")
    options = parser.parse_args()
    chosen = [n for n in KNOWN if not options.names or any(part in n for part in options.names)]
    if not options.page:
        for name in chosen:
            print(run(name, options.limit, options.profile), flush=True)
    order = {n: k for k, n in enumerate(KNOWN)}
    reports = [json.loads(p.read_text()) for p in RESULTS.glob("*.json")]
    PAGE.write_text(page(sorted(reports, key=lambda r: order.get(r["class"], len(order)))), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
