"""On a fake process group of four: double backward, operations over a mesh, uneven shards, and what is guarded."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from spmd import COLUMNS, REPLICATE, ROWS, VERSION, column, difference, seen, values, whole
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, _redistribute, distribute_tensor
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

import subclass_trace as st

#: what the first backward may save of its own, sizes that the trace found equal, a local tensor taken out
AGAIN = {
    "exchanged": (lambda x, w, mesh: (x.redistribute(mesh, COLUMNS).pow(3) * w).sum(), {}),
    "local": (lambda x, w, mesh: (x * x).redistribute(mesh, REPLICATE).to_local().sin(), {"dynamic": True}),
    "both": (lambda x, w, mesh: x.redistribute(mesh, COLUMNS).pow(3).redistribute(mesh, ROWS), {"dynamic": True}),
}


def second(f, x, w):
    """First and second gradients."""
    out = f(x, w)
    first = torch.autograd.grad((out * out).sum(), (x, w), create_graph=True, allow_unused=True)
    loss = sum((g * g).sum() for g in first if g is not None)
    return [g for g in (*first, *torch.autograd.grad(loss, (x, w), allow_unused=True)) if g is not None]


@pytest.mark.parametrize("name", ["exchanged", "local", pytest.param("both", marks=pytest.mark.slow)])
def test_differentiated_twice(mesh, name) -> None:
    function, options = AGAIN[name]
    if name != "local" and not hasattr(_redistribute, "NestedRedistribute"):
        pytest.skip("the gradient of this torch's redistribute is a leaf: second derivatives miss a term in eager mode")

    region = st.compile(lambda x, w: function(x, w, mesh), **options)
    x, w = (whole(mesh, 8, 8, placements=ROWS, seed=k, grad=True) for k in range(2))
    pairs = zip(second(lambda x, w: function(x, w, mesh), x, w), second(region, x, w), strict=True)
    assert [d for a, b in pairs if (d := difference(seen(a), seen(b), 1e-4))] == []


def test_tangents_split_in_another_way_than_results_of_dynamic_sizes(mesh) -> None:
    """A local size of such a tangent is no size of the result: the symbol that the result's size is a multiple of."""

    def f(x, w):
        local = (x * w).to_local().sin()
        return DTensor.from_local(local, mesh, COLUMNS).redistribute(mesh, ROWS).pow(2)

    region = st.compile(f, dynamic=True)
    for rows, columns in ((12, 8), (8, 4)):
        x, w = (whole(mesh, rows, columns, placements=ROWS, seed=k, grad=True) for k in range(2))
        pairs = zip(second(f, x, w), second(region, x, w), strict=True)
        assert [d for a, b in pairs if (d := difference(seen(a), seen(b), 1e-4))] == []


def test_index_by_a_number_in_a_tensor_runs_eagerly(mesh) -> None:
    x, i = whole(mesh, 8, 8, placements=ROWS), torch.tensor(2)
    with pytest.warns(UserWarning, match="indexed by a number from inside a tensor"):
        found = st.compile(lambda x, i: x[:, i])(x, i)
    assert not difference(seen(found), seen(x[:, i]))


def test_index_by_a_dtensor_is_refused(mesh) -> None:
    with pytest.raises(st.DataDependentError):
        st.compile(lambda x, i: x[i])(whole(mesh, 8, 4), distribute_tensor(torch.tensor(2), mesh, REPLICATE))


# -------------------------------------------------------------- operations over a mesh, modes, nested wrappers, reports
def test_vocabulary_parallel_embedding(mesh) -> None:
    """Its mask is made of the tokens of each call: nothing of the first call's may stay."""
    torch.manual_seed(5)
    style = RowwiseParallel(input_layouts=Replicate())
    model = parallelize_module(nn.Embedding(16, 8), mesh, style, src_data_rank=None)
    region = st.compile(model)
    for tokens in ([[0, 1, 2, 3]], [[4, 5, 6, 7]], [[2, 5, 5, 15]]):
        found = []
        for f in (model, region):
            out = f(torch.tensor(tokens))
            out.square().sum().backward()
            found.append((out.detach(), model.weight.grad.to_local()))
            model.weight.grad = None
        for want, got in zip(*found, strict=True):
            assert torch.equal(want, got)
    assert len(region.specializations) == 1, region.explain()


def test_gradient_of_another_placement(mesh) -> None:
    """The backward is given a Partial gradient for a result that is replicated."""

    def run(f):
        x, w = whole(mesh, 4, 8, grad=True), whole(mesh, 8, 8, grad=True)
        out = f(x, w)
        out.backward(DTensor.from_local(values(4, 8, seed=3), mesh, [Partial()], run_check=False))
        return x.grad, w.grad

    for got, want in zip(run(st.compile(column)), run(column), strict=True):
        assert got.placements == want.placements
        assert torch.equal(got._local_tensor, want._local_tensor)


def test_report_names_the_local_tensor_and_the_mesh(mesh) -> None:
    region = st.compile(column)
    region(whole(mesh, 4, 8), whole(mesh, 8, 8, placements=ROWS, grad=True))
    text = region.specializations[0].report()
    assert "._local_tensor" in text and "DeviceMesh" in text and "DTensor" in text


def test_error_of_the_region_is_the_eager_one(mesh) -> None:
    x, w = whole(mesh, 4, 8), whole(mesh, 8, 4, grad=True)
    with pytest.raises(RuntimeError) as eager:
        column(x, w)
    local = w._local_tensor
    with pytest.raises(Exception, match=r"reduction dim|shapes") as compiled:
        st.compile(column)(x, w)
    assert str(eager.value).splitlines()[0][:20] in str(compiled.value)
    assert w._local_tensor is local


# ---------------------------------------- uneven shards, two-dimensional meshes, sizes that change, and what is guarded
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
@pytest.mark.sweep(every=4)
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


@pytest.mark.long
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
