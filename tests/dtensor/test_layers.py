"""Linear layers over a mesh, redistribution, local tensors and parameters that are written: on a fake process group of four,
eager against compiled, bit for bit."""

from __future__ import annotations

import torch
from spmd import REPLICATE, ROWS, check, difference, seen, whole
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module

import subclass_trace as st


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
