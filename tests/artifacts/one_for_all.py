"""``one_for_all.py FOLDER RANK WORLD SEED COUNT``: rank 0 traces programs and saves them, in files and a cache; all ranks load them.

Writes for each program and way how often this rank has traced, whether its numbers are eager's, and what ``explain()`` says. Programs
that read the rank are made up at random, too.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import subclass_trace as st
from subclass_trace.capture.capture import Capture

FOLDER, RANK, WORLD, SEED = Path(sys.argv[1]), *map(int, sys.argv[2:5])
os.environ["SUBCLASS_TRACE_CACHE_DIR"] = str(FOLDER / "cache")
os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(RANK)
dist.init_process_group("gloo", store=dist.FileStore(str(FOLDER / "store"), WORLD), rank=RANK, world_size=WORLD)
MESH = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
LINE = init_device_mesh("cpu", (4,), mesh_dim_names=("all",))
TP, GROUP = MESH["tp"], MESH.get_group("tp")
SAME, FIRST, SUMS = Replicate(), Shard(0), Partial()


def local(*size: int) -> torch.Tensor:
    """Numbers of this rank."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(RANK))


def spread(size: int, mesh: Any, *placements: Any) -> DTensor:
    torch.manual_seed(0)
    return distribute_tensor(torch.randn(size, 8), mesh, [*placements]).requires_grad_()


# ---- programs that each rank may have of another one
class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


def layer(sequence: bool = False) -> nn.Module:
    torch.manual_seed(0)
    over = (Shard(0),) if sequence else (Replicate(),)
    plan = {"up": ColwiseParallel(input_layouts=over[0]), "down": RowwiseParallel(output_layouts=over[0])}
    return parallelize_module(Layer(), TP, plan)


def step(sequence: bool) -> Any:
    model = layer(sequence)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for p in model.parameters():  # as after a checkpoint: its state is there
        p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.zero_grad()

    def run(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run.parameters = model.parameters
    return run


def reduced(x: torch.Tensor) -> torch.Tensor:
    return funcol.all_reduce(x, "sum", GROUP) * 2 + funcol.all_reduce(x.detach(), "max", (MESH, 0))


def reduced_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y, group=MESH.get_group("tp"))
    return y


def scattered(x: torch.Tensor) -> torch.Tensor:
    return DTensor.from_local(x, LINE, [SUMS]).redistribute(LINE, [FIRST]).to_local().sin()


SHARED: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "layer": lambda: (layer(), (local(4, 8),)),
    "sequence": lambda: (layer(True), (local(2, 8),)),
    "step": lambda: (step(False), (local(4, 8),)),
    "sequence step": lambda: (step(True), (local(2, 8),)),
    "two dimensions": lambda: (lambda y: (y * y).relu().to_local(), (spread(8, MESH, Shard(0), Shard(1)),)),
    "collectives": lambda: (reduced, (local(4, 8).requires_grad_(),)),
    "in place": lambda: (reduced_in_place, (local(4, 8),)),
    "scattered": lambda: (scattered, (local(8, 8),)),
    "none": lambda: (lambda x: (x @ x.t()).sin(), (local(4, 8).requires_grad_(),)),
}

# ---- programs of which each rank needs its own
OWN: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "split": lambda: (lambda x: x.chunk(WORLD)[dist.get_rank()] * 2, (torch.arange(8.0),)),
    "placed": lambda: (
        lambda x: DTensor.from_local(x, LINE, [SAME], run_check=False).redistribute(LINE, [FIRST]).to_local() * 2,
        (torch.arange(8.0),),
    ),
    "uneven": lambda: (lambda y: (y * 2).view(7, 2, 4).sum(2), (spread(7, LINE, Shard(0)).detach(),)),
    "even here": lambda: (lambda y: y.new_zeros(6, 8) + y, (spread(6, LINE, Shard(0)),)),
    "local rank": lambda: (lambda x: x * MESH.get_local_rank("tp"), (torch.ones(3),)),
    "in its backward": lambda: (lambda y: (y @ y).relu().sum(1), (spread(8, MESH, Shard(0), Replicate()),)),
    "rank": lambda: (lambda x: x + dist.get_rank(), (torch.ones(3),)),
}


# ---- programs at random
class Holder:
    rank = RANK
    coordinate = MESH.get_coordinate()


HOLDER, TABLE = Holder(), {"ranks": [3.0, 1.0, 4.0, 1.5]}


def _branch(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if dist.get_rank() % 2 else x.cos()


def _unpacked(x: torch.Tensor) -> torch.Tensor:
    dp, tp = MESH.get_coordinate()
    return x + dp * 3 + tp


#: what reads the rank in some way
READERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rank": lambda x: x * (1 + dist.get_rank()),
    "of the group": lambda x: x + dist.get_rank(GROUP),
    "of the mesh": lambda x: x - MESH.get_rank(),
    "local rank": lambda x: x * (1 + MESH.get_local_rank(0)),
    "method": lambda x: x + GROUP.rank(),
    "members": lambda x: x * (1 + dist.get_process_group_ranks(GROUP)[1]),
    "name": lambda x: x * int(GROUP.group_name),
    "names": lambda x: x * int(MESH._dim_group_names[0]),
    "to global": lambda x: x + dist.get_global_rank(GROUP, 0),
    "node": lambda x: x * (2 + dist.get_node_local_rank()),
    "environment": lambda x: x * (2 + int(os.environ["RANK"])),
    "item": lambda x: x + TABLE["ranks"][dist.get_rank()],
    "branch": _branch,
    "unpacked": _unpacked,
    "contained": lambda x: x + (1 in MESH.get_coordinate()),
    "compared": lambda x: x + (MESH.get_coordinate() == (0, 0)),
    "text": lambda x: x + len(str(MESH.get_coordinate()).replace("1", "")),
    "private": lambda x: x * (1 + MESH._coordinate_on_dim[1]),
    "held": lambda x: x * (2 + HOLDER.rank),
    "held coordinate": lambda x: x + sum(HOLDER.coordinate) + HOLDER.coordinate[0],
    "part": lambda x: x + MESH["tp"].get_local_rank(),
    "part's coordinate": lambda x: x + TP.get_coordinate()[0],
    "constant": lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0])[dist.get_rank()],
    "shard": lambda x: (
        x + DTensor.from_local(x, LINE, [SAME], run_check=False).redistribute(LINE, [FIRST]).to_local()[:1]
    ),
    "backward": lambda x: _Scaled.apply(x),
}
#: what is the same on all ranks
PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sin": torch.sin,
    "sum": lambda x: funcol.all_reduce(x, "sum", GROUP) * 0.5,
    "max": lambda x: x + funcol.all_reduce(x.detach(), "max", (MESH, 0)),
    "size": lambda x: x / dist.get_world_size() * MESH.size(0),
    "gathered": lambda x: x + DTensor.from_local(x, TP, [FIRST], run_check=False).full_tensor()[:8],
    "product": lambda x: x @ x.t(),
}


class _Scaled(torch.autograd.Function):
    """Its backward alone knows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (2 + dist.get_rank())


def made_up(number: int) -> tuple[Any, tuple[Any, ...]]:
    """A program; the same one on each rank."""
    dice = random.Random(f"{SEED} {number}")
    names = dice.sample([*PLAIN], 2) + dice.sample([*READERS], dice.randint(0, 2))
    dice.shuffle(names)
    parts = [PLAIN.get(name) or READERS[name] for name in names]

    def run(x: torch.Tensor) -> torch.Tensor:
        for part in parts:
            x = part(x)
        return x

    run.__qualname__ = f"made_up.{number}.{'+'.join(names)}"
    return run, (local(8, 8).requires_grad_(),)


# ---- running
def use(function: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Two calls with their backwards: results, gradients and parameters."""
    found: list[Any] = []
    for _ in range(2):
        result = function(*args)
        if result.requires_grad:
            result.sum().backward()
        found += [result, *(a.grad for a in args if isinstance(a, torch.Tensor))]
    owner = getattr(function, "parameters", None)
    for p in () if owner is None else owner():
        found += [p, p.grad]
    whole = [t.to_local() if isinstance(t, DTensor) else t for t in found if t is not None]
    return [t.detach().clone() for t in whole]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.allclose, a, b))


def served(make: Callable[[], Any], region_of: Callable[[Any], Any], traces: list[int]) -> dict[str, Any]:
    (function, args), (eager, same_args) = make(), make()
    region = region_of(function)
    traces.clear()
    got = use(region, args)
    count, want = len(traces), use(eager, same_args)
    return {"traced": count, "equal": equal(got, want), "explained": region.explain()}


def main() -> None:
    traces: list[int] = []
    capture = Capture.capture
    Capture.capture = lambda self, run: (traces.append(1), capture(self, run))[1]  # type: ignore[method-assign]
    programs = {**SHARED, **OWN, **{f"made up {n}": lambda n=n: made_up(n) for n in range(int(sys.argv[5]))}}
    found: dict[str, Any] = {}
    for name, make in programs.items():
        path = FOLDER / f"{name}.st"
        function, args = make()
        if RANK == 0:
            region = st.compile(function, frontend="trace", cache=True)
            region.specialize(*args)
            try:
                region.save(path, *args)
            except st.ArtifactError as error:  # it is not portable: the cache has none of it
                print(name, error, flush=True)
        dist.barrier()
        ways = {
            "file": lambda f, path=path: st.load(path, f, strict=False, frontend="trace"),
            "cache": lambda f: st.compile(f, frontend="trace", cache=True),
        }
        if path.exists():
            found[name] = {way: served(make, region_of, traces) for way, region_of in ways.items()}
        dist.barrier()
    (FOLDER / f"{RANK}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
