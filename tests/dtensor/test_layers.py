"""Layers over a mesh of a fake process group of four, and contexts around DTensors: eager against compiled, bit for bit."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from spmd import COLUMNS, REPLICATE, ROWS, check, difference, of_local, seen, whole
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import loss_parallel

import subclass_trace as st


# ----------------------------------------- linear layers, redistribution, local tensors and parameters that are written
# ---------------------------------------------------------------------------------------------- mutation
def test_parameter_is_written_without_grad(mesh) -> None:
    def f(w, g):
        with torch.no_grad():
            w.add_(g, alpha=-0.1)
        return (w * 2).sum()

    def make():
        w, g = whole(mesh, 8, 8, placements=ROWS, grad=True), whole(mesh, 8, 8, placements=ROWS, seed=1)
        return (w, g), (w,)

    check(f, make)
    (w, g), _ = make()
    local, before, version = w._local_tensor, w._local_tensor.detach().clone(), w._version
    region = st.compile(f)
    region(w, g)
    assert w._local_tensor is local
    assert torch.equal(local, before.add(g._local_tensor, alpha=-0.1))
    assert w._version > version


def test_tied_parameters(mesh) -> None:
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20, bias=False))
    model[0].weight = model[1].weight = tied = nn.Parameter(whole(mesh, 20, 16))

    def make():
        model.zero_grad()
        return (model, torch.arange(24).reshape(2, 12) % 20), [tied]

    region = check(lambda model, tokens: model(DTensor.from_local(tokens, mesh, REPLICATE, run_check=False)), make)
    paths = [str(row.path) for row in region.specializations[0].plan.inputs.rows]
    assert [p for p in paths if p.endswith("weight")] == ["args[0][0].weight"]
    assert model[0].weight is tied and model[1].weight is tied


def test_placements_and_meshes_as_arguments(mesh, mesh_2d) -> None:
    """Placements count by value, wherever they stand; a mesh by identity."""

    def f(x, placements):
        return x.redistribute(placements=placements)

    region = st.compile(f)
    for _ in range(2):
        for placement in (Shard(0), Shard(1), Replicate()):
            x = whole(mesh, 8, 8, placements=REPLICATE)
            assert difference(seen(f(x, [placement])), seen(region(x, [placement]))) is None
    assert len(region.specializations) == 3
    region = st.compile(lambda x, m: DTensor.from_local(x, m, [Shard(0)] * m.ndim, run_check=False))
    for m in (mesh, mesh_2d, mesh):
        assert region(torch.ones(4), m).device_mesh is m
    assert len(region.specializations) == 2


def test_hooks_of_a_distributed_module(mesh) -> None:
    """Torch's hook calls the user's function, which closes over variables."""
    factor = 3.0
    model = distribute_module(nn.Linear(8, 8), mesh, output_fn=lambda module, out, mesh: (out * factor).to_local())

    def make():
        model.zero_grad()
        return (whole(mesh, 8, 8, placements=REPLICATE),), list(model.parameters())

    check(lambda x: model(x), make)


# --------------------- ``loss_parallel`` and ``implicit_replication``: around a call, inside of it, around its backward
def loss(x, w, y):
    return F.cross_entropy(x @ w, y)


def loss_inside(x, w, y):
    with loss_parallel():
        return loss(x, w, y)


def parallel(on: bool):
    return loss_parallel() if on else contextlib.nullcontext()


def gradients(f, mesh, forward: bool, backward: bool):
    x, w = whole(mesh, 4, 6), of_local(mesh, 6, 2, placements=COLUMNS, seed=1)
    y = DTensor.from_local(torch.tensor([0, 3, 6, 7]), mesh, x.placements, run_check=False)
    with parallel(forward):
        out = f(x, w, y)
    with parallel(backward):
        out.backward()
    return [seen(out), seen(w.grad)]


def test_loss_parallel_around_the_call(mesh) -> None:
    region = st.compile(loss)
    placements = set()
    for on in (False, True, False, True):
        want = gradients(loss, mesh, on, on)
        found = difference(want, gradients(region, mesh, on, on))
        assert found is None, found
        placements.add(want[1]["placements"])
    assert len(region.specializations) == 2 == len(placements)
    assert "operations by hand" in region.explain()
    want = gradients(loss, mesh, True, False)
    assert difference(want, gradients(region, mesh, True, False)) is None


def test_loss_parallel_inside_and_around_the_backward(mesh) -> None:
    region = st.compile(loss_inside)
    for on in (True, False, True):
        found = difference(gradients(loss_inside, mesh, False, on), gradients(region, mesh, False, on))
        assert found is None, found
    (only,) = region.specializations
    assert len(only.program.backwards.compiled) == 2


def test_a_backward_that_eager_refuses(mesh) -> None:
    x, w = whole(mesh, 4, 6), of_local(mesh, 6, 2, placements=COLUMNS, seed=1)
    y = DTensor.from_local(torch.tensor([0, 3, 6, 7]), mesh, x.placements, run_check=False)
    for f in (loss, st.compile(loss)):
        out = f(x, w, y)
        with loss_parallel(), pytest.raises(ValueError, match="loss_parallel"):
            out.backward()


def test_implicit_replication_around_the_call(mesh) -> None:
    other = torch.ones(4, 2)
    region = st.compile(lambda x: x + other)
    x = of_local(mesh, 4, 2, placements=whole(mesh, 1).placements).detach()
    with implicit_replication():
        assert torch.equal(region(x).to_local(), x.to_local() + 1)
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        region(x)
    with implicit_replication():
        region(x)
    assert len(region.specializations) == 1


@pytest.mark.usefixtures("own_backward")
def test_regions_of_dense_tensors_do_not_ask(mesh) -> None:
    region = st.compile(torch.sin)
    for on in (False, True):
        with parallel(on):
            region(torch.ones(2, requires_grad=True)).sum().backward()
    (only,) = region.specializations
    assert only.ambient.dtensor is None and len(only.program.backwards.compiled) == 1


class _Residual(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(size)
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))


def test_a_sequence_parallel_block_is_traced_in_its_first_call(mesh) -> None:
    """A spec keeps its hash when it is asked for it first: that is no change of Python state by a backward."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    plan = {
        "norm": SequenceParallel(sequence_dim=1),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    module = parallelize_module(_Residual(24), mesh, plan)
    x = DTensor.from_local(torch.randn(2, 4, 24), mesh, [Shard(1)], run_check=False).requires_grad_()
    region = st.compile(module, frontend="trace")
    region(x).to_local().sum().backward()
    assert len(region.specializations) == 1


@pytest.mark.parametrize("clips", [False, True])
def test_a_scaler_may_leave_out_a_step_of_distributed_parameters(mesh, clips) -> None:
    def trained(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        distribute_module(model, mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)

        def step(x):
            scaler.scale(model(x).square().mean()).backward()
            if clips:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        step = wrap(step)
        for k in range(5):
            x = whole(mesh, 4, 8, seed=k)
            step(x * torch.inf if k == 3 else x)
        return [p.to_local() for p in model.parameters()], scaler.get_scale()

    (found, scale), (expected, known) = trained(lambda f: st.compile(f, frontend="trace")), trained(lambda f: f)
    assert scale == known < 512.0 and all(map(torch.equal, found, expected))


def test_a_placement_that_the_region_makes_is_saved(mesh, tmp_path) -> None:
    def replicated(x):
        return x.redistribute(placements=[Replicate()]).to_local()

    region, x = st.compile(replicated, frontend="trace"), whole(mesh, 4, 2)
    region(x)
    assert region.save(tmp_path / "f", x) == ()
    assert torch.equal(st.load(tmp_path / "f", replicated, frontend="trace")(x), region(x))
