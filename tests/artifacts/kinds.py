"""``kinds.py save|serve FOLDER``: regions of many kinds as files and through a cache. Writes name -> how it went."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import regions

import subclass_trace as st
from subclass_trace.capture.capture import Capture
from subclass_trace.zoo import TwoTensor, convert_linears

STEPS = 3


def fp8_step(fresh: bool) -> Any:
    model = convert_linears(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).bfloat16())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for p in () if fresh else model.parameters():  # as after a checkpoint: its state is there
        p.grad = torch.ones_like(p)
    optimizer.step()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(model(x).float(), x.float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step.model = model
    return step


def half(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ w).float()


class Head(nn.Module):
    """A constant of the trace, a buffer, two parameters that are one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.out.weight = self.embedding.weight
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.out(self.embedding(x).tanh() * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))


def sharded() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


KINDS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    **regions.REGIONS,
    "fp8 step": lambda: (fp8_step(fresh=False), (torch.randn(16, 32).bfloat16(),)),
    "fresh optimizer": lambda: (fp8_step(fresh=True), (torch.randn(16, 32).bfloat16(),)),
    "autocast": lambda: (half, (torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True))),
    "tied": lambda: (Head(), (torch.tensor([1, 2, 3]),)),
    "wrapped argument": lambda: (lambda x: (x * 2).sin(), (TwoTensor(torch.ones(3), torch.zeros(3)).requires_grad_(),)),
    "sharded": lambda: (sharded(), (torch.randn(4, 8),)),
}


def made(name: str) -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    return KINDS[name]()


def use(function: Any, args: tuple[Any, ...], steps: int = STEPS) -> list[Any]:
    return [regions.use(function, args) for _ in range(steps)]


def save(name: str, folder: Path) -> Any:
    function, args = made(name)
    region = st.compile(function, frontend="trace", cache=True)
    use(region, args)
    use(st.compile(made(name)[0], frontend="trace", cache="graph"), made(name)[1])
    left_out = region.save(folder / f"{name}.st", *args)
    if name == "tied":
        torch.save(function.state_dict(), folder / "state.pt")
    return [*left_out]


def serve(name: str, folder: Path, traces: list[int]) -> Any:
    found: dict[str, Any] = {}
    ways = {
        "file": lambda f: st.load(folder / f"{name}.st", f, frontend="trace"),
        "cache": lambda f: st.compile(f, frontend="trace", cache=True),
        "verified": lambda f: st.compile(f, frontend="trace", cache=True, verify=True),
        "graph": lambda f: st.compile(f, frontend="trace", cache="graph"),
    }
    for way, make in ways.items():
        (function, args), (eager, same_args) = made(name), made(name)
        if name == "tied":
            state = torch.load(folder / "state.pt")
            function.load_state_dict(state)
            eager.load_state_dict(state)
        traces.clear()
        try:
            region = make(function)
            got = use(region, args)
        except st.ArtifactError as error:
            found[way] = {"refused": error.path}
            continue
        count, want = len(traces), use(eager, same_args)
        told = region.explain()
        found[way] = {"traced": count, "equal": close(got, want), "stale": "was stale" in told}
        if kept := re.search(r"(\d+) partitions were found, (\d+) were kept", told):
            found[way] |= {"found": int(kept[1]), "kept": int(kept[2])}
        if name == "autocast":  # outside of it, and inside of another one
            region, (_, args), (_, same_args) = make(half), made(name), made(name)
            with torch.autocast("cpu", dtype=torch.float16):
                found[way]["equal"] &= close(use(region, args), use(half, same_args))
    return found


def close(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float):
        return abs(a - b) <= 1e-5 * max(1.0, abs(a))
    return bool(a == b)


def main() -> None:
    how, folder = sys.argv[1:]
    os.environ["SUBCLASS_TRACE_CACHE_DIR"] = str(Path(folder) / "cache")
    store = dist.FileStore(str(Path(folder) / f"{how}_store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    traces: list[int] = []
    capture = Capture.capture
    Capture.capture = lambda self, run: (traces.append(1), capture(self, run))[1]  # type: ignore[method-assign]
    of = Path(folder)
    found = {n: save(n, of) if how == "save" else serve(n, of, traces) for n in KINDS}
    (of / f"{how}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
