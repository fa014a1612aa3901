"""Linear layers over a mesh, redistribution, local tensors and parameters that are written: on a fake process group of four,
eager against compiled, bit for bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from spmd import COLUMNS, REPLICATE, ROWS, check, collectives, difference, of_local, operations, seen, values, whole
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import subclass_trace as st

# ---------------------------------------------------------------------------------------------- linear layers
LINEAR = {
    "replicated": (REPLICATE, REPLICATE, (Replicate(),)),
    "column": (REPLICATE, ROWS, (Shard(1),)),
    "row": (COLUMNS, COLUMNS, (Partial(),)),
    "batch": (ROWS, REPLICATE, (Shard(0),)),
}


@pytest.mark.parametrize("kind", LINEAR)
def test_linear(mesh, kind) -> None:
    place_x, place_w, place_out = LINEAR[kind]

    def make():
        x, w = (
            whole(mesh, 8, 16, placements=place_x, grad=True),
            whole(mesh, 12, 16, placements=place_w, seed=1, grad=True),
        )
        return (x, w), (x, w)

    region = check(F.linear, make)
    (args, _) = make()
    assert region(*args).placements == place_out
    assert len(region.specializations) == 1
    assert collectives(region.specializations[0].graphs.forward) == []


def test_column_then_row_with_biases(mesh) -> None:
    def f(x, w1, b1, w2, b2):
        return F.linear(F.gelu(F.linear(x, w1, b1)), w2).redistribute(mesh, REPLICATE) + b2

    def make():
        x = whole(mesh, 4, 16, grad=True)
        w1, b1 = (
            whole(mesh, 32, 16, placements=ROWS, seed=1, grad=True),
            whole(mesh, 32, placements=ROWS, seed=2, grad=True),
        )
        w2, b2 = whole(mesh, 16, 32, placements=COLUMNS, seed=3, grad=True), whole(mesh, 16, seed=4, grad=True)
        return (x, w1, b1, w2, b2), (x, w1, b1, w2, b2)

    region = check(f, make)
    assert collectives(region.specializations[0].graphs.forward) == ["all_reduce"]


# ---------------------------------------------------------------------------------------------- redistribute
REDISTRIBUTE = {
    "rows to whole": (ROWS, REPLICATE, ["all_gather_into_tensor"]),
    "columns to whole": (COLUMNS, REPLICATE, ["all_gather_into_tensor"]),
    "partial to whole": ([Partial()], REPLICATE, ["all_reduce"]),
    "partial to rows": ([Partial()], ROWS, ["reduce_scatter_tensor"]),
    "partial average to whole": ([Partial("avg")], REPLICATE, ["all_reduce"]),
    "whole to rows": (REPLICATE, ROWS, []),
    "rows to rows": (ROWS, ROWS, []),
}


@pytest.mark.parametrize("kind", REDISTRIBUTE)
def test_redistribute_is_a_collective_in_the_graph(mesh, kind) -> None:
    before, after, expected = REDISTRIBUTE[kind]

    def make():
        x = of_local(mesh, 8, 8, placements=before)
        return (x,), (x,)

    region = check(lambda x: (x * 2).redistribute(mesh, after).sin(), make)
    forward = region.specializations[0].graphs.forward
    assert collectives(forward) == expected
    assert operations(forward).count("_c10d_functional.wait_tensor") == len(expected)


def test_rows_to_columns(mesh) -> None:
    def make():
        x = of_local(mesh, 2, 8, placements=ROWS)
        return (x,), (x,)

    region = check(lambda x: x.redistribute(mesh, COLUMNS) * 2, make)
    assert len(collectives(region.specializations[0].graphs.forward)) == 1


# ---------------------------------------------------------------------------------------------- local tensors
@pytest.mark.parametrize("placements", [None, [Shard(0)], [Partial()]])
def test_to_local(mesh, placements) -> None:
    def f(x):
        return x.to_local(grad_placements=placements).cos()

    def make():
        x = of_local(mesh, 4, 8, placements=ROWS if placements != [Partial()] else REPLICATE)
        return (x,), (x,)

    region = check(f, make)
    assert type(region(*make()[0])) is torch.Tensor


def test_from_local_inside_the_region(mesh) -> None:
    def f(x, w):
        return F.linear(DTensor.from_local(x, mesh, REPLICATE, run_check=False), w)

    def make():
        x, w = values(4, 8).requires_grad_(), whole(mesh, 8, 8, placements=ROWS, grad=True)
        return (x, w), (x, w)

    region = check(f, make)
    assert isinstance(region(*make()[0]), DTensor)


def test_results_of_all_kinds(mesh) -> None:
    """An input, a view of one, a dense tensor, a number, a placement."""

    def f(x):
        return x, x.t(), x.to_local() * 2, x.shape[0], x.placements[0], (x + 1, x.device_mesh.size())

    def make():
        x = whole(mesh, 8, 8, placements=ROWS, grad=True)
        return (x,), (x,)

    check(f, make, tolerance=1e-6)  # gradients of several results are added up in another order


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
