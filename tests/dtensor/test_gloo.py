"""Two processes over gloo: a tensor-parallel MLP trained for three steps is the MLP trained in one process."""

from __future__ import annotations

import os
import socket
import time
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD, STEPS, SECONDS = 2, 3, 50


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


def train(model: nn.Module, step) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for k in range(STEPS):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(k))
        loss = step(model, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def squares(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def worker(rank: int, port: int, folder: str) -> None:
    """One rank; what it finds, or how it failed, is in a file."""
    found: dict[str, object] = {}
    try:
        torch.set_num_threads(1)
        timeout = timedelta(seconds=20)
        store = dist.TCPStore("127.0.0.1", port, WORLD, is_master=rank == 0, timeout=timeout)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timeout)
        found = both_sides()
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        found["error"] = traceback.format_exc()
    partial = Path(folder) / f"{rank}.part"
    torch.save(found, partial)
    partial.rename(Path(folder) / f"{rank}.pt")


def both_sides() -> dict[str, object]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import subclass_trace as st

    mesh = init_device_mesh("cpu", (WORLD,))
    found: dict[str, object] = {}
    for name in ("eager", "compiled"):
        model = parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        step = squares if name == "eager" else st.compile(squares)
        found[name] = train(model, step)
        found[f"{name} parameters"] = [p.full_tensor().detach() for p in model.parameters()]
        if name == "compiled":
            found["specializations"] = len(step.specializations)
            found["written inputs"] = len(step.specializations[0].plan.mutations)
            found["forward"] = [str(n.target) for n in step.specializations[0].graphs.forward.graph.nodes]
    return found


def run(folder: Path, entry) -> list[dict[str, object]]:
    """What each rank found. Fails with the first rank's traceback, or after `SECONDS`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    processes = [context.Process(target=entry, args=(rank, port, str(folder)), daemon=True) for rank in range(WORLD)]
    for process in processes:
        process.start()
    files = [folder / f"{rank}.pt" for rank in range(WORLD)]
    deadline = time.monotonic() + SECONDS
    try:
        while not all(f.exists() for f in files):
            for rank, process in enumerate(processes):
                process.join(timeout=0.1)
                if process.exitcode is not None and not files[rank].exists():
                    pytest.fail(f"rank {rank} died with exit code {process.exitcode}", pytrace=False)
                if files[rank].exists() and "error" in (found := torch.load(files[rank], weights_only=True)):
                    pytest.fail(f"rank {rank} failed\n{found['error']}", pytrace=False)
            if time.monotonic() > deadline:
                waiting = [rank for rank, f in enumerate(files) if not f.exists()]
                pytest.fail(f"ranks {waiting} were not done after {SECONDS} seconds", pytrace=False)
        results = [torch.load(f, weights_only=True) for f in files]
    finally:
        for process in processes:
            process.join(timeout=2)
            if process.is_alive():
                process.kill()
                process.join()
    for rank, found in enumerate(results):
        if "error" in found:
            pytest.fail(f"rank {rank} failed\n{found['error']}", pytrace=False)
    return results


@pytest.fixture
def loopback(monkeypatch):
    """Gloo looks up the host's name otherwise, which not every machine can resolve."""
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    names = [name for _, name in socket.if_nameindex()]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", next((n for n in names if n.startswith("lo")), "lo"))


def test_tensor_parallel_training_is_the_single_process_one(loopback, tmp_path) -> None:
    reference = mlp()
    losses = train(reference, squares)
    for found in run(tmp_path, worker):
        assert found["compiled"] == found["eager"]  # bit for bit
        assert found["compiled"] == pytest.approx(losses, rel=1e-5)
        assert found["specializations"] == 1 and found["written inputs"] == 0
        assert "_c10d_functional.all_reduce.default" in found["forward"]
        for e, c, r in zip(
            found["eager parameters"], found["compiled parameters"], reference.parameters(), strict=True
        ):
            assert torch.equal(e, c)
            torch.testing.assert_close(c, r.detach(), rtol=1e-5, atol=1e-6)


def broken(rank: int, port: int, folder: str) -> None:
    if rank == 1:
        os._exit(7)
    worker(rank, port, folder)


def test_a_rank_that_dies_fails_the_test_with_its_code(loopback, tmp_path) -> None:
    start = time.monotonic()
    with pytest.raises(pytest.fail.Exception, match="rank 1 died with exit code 7"):
        run(tmp_path, broken)
    assert time.monotonic() - start < SECONDS / 2
