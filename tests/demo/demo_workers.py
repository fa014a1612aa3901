"""Workers that go wrong. The processes of the demo import this file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

ROOT = Path(__file__).parents[2]


def raises(job: Any, progress: Any) -> Any:
    raise ValueError("\n".join(["this worker is broken", *(f"line {k}" for k in range(5000))]))


def exits(job: Any, progress: Any) -> Any:
    print("the last words of this worker", flush=True)
    os._exit(7)


def hangs(job: Any, progress: Any) -> Any:
    time.sleep(600)


def second_rank_exits(job: Any, progress: Any) -> Any:
    if dist.get_rank() == 1:
        os._exit(7)
    dist.barrier()
