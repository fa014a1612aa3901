"""What one process saves, another one serves without a trace, with eager's numbers; a rank serves only what it has saved."""

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


def _run(how: str, folder: Path, world: int | None) -> list[Any]:
    ranks = [[]] if world is None else [[str(rank), str(world)] for rank in range(world)]
    started = [
        subprocess.Popen([sys.executable, SCRIPT, how, folder, *rank], stderr=subprocess.PIPE, text=True)
        for rank in ranks
    ]
    for process in started:
        assert process.wait(timeout=300) == 0, process.communicate()[1][-3000:]
        process.communicate()
    return [json.loads((folder / f"{how}_{k}.json").read_text()) for k in range(len(started))]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What became of each kind in the second process."""
    folder = tmp_path_factory.mktemp("kinds")
    (left_out,) = _run("save", folder, None)
    assert not any(left_out.values()), left_out
    (found,) = _run("serve", folder, None)
    return found


@pytest.mark.parametrize("way", ["file", "cache"])
@pytest.mark.parametrize("name", KINDS)
def test_another_process_serves_without_a_trace(served: Any, name: str, way: str) -> None:
    # A call that makes the state of an optimizer runs eagerly, after a trace that says so.
    assert served[name][way] == {"traced": 0, "equal": True}


def test_each_rank_serves_what_it_has_saved(tmp_path: Path) -> None:
    _run("save", tmp_path, 2)
    for found in _run("serve", tmp_path, 2):
        assert found["sharded"] == {way: {"traced": 0, "equal": True} for way in ("file", "cache")}
        assert found["other"]["file"] == {"refused": "ranks"}
