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
import re
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
UNCHECKED = "Not checked by hand."
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
    out = _results(name)
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


def _results(name: str) -> Path:
    return RESULTS / f"{name.rpartition('.')[2]}-{len(name)}.json"


def page(reports: list[dict[str, Any]]) -> str:
    """The Markdown of the score card."""
    done = [r for r in reports if "rules" in r]
    lines = [
        "# Score card",
        "",
        "Written by `python -m tools.scorecard`: the conformance rules (docs/rules/) on wrapper classes of this package,",
        f"torch, torchao and quanto. {_versions()}. Profile `{done[0]['profile'] if done else 'dev'}`, CPU.",
        "",
        "A rule that a class breaks is listed below with a program that shows it, and with what a reader of the program and",
        "of the class took it for. *Class* means a fault of the class, *torch* one of torch's that the class may be able to",
        "avoid, *design* that the class is made so on purpose, and the rule tells what one has to live with. Where it says",
        "*run by hand*, a shorter program was also run outside of the kit. What was the kit's own fault was mended there.",
        "",
        "| class | holds | broken | warnings | does not apply |",
        "|---|---|---|---|---|",
    ]
    for r in done:
        bad = [x for x in r["rules"] if x["outcome"] == "fail"]
        errors = sum(x["severity"] == "error" for x in bad)
        counts = r["counts"]
        lines.append(
            f"| `{r['class']}` | {counts['pass']} | {errors} | {len(bad) - errors} | {counts['not applicable']} |"
        )
    lines += [f"| `{r['class']}` | not run: {r['trouble']} | | | |" for r in reports if "rules" not in r]
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
    for x in report["rules"]:
        if x["outcome"] not in ("fail", "error"):
            continue
        lines += [f"### `{report['class']}`: {x['id']} {x['title']}", "", verdict(report["class"], x["id"]), ""]
        if x["failure"]:
            f = x["failure"]
            lines += [f"{f['what']}: got `{_short(f['got'])}`, expected `{_short(f['expected'])}`.", ""]
            lines += ["<details><summary>program</summary>", "", "```python", f["script"].rstrip(), "```", ""]
            lines += ["</details>", ""]
    return lines


def verdict(cls: str, rule: str) -> str:
    """What a reader of the finding found; classes are known by their last name, or by module and name."""
    name = cls.rpartition(".")[2]
    return VERDICTS.get((cls, rule)) or VERDICTS.get((name, rule)) or VERDICTS.get(("*", rule)) or UNCHECKED


def findings(text: str) -> dict[str, dict[str, str]]:
    """What a page says: class -> rule -> program."""
    found: dict[str, dict[str, str]] = {}
    parts = re.split(r"^### `(.+?)`: (ST\d+) .*$", text, flags=re.MULTILINE)
    for cls, rule, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        program = re.search(r"^```python\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)
        found.setdefault(cls, {})[rule] = program[1] if program else ""
    return found


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
    reports = [json.loads(_results(name).read_text()) for name in KNOWN if _results(name).exists()]
    PAGE.write_text(page(reports), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
