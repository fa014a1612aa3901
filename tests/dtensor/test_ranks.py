"""The checks of `ranks`, by processes that ``mp.spawn`` and ``torchrun`` start; each start is limited in time."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

import ranks

SECONDS = 150


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def by_spawn(world: int, folder: Path) -> None:
    """``mp.spawn``, whose ``join`` raises the first failure of a rank."""
    context = mp.spawn(ranks.spawned, (world, free_port(), str(folder)), nprocs=world, join=False)
    deadline = time.monotonic() + SECONDS
    while not context.join(timeout=1):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            pytest.fail(f"the ranks were not done after {SECONDS} seconds", pytrace=False)


def by_torchrun(world: int, folder: Path) -> None:
    """``torchrun``, as a user starts it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port()), ranks.__file__, str(folder)]
    tests = Path(ranks.__file__).parent
    paths = [str(tests), str(tests.parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"torchrun was not done after {SECONDS} seconds\n{process.communicate()[0]}", pytrace=False)
    assert process.returncode == 0, output


START = {
    "spawn, 2 ranks": functools.partial(by_spawn, 2),
    "torchrun, 1 rank": functools.partial(by_torchrun, 1),
    "torchrun, 2 ranks": functools.partial(by_torchrun, 2),
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory):
    """Start the processes of one kind once; what each rank found."""
    kept: dict[str, list[dict[str, str | None]]] = {}
    names = [name for _, name in socket.if_nameindex()]

    def start(how: str) -> list[dict[str, str | None]]:
        if how not in kept:
            folder = tmp_path_factory.mktemp("ranks")
            START[how](folder)
            kept[how] = [torch.load(f, weights_only=True) for f in sorted(folder.glob("*.pt"))]
        return kept[how]

    with pytest.MonkeyPatch.context() as patch:  # gloo looks up the host's name otherwise
        patch.setenv("GLOO_SOCKET_IFNAME", next((n for n in names if n.startswith("lo")), "lo"))
        yield start


CASES = [
    pytest.param(how, name, marks=[] if "spawn" in how else pytest.mark.slow)
    for how in START
    for name in ranks.CHECKS
    if not ("spawn" in how and name in ranks.SLOW)
]


@pytest.mark.parametrize(("how", "name"), CASES)
def test_each_rank(started, how: str, name: str) -> None:
    found = started(how)
    assert len(found) == (1 if "1 rank" in how else 2)
    for rank, checks in enumerate(found):
        assert checks[name] is None, f"rank {rank}\n{checks[name]}"
