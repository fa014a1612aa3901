"""One of four ranks traces; the others have its specializations exactly where the trace does not hang on the rank.

`one_for_all.py` runs on each rank: programs that are the same everywhere, programs that are not, and programs made up at random of both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

SCRIPT, WORLD, MADE_UP = Path(__file__).parent / "one_for_all.py", 4, 20
WAYS = ("file", "cache")
SHARED = (
    "layer",
    "sequence",
    "step",
    "sequence step",
    "two dimensions",
    "collectives",
    "in place",
    "scattered",
    "none",
)
#: why -> programs that each rank needs for itself
OWN = {
    "its rank in a group": ("split", "rank", "local rank"),
    "its coordinate in a mesh": ("placed", "in its backward"),
    "the size of its shard, which is uneven": ("uneven", "even here"),
}


#: one start of processes for all of them
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What became of each program on each rank."""
    folder = tmp_path_factory.mktemp("ranks")
    seed = os.environ.get("SUBCLASS_TRACE_TEST_SEED", "0")
    started = [
        subprocess.Popen(
            [sys.executable, SCRIPT, folder, str(rank), str(WORLD), seed, str(MADE_UP)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    told = [process.communicate(timeout=300)[1][-3000:] for process in started]
    assert not any(process.returncode for process in started), told
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SHARED)
def test_each_rank_serves_what_one_has_traced(ranks: list[dict[str, Any]], name: str, way: str) -> None:
    found = [rank[name][way] for rank in ranks]
    assert [(row["traced"], row["equal"]) for row in found] == [(0, True)] * WORLD
    assert not any("this rank alone" in row["explained"] for row in found)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("why, name", [(why, name) for why, names in OWN.items() for name in names])
def test_what_hangs_on_the_rank_is_traced_on_each(ranks: list[dict[str, Any]], why: str, name: str, way: str) -> None:
    first, *others = (rank[name][way] for rank in ranks)
    assert first["equal"] and f"[0] is for this rank alone: the trace has read {why}" in first["explained"]
    for row in others:
        assert row["equal"] and row["traced"] > 0, row
        assert "is for this rank alone" in row["explained"]
        if way == "file":
            assert "ranks: expected rank 0, since the trace has read" in row["explained"]


@pytest.mark.parametrize("way", WAYS)
def test_no_rank_is_served_by_what_has_other_numbers_there(ranks: list[dict[str, Any]], way: str) -> None:
    names = [name for name in ranks[0] if name.startswith("made up")]
    wrong = {name: [rank[name][way]["equal"] for rank in ranks] for name in names}
    assert len(names) == MADE_UP and all(map(all, wrong.values())), wrong
    traced = [rank[name][way]["traced"] for rank in ranks[1:] for name in names]
    assert 0 in traced and any(traced)  # both kinds were made up
