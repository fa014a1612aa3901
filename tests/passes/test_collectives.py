"""Passes over collectives, on two gloo ranks; what they check is in `ranks.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

RANKS = Path(__file__).with_name("ranks.py")


@pytest.mark.skipif(not dist.is_available(), reason="torch is built without distributed")
@pytest.mark.long
def test_two_ranks(tmp_path: Path) -> None:
    runs = [
        subprocess.Popen([sys.executable, str(RANKS), str(rank), str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [run.communicate(timeout=300)[1] for run in runs]
    found = [path.read_text(encoding="utf-8") for path in sorted(tmp_path.glob("*.txt"))]
    assert found == ["right", "right"], "\n".join(error[-3000:] for error in errors)
