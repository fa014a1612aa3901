"""What one process saves, another one serves without a trace, with eager's numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

from kinds import KINDS

SCRIPT = Path(__file__).parent / "kinds.py"


def _run(how: str, folder: Path) -> Any:
    done = subprocess.run([sys.executable, SCRIPT, how, folder], stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / f"{how}.json").read_text())


#: one start of processes for all of them
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What became of each kind in the second process."""
    folder = tmp_path_factory.mktemp("kinds")
    left_out = _run("save", folder)
    assert not any(left_out.values()), left_out
    return _run("serve", folder)


@pytest.mark.parametrize("way", ["file", "cache"])
@pytest.mark.parametrize("name", KINDS)
def test_another_process_serves_without_a_trace(served: Any, name: str, way: str) -> None:
    # A call that makes the state of an optimizer runs eagerly, after a trace that says so.
    assert served[name][way] == {"traced": 0, "equal": True, "stale": False}


@pytest.mark.parametrize("name", KINDS)
def test_another_process_finds_nothing_stale(served: Any, name: str) -> None:
    found = served[name]["verified"]
    assert found.pop("traced") > 0 and found == {"equal": True, "stale": False}


#: regions that are cut in two: others are left to autograd, have no backward, or run their own
CUT = {"dense", "wrapped", "counts", "custom", "tied", "wrapped argument", "sharded"}


@pytest.mark.parametrize("name", KINDS)
def test_another_process_finds_the_partition(served: Any, name: str) -> None:
    found = served[name]["graph"]
    assert found.pop("traced") > 0 and found.pop("kept") == 0
    assert found == {"equal": True, "stale": False, "found": int(name in CUT)}
