"""Uneven shards, two-dimensional meshes, sizes that change, and what is guarded: on a fake process group of four."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from spmd import REPLICATE, ROWS, VERSION, column, difference, seen, whole
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import subclass_trace as st


def test_batch_sizes_that_change(mesh) -> None:
    """The second size makes a dynamic specialization, which serves the rest."""

    def f(x, w):
        return F.linear(x, w).relu()

    region = st.compile(f)
    for size in (4, 6, 8, 10, 12):
        x, w = whole(mesh, size, 16, grad=True), whole(mesh, 12, 16, placements=ROWS, seed=1, grad=True)
        want = f(x, w)
        want.sum().backward()
        expected, x.grad, w.grad = (x.grad, w.grad), None, None
        got = region(x, w)
        got.sum().backward()
        assert got.placements == want.placements and got.shape == want.shape
        assert torch.equal(got._local_tensor, want._local_tensor)
        for g, e in zip((x.grad, w.grad), expected, strict=True):
            assert g.placements == e.placements and torch.equal(g._local_tensor, e._local_tensor)
    assert len(region.specializations) == 2, region.explain()


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"partitioner": "default"}], ids=str)
@pytest.mark.parametrize("f", [torch.sin, lambda x: x.sin() * 2], ids=["sin", "sin, times"])
def test_losses_that_send_replicated_tangents_to_shards(mesh, f, options) -> None:
    """The later backward needs the outer size, a symbol that no saved tensor carries."""
    region = st.compile(f, **options)
    for size in (8, 12, 6):
        for loss in (lambda out: out.sum(), lambda out: (out * out).mean()):
            x = whole(mesh, size, 4, placements=ROWS, grad=True)
            loss(f(x)).backward()
            want, x.grad = x.grad, None
            try:
                loss(region(x)).backward()
            except st.TangentError:  # another size than the trace takes: from then on it has a trace of its own
                loss(region(x)).backward()
            assert difference(seen(want), seen(x.grad)) is None


def test_differentiated_twice_with_sizes_that_change(mesh) -> None:
    def second(f, x, w):
        (g,) = torch.autograd.grad(f(x, w).sin().sum(), x, create_graph=True)
        return [g, *torch.autograd.grad(g.pow(2).sum(), [x, w])]

    region = st.compile(torch.matmul)
    for size in (8, 12, 16):
        x, w = whole(mesh, size, 4, placements=ROWS, grad=True), whole(mesh, 4, 4, seed=1, grad=True)
        pairs = zip(second(torch.matmul, x, w), second(region, x, w), strict=True)
        assert all(difference(seen(a), seen(b), 1e-6) is None for a, b in pairs)


def test_view_of_an_input_with_a_dynamic_size(mesh) -> None:
    def f(x):
        return x.view(-1, 2, 4)

    region = st.compile(f, dynamic=True)
    for size in (8, 16, 24):
        x = whole(mesh, size, 4, placements=ROWS, grad=True)
        want, got = f(x), region(x)
        assert got._base is x and difference(seen(want), seen(got)) is None
        grads = [torch.autograd.grad((out * out).sum(), x)[0] for out in (want, got)]
        assert difference(*map(seen, grads)) is None
        with torch.no_grad():
            region(x).mul_(3)
            assert torch.equal(x.to_local(), whole(mesh, size, 4, placements=ROWS).to_local() * 3)
    assert len(region.specializations) == 2, "one for each grad mode"


# ---------------------------------------------------------------------------------------------- guards
def test_equal_meshes_share_a_specialization(process_group) -> None:
    region = st.compile(column)
    for _ in range(3):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        region(whole(mesh, 4, 8), whole(mesh, 8, 8, placements=ROWS, grad=True))
    assert len(region.specializations) == 1, region.explain()


def test_another_mesh_recompiles(mesh, mesh_2d) -> None:
    region = st.compile(column)
    for other in (mesh, mesh_2d["tp"], mesh_2d["dp"]):
        got = region(whole(other, 4, 8), whole(other, 8, 8, placements=ROWS, grad=True))
        assert got.device_mesh == other
    assert len(region.specializations) == 3, region.explain()
    assert "args[0]: expected the context" in region.specializations[1].reason
    region(whole(mesh, 4, 8), whole(mesh, 8, 8, placements=ROWS, grad=True))
    assert len(region.specializations) == 3


def test_another_placement_recompiles(mesh) -> None:
    region = st.compile(column)
    for place, out in ((ROWS, (Shard(1),)), (REPLICATE, (Replicate(),)), (ROWS, (Shard(1),))):
        assert region(whole(mesh, 4, 8), whole(mesh, 8, 8, placements=place, grad=True)).placements == out
    assert len(region.specializations) == 2, region.explain()


@pytest.mark.skipif(VERSION < (2, 12), reason="this torch reads a tensor to take a part of a mesh")
def test_parts_of_a_mesh(mesh) -> None:
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x = DTensor.from_local(torch.ones(2, 4), grid["tp"], [Shard(0)], run_check=False)

    def function(x):
        local = x.to_local() * grid["dp"].size()
        return DTensor.from_local(local, grid["tp"], [Shard(0)], run_check=False)

    assert difference(seen(function(x)), seen(st.compile(function)(x))) is None
