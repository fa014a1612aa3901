"""FSDP and DistributedDataParallel, whose hooks sit on leaves, activations and AccumulateGrad nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.tape import compiled_autograd

dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("no torch.distributed", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    if dist.is_initialized():
        pytest.skip("this process is part of another group")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def sharded() -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    found, mesh = model(), init_device_mesh("cpu", (1,))
    for layer in (found[0], found[2], found):
        fully_shard(layer, mesh=mesh)
    return found


def parallel() -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(model())


def losses(m: torch.nn.Module, around: Any) -> list[float]:
    optimizer, x, found = torch.optim.SGD(m.parameters(), lr=0.1), torch.linspace(-1, 1, 32).view(4, 8), []
    for _ in range(4):
        optimizer.zero_grad()
        loss = m(x).pow(2).sum()
        with around():
            loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("make", [sharded, parallel])
def test_training(make: Any, backend: Any) -> None:
    import torch._dynamo.config

    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        expected = losses(make(), contextlib.nullcontext)
        got = losses(make(), lambda: compiled_autograd(backend=backend))
    assert got == pytest.approx(expected, rel=0 if backend is None else 1e-6)
    assert compiled_autograd.stats.runs == 4


def test_the_reducer_in_cpp_is_refused_by_name() -> None:
    with pytest.raises(st.UnsupportedError, match=r"DistributedDataParallel's C\+\+ reducer"):
        losses(parallel(), compiled_autograd)
