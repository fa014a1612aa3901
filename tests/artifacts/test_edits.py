"""What was edited between two processes is seen, as an artifact and in a cache; what does not matter is served without a trace.

Each edit alone, and edits that are drawn at random; what is given is what eager mode gives, whatever was edited.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from edited import EDITS, MATTERS, PROGRAM, SAME, edited

HERE = Path(__file__).parent
_drawn = random.Random(42)
#: module -> its edits
CASES = {
    **{f"edit_{k:02}": (name,) for k, name in enumerate(EDITS)},
    **{f"edit_many_{k}": tuple(_drawn.sample([*EDITS], _drawn.randint(2, 5))) for k in range(6)},
    **{f"edit_same_{k}": tuple(_drawn.sample([*SAME], 4)) for k in range(3)},
}


def _run(how: str, folder: Path) -> Any:
    command = [sys.executable, "-B", HERE / "edited.py", how, folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def _id(case: str) -> str:
    return " and ".join(CASES[case])


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What became of each program in the second process."""
    folder = tmp_path_factory.mktemp("edits")
    chosen = {item.name for item in request.session.items if item.parent is request.node}
    cases = {name: edits for name, edits in CASES.items() if f"test_edits[{_id(name)}]" in chosen}
    for name in cases:
        (folder / f"{name}.py").write_text(PROGRAM)
    left_out = _run("save", folder)
    assert not any(left_out.values()), left_out
    for name, edits in cases.items():
        (folder / f"{name}.py").write_text(edited(edits)[0])
    return _run("serve", folder)


def test_each_edit_is_one() -> None:
    assert all(name == "nothing" or edited([name])[0] != PROGRAM for name in EDITS)


@pytest.mark.parametrize("case", CASES, ids=_id)
@pytest.mark.long
def test_edits(served: Any, case: str) -> None:
    found, matters = served[case], any(name in MATTERS for name in edited(CASES[case])[1])
    assert ("refused" in found["strict"]) == matters, found["strict"]
    for way in ("lenient", "cache", *(() if matters else ("strict",))):
        assert found[way]["equal"], (way, found[way])
        assert (found[way]["traced"] > 0) == matters, (way, found[way])
    assert found["verified"]["equal"] and "stale" not in found["verified"]["explain"], found["verified"]
    if matters:
        assert all(found["strict"]["refused"]), found["strict"]
