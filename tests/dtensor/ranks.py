"""What each of several gloo processes checks: a compiled function does what it does in eager, and in one process.

Run by ``torchrun --nproc-per-node 2 tests/dtensor/ranks.py FOLDER``, or by `test_ranks` through ``mp.spawn``. Every rank
writes ``FOLDER/<rank>.pt``: name of a check -> the traceback of its failure, or None.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from in_place import collectives_in_place, groups_of_collectives_in_place
from spmd import check, collectives, difference, seen, values
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import subclass_trace as st
from subclass_trace.frontends.dynamo import register
from subclass_trace.zoo import to_fp8

ROWS, WHOLE = [Shard(0)], [Replicate()]
CHECKS: dict[str, Callable[[DeviceMesh], None]] = {}
SLOW = {
    "fsdp2_through_torch_compile",
    "fsdp2, the root of sharded layers, by Dynamo",
}  # left out where ``mp.spawn`` starts the ranks


def on_each_rank(function: Callable[[DeviceMesh], None]) -> Callable[[DeviceMesh], None]:
    """Register a check."""
    CHECKS[function.__name__] = function
    return function


def spread(mesh: DeviceMesh, *shape: int, placements: Any, seed: int = 0) -> DTensor:
    return distribute_tensor(values(*shape, seed=seed), mesh, placements).requires_grad_()


def close(got: Any, want: Any, **tolerance: float) -> None:
    got = got.full_tensor() if isinstance(got, DTensor) else got
    torch.testing.assert_close(got.detach(), want.detach(), **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))


def squares(model: nn.Module, x: Any) -> torch.Tensor:
    return model(x).square().mean()


def train(model: nn.Module, step: Any, width: int = 8, steps: int = 2) -> list[Any]:
    """Loss, gradient norm; the parameters are changed in place."""
    parameters: list[Any] = list(model.parameters())
    parameters = [p for p in parameters if isinstance(p, DTensor)] or parameters  # eager cannot clip both together
    optimizer, rows = torch.optim.AdamW(model.parameters(), lr=0.01), []
    for k in range(steps):
        loss = step(model, values(4, width, seed=k))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 0.05)
        optimizer.step()
        optimizer.zero_grad()
        rows += [loss.detach(), norm.full_tensor() if isinstance(norm, DTensor) else norm]
    return rows


def three_ways(build: Callable[[], nn.Module], shard: Callable[[nn.Module], nn.Module], compile_it: Any) -> None:
    """One process, several in eager, several compiled: the same losses and the same parameters."""
    alone, eager, compiled = build(), shard(build()), shard(build())
    want = train(alone, squares)
    rows = train(eager, squares)
    got = train(*compile_it(compiled))
    for a, b, c in zip(want, rows, got, strict=True):
        close(b, a)
        close(c, b, rtol=0, atol=0)
    for a, b, c in zip(alone.parameters(), eager.parameters(), compiled.parameters(), strict=True):
        close(b, a)
        assert difference(seen(b), seen(c)) is None, difference(seen(b), seen(c))


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


# ---------------------------------------------------------------------------------------------- parallel modules
@on_each_rank
def tensor_parallel_mlp(mesh: DeviceMesh) -> None:
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    region = st.compile(squares)
    three_ways(mlp, lambda m: parallelize_module(m, mesh, plan), lambda m: (m, region))
    (only,) = region.specializations
    assert not only.plan.mutations.rows
    assert mesh.size() == 1 or collectives(only.graphs.forward) == ["all_reduce"]


class Block(nn.Module):
    """A transformer block of width 8 with two heads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.query, self.value, self.out = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.second, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm(x))
        return x + self.down(F.gelu(self.up(self.second(x))))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, v = (p(x).unflatten(-1, (-1, 4)).transpose(1, 2) for p in (self.query, self.value))
        return self.out(F.scaled_dot_product_attention(q, q, v, is_causal=True).transpose(1, 2).flatten(2))


def block_step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x.unflatten(0, (1, -1)).expand(2, -1, -1)).square().mean()


@on_each_rank
def tensor_parallel_transformer_block(mesh: DeviceMesh) -> None:
    plan = {
        **dict.fromkeys(("query", "value", "up"), ColwiseParallel()),
        **dict.fromkeys(("out", "down"), RowwiseParallel()),
    }
    if mesh.size() > 2:
        return
    alone, eager, compiled = Block(), *(parallelize_module(Block(), mesh, plan) for _ in range(2))
    want, rows = train(alone, block_step), train(eager, block_step)
    got = train(compiled, st.compile(block_step))
    close(rows[0], want[0])  # then the clipped norms differ: the plain parameters are not among the clipped ones
    for b, c in zip(rows, got, strict=True):
        close(c, b, rtol=0, atol=0)


@on_each_rank
def sequence_parallel_block(mesh: DeviceMesh) -> None:
    plan = {
        "0": SequenceParallel(),
        "1": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "1.0": ColwiseParallel(),
        "1.2": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.LayerNorm(8), mlp())

    model = parallelize_module(build(), mesh, plan)

    def make() -> Any:
        model.zero_grad()
        x = spread(mesh, 2, 4, 8, placements=[Shard(1)])
        return (model, x), [x, *model.parameters()]

    region = check(lambda model, x: model(x), make)
    close(region(*make()[0]), build()(values(2, 4, 8)))
    found = set(collectives(region.specializations[0].graphs.forward))
    assert mesh.size() == 1 or found == {"all_gather_into_tensor", "reduce_scatter_tensor"}


# ---------------------------------------------------------------------------------------------- values
@on_each_rank
def values_on_their_way(mesh: DeviceMesh) -> None:
    """AsyncCollectiveTensors as input, result and tangent."""

    def waiting(seed: int) -> torch.Tensor:
        part = DTensor.from_local(values(2, 4, seed=seed + dist.get_rank()), mesh, ROWS, run_check=False)
        found = part.redistribute(placements=WHOLE, async_op=True).to_local()
        assert mesh.size() == 1 or type(found) is AsyncCollectiveTensor
        return found

    def product(x: Any, w: torch.Tensor) -> Any:
        y = DTensor.from_local(x @ w, mesh, [Partial()], run_check=False)
        return y.redistribute(placements=ROWS, async_op=True).to_local()

    found = []
    for f in (product, st.compile(product)):
        w = values(4, 4, seed=9).requires_grad_()
        for seed in (0, 5):
            out = f(waiting(seed), w) * 1
            rows = waiting(seed + 50)[: out.shape[0]] if mesh.size() == 1 else waiting(seed + 50).chunk(mesh.size())[0]
            out.backward(rows)
            found.append([seen(out), seen(w.grad)])
    half = len(found) // 2
    assert difference(found[:half], found[half:]) is None, difference(found[:half], found[half:])
    direct = []
    for f in (lambda x, w: x @ w, st.compile(lambda x, w: x @ w)):
        w = values(4, 4, seed=9).requires_grad_()
        f(waiting(1), w).backward(waiting(60))  # a tangent that is still on its way
        direct.append(seen(w.grad))
    assert difference(*direct) is None, difference(*direct)


@on_each_rank
def uneven_shards(mesh: DeviceMesh) -> None:
    for size in (5, 1):

        def make(size: int = size) -> Any:
            x, w = spread(mesh, 3, 4, placements=WHOLE), spread(mesh, size, 4, placements=ROWS, seed=1)
            return (x, w), (x, w)

        region = check(lambda x, w: F.linear(x, w).redistribute(mesh, WHOLE).sin(), make)
        close(region(*make()[0]), F.linear(values(3, 4), values(size, 4, seed=1)).sin())


@on_each_rank
def scaled_fp8_in_a_dtensor(mesh: DeviceMesh) -> None:
    def make() -> Any:
        local = to_fp8(values(4, 16, seed=dist.get_rank()))
        w = DTensor.from_local(local, mesh, ROWS, run_check=False)
        x = spread(mesh, 8, 16, placements=WHOLE)
        return (x, w), (x,)

    check(lambda x, w: F.linear(x, w).redistribute(mesh, WHOLE), make)


# ---------------------------------------------------------------------------------------------- FSDP
def fully_sharded(model: nn.Sequential, mesh: DeviceMesh, **options: Any) -> nn.Sequential:
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def regions_inside(model: nn.Sequential) -> tuple[nn.Sequential, Any]:
    for layer in (model[0], model[2]):
        layer.forward = st.compile(layer.forward)
    return model, squares


@on_each_rank
def fsdp2_around_regions(mesh: DeviceMesh) -> None:
    """Its hooks gather the parameters in eager, and each layer's forward is a region."""
    three_ways(mlp, lambda m: fully_sharded(m, mesh), regions_inside)


def in_layers(model: nn.Sequential, change: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
    model[0], model[2] = change(model[0]), change(model[2])
    return model


def with_tensor_parallel(mesh: DeviceMesh, compile_it: Any) -> nn.Sequential:
    pair = init_device_mesh("cpu", (1, mesh.size()), mesh_dim_names=("rows", "columns"))
    model = parallelize_module(mlp(), pair["columns"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return in_layers(fully_sharded(model, pair["rows"]), compile_it)


LOW = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
FSDP_WAYS: dict[str, Callable[[DeviceMesh, Any], nn.Module]] = {
    "sharded, then compiled": lambda mesh, c: in_layers(fully_sharded(mlp(), mesh), c),
    "compiled, then sharded": lambda mesh, c: fully_sharded(in_layers(mlp(), c), mesh),
    "sharded whole": lambda mesh, c: c(fully_shard(mlp(), mesh=mesh)),
    "mixed precision": lambda mesh, c: in_layers(fully_sharded(mlp(), mesh, mp_policy=LOW), c),
    "kept after the forward": lambda mesh, c: in_layers(fully_sharded(mlp(), mesh, reshard_after_forward=False), c),
    "checkpoint in a region": lambda mesh, c: fully_sharded(in_layers(mlp(), lambda m: c(checkpoint_wrapper(m))), mesh),
    "region in a checkpoint": lambda mesh, c: fully_sharded(in_layers(mlp(), lambda m: checkpoint_wrapper(c(m))), mesh),
    "with tensor parallel": with_tensor_parallel,
    "the root of sharded layers, by Dynamo": lambda mesh, c: c(fully_sharded(mlp(), mesh)),
}


def fsdp2(way: str, mesh: DeviceMesh) -> None:
    """Three steps, of which the second one does not reduce: the bits of eager on this rank."""
    found = []
    for compile_it in (lambda m: m, functools.partial(st.compile, frontend="auto" if "Dynamo" in way else "trace")):
        model: Any = FSDP_WAYS[way](mesh, compile_it)
        layers = [model] if isinstance(model, FSDPModule) else [m for m in model if isinstance(m, FSDPModule)]
        optimizer, rows = torch.optim.AdamW(model.parameters(), lr=0.01), []
        for k in range(3):
            for layer in layers:
                layer.set_requires_gradient_sync(k != 1)
            loss = squares(model, values(4, 8, seed=10 * k + dist.get_rank()))
            loss.backward()
            if k != 1:
                optimizer.step()
                optimizer.zero_grad()
            rows += [loss.detach(), *(seen(p.detach()) for p in model.parameters())]
        found.append(rows)
    assert difference(*found) is None, difference(*found)


for way in FSDP_WAYS:
    CHECKS[f"fsdp2, {way}"] = functools.partial(fsdp2, way)


def with_dynamo(model: nn.Sequential) -> tuple[nn.Module, Any]:
    register()
    return torch.compile(model, backend="subclass_trace"), squares


@on_each_rank
def fsdp2_through_torch_compile(mesh: DeviceMesh) -> None:
    """Dynamo breaks its graphs at the hooks, and each part is captured here."""
    three_ways(mlp, lambda m: fully_sharded(m, mesh), with_dynamo)


class Gathered(nn.Linear):
    """Its sharded parameters are gathered in the forward: what "SimpleFSDP" does with a parametrization."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = [p.redistribute(placements=WHOLE).to_local(grad_placements=[Partial("avg")]) for p in self.parameters()]
        return F.linear(x, *whole)


@on_each_rank
def gathered_in_the_region(mesh: DeviceMesh) -> None:
    def shard(model: nn.Sequential) -> nn.Sequential:
        for layer in (model[0], model[2]):
            layer.__class__ = Gathered
            for name, p in list(layer.named_parameters()):
                setattr(layer, name, nn.Parameter(distribute_tensor(p.detach(), mesh, ROWS)))
        return model

    three_ways(mlp, shard, lambda m: (m, st.compile(squares)))


# ---------------------------------------------------------------------------------------------- DDP
class Either(nn.Module):
    """Uses one of two layers; the other one's parameters get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.first, self.second = nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, first: bool) -> torch.Tensor:
        return (self.first if first else self.second)(self.norm(x))


@on_each_rank
def data_parallel(mesh: DeviceMesh) -> None:
    """Handed to Dynamo: gradients are averaged, buffers broadcast, `no_sync` and unused parameters as in eager."""
    found = []
    for compile_it in (lambda m: m, lambda m: st.compile(m, frontend="auto")):
        model = nn.parallel.DistributedDataParallel(Either(), find_unused_parameters=True)
        run, rows = compile_it(model), []
        for step in range(4):
            if step != 3:  # it adds to what the one before kept to itself
                model.zero_grad()
            with contextlib.nullcontext() if step != 2 else run.no_sync():
                run(values(3, 4, seed=10 * step + dist.get_rank()), step > 0).square().mean().backward()
            rows += [seen(t) for p in model.parameters() for t in (p.grad,) if t is not None]
            rows += [seen(b) for b in model.buffers()]
        found.append(rows)
    assert difference(*found) is None, difference(*found)


@on_each_rank
def collectives_whose_result_one_rank_reads(mesh: DeviceMesh) -> None:
    """Two of one size: where each rank leaves one out, these meet."""
    group, rank = mesh.get_group(), mesh.get_rank()

    def f(x: torch.Tensor) -> torch.Tensor:
        first = all_reduce(x, "sum", group)
        second = all_reduce(x * 10, "sum", group)
        return (first if rank == 0 else second) + 0

    region = st.compile(f, frontend="trace")
    for k in range(2):
        x = torch.full((3,), float(k + 1))
        assert torch.equal(region(x), f(x))


on_each_rank(collectives_in_place)
on_each_rank(groups_of_collectives_in_place)


@on_each_rank
def a_rank_that_diverges_is_reported_with_the_line(mesh: DeviceMesh) -> None:
    """Graphs are per rank. Where one has a collective that the other has not, the group's time limit ends the call.

    The last check: the group is of no use afterwards.
    """
    if mesh.size() == 1:
        return
    group = dist.new_group(timeout=timedelta(seconds=3))
    part = DTensor.from_local(torch.ones(4), DeviceMesh.from_group(group, "cpu"), [Partial()], run_check=False)

    def total(x: DTensor) -> torch.Tensor:
        return (x * 2).full_tensor() if dist.get_rank() == 0 else x.to_local()

    start, found = time.monotonic(), ""
    try:
        st.compile(total)(part)
    except Exception as error:
        found = "".join(traceback.format_exception(error))
    if dist.get_rank() == 0:
        assert time.monotonic() - start < 15
        assert "# _c10d_functional." in found and f", {__file__}:" in found, found
    else:
        assert found == ""


# ---------------------------------------------------------------------------------------------- the process
def run_checks(folder: str, everything: bool) -> None:
    """All checks, in order, on this rank of the group that exists."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found: dict[str, str | None] = {}
    for name, function in CHECKS.items():
        if name in SLOW and not everything:
            continue
        torch.manual_seed(0)
        try:
            function(mesh)
            found[name] = None
        except Exception:
            found[name] = traceback.format_exc()
    partial = Path(folder) / f"{dist.get_rank()}.part"
    torch.save(found, partial)
    partial.rename(Path(folder) / f"{dist.get_rank()}.pt")


def main(folder: str, everything: bool = True) -> None:
    """Join the group that the environment describes (torchrun sets it), run, leave."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    run_checks(folder, everything)
    dist.barrier()
    os._exit(0)  # the last check leaves a broken group: leaving in good order would wait for the other side


def spawned(rank: int, world: int, port: int, folder: str) -> None:
    """The entry of ``mp.spawn``."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    main(folder, everything=False)


if __name__ == "__main__":
    main(sys.argv[1])
