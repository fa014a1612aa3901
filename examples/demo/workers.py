"""Run a training in processes of their own: their output is kept aside, and none of them can fail
or hang unseen."""

from __future__ import annotations

import multiprocessing
import os
import queue
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .side_by_side import Job, Progress, Result

Worker = Callable[[Job, Progress], Result]
HOST = "127.0.0.1"
COLLECTIVE_SECONDS = 60


class WorkerError(RuntimeError):
    """A worker process failed, died or stopped making progress."""


def run(
    worker: Worker, job: Job, *, world: int, progress: Progress, patience: float
) -> list[Result]:
    """``worker(job, progress)`` in ``world`` processes joined by gloo; each process's result, by
    rank.

    ``patience`` is how many seconds may pass without a step.
    """
    context = multiprocessing.get_context("spawn")
    events: Queue[Any] = context.Queue()
    # chooses a free port and holds it
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory(prefix="subclass_trace_demo_") as folder:
        logs = [Path(folder) / f"rank{rank}.log" for rank in range(world)]
        processes = [
            context.Process(
                target=_process,
                args=(worker, job, rank, world, store.port, events, str(logs[rank])),
                daemon=True,
            )
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        try:
            return _collect(processes, events, logs, progress, patience)
        finally:
            for process in processes:
                process.join(timeout=2)
                if process.is_alive():
                    process.kill()
                    process.join()


def _collect(
    processes: list[Any], events: Queue[Any], logs: list[Path], progress: Progress, patience: float
) -> list[Result]:
    results: dict[int, Result] = {}
    heard = time.monotonic()
    while len(results) < len(processes):
        dead = [
            rank
            for rank, process in enumerate(processes)
            if process.exitcode is not None and rank not in results
        ]
        try:
            kind, rank, payload = events.get(timeout=0.5)
        except queue.Empty:
            if dead:
                code = processes[dead[0]].exitcode
                raise WorkerError(
                    f"worker {dead[0]} died with exit code {code}\n{_tail(logs[dead[0]])}"
                ) from None
            if time.monotonic() - heard > patience:
                waiting = [rank for rank in range(len(processes)) if rank not in results]
                raise WorkerError(
                    f"no step for {patience:.0f} seconds; waiting for workers "
                    f"{waiting}\n{_tail(logs[waiting[0]])}"
                ) from None
            continue
        heard = time.monotonic()
        if kind == "step":
            progress(*payload)
        elif kind == "result":
            results[rank] = payload
        else:
            raise WorkerError(f"worker {rank} failed{_others_dead(processes, rank)}\n{payload}")
    return [results[rank] for rank in range(len(processes))]


def _others_dead(processes: list[Any], rank: int) -> str:
    """A worker that dies makes the others fail in their collectives: the dead one is the cause."""
    time.sleep(0.2)
    dead = [
        (k, process.exitcode)
        for k, process in enumerate(processes)
        if k != rank and process.exitcode
    ]
    return "".join(f", and worker {k} died with exit code {code}" for k, code in dead)


def _process(
    worker: Worker, job: Job, rank: int, world: int, port: int, events: Queue[Any], log: str
) -> None:
    """What each process runs."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        # More threads gain little on so small a model, and cost a factor of ten where the cores are
        # busy otherwise.
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
        timeout = timedelta(seconds=COLLECTIVE_SECONDS)
        store = dist.TCPStore(HOST, port, is_master=False, timeout=timeout)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
        result = worker(job, lambda *step: events.put(("step", rank, step)) if rank == 0 else None)
        events.put(("result", rank, result))
        dist.barrier()  # no process leaves while another still talks to it
        dist.destroy_process_group()
    except BaseException as error:
        events.put(("error", rank, _account(error)))


def _account(error: BaseException, lines: int = 40) -> str:
    """The last frames and the message, in so many lines: a compiler's message may have
    thousands."""
    text = "".join(traceback.format_exception(error, limit=-4, chain=False)).splitlines()
    cut = (
        [*text[: lines - 10], f"... {len(text) - lines} lines ...", *text[-10:]]
        if len(text) > lines
        else text
    )
    return "\n".join(line[:300] for line in cut)


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), "lo")


def _tail(log: Path, lines: int = 20) -> str:
    text = log.read_text(errors="replace").strip() if log.exists() else ""
    return (
        "\n".join(["its last output:", *text.splitlines()[-lines:]])
        if text
        else "it printed nothing"
    )
