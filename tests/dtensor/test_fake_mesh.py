"""DTensor regions on a fake process group of four, eager against compiled, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from spmd import check, collectives, difference, operations, seen, values
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor import zeros as dtensor_zeros
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

import subclass_trace as st

REPLICATE, ROWS, COLUMNS = [Replicate()], [Shard(0)], [Shard(1)]


def whole(mesh: DeviceMesh, *shape: int, placements: Any = REPLICATE, seed: int = 0, grad: bool = False) -> DTensor:
    """A DTensor made of one whole tensor, the same on all ranks."""
    return distribute_tensor(values(*shape, seed=seed), mesh, placements, src_data_rank=None).requires_grad_(grad)


def of_local(mesh: DeviceMesh, *shape: int, placements: Any, seed: int = 0) -> DTensor:
    """A DTensor made of this rank's part."""
    return DTensor.from_local(values(*shape, seed=seed), mesh, placements, run_check=False).requires_grad_()


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


def test_full_tensor(mesh) -> None:
    def make():
        x = of_local(mesh, 2, 8, placements=ROWS)
        return (x,), (x,)

    region = check(lambda x: x.full_tensor().sin(), make)
    assert collectives(region.specializations[0].graphs.forward) == ["all_gather_into_tensor"]


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


def test_reading_leaves_the_parameter_alone(mesh) -> None:
    w, x = whole(mesh, 8, 8, placements=ROWS, grad=True), whole(mesh, 4, 8)
    local = w._local_tensor
    region = st.compile(F.linear)
    region(x, w).sum().backward()
    assert w._local_tensor is local
    assert region.specializations[0].plan.mutations == ()


def test_sgd_step_as_a_region(mesh) -> None:
    def step(parameters, gradients):
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p.sub_(g * 0.1)

    def make():
        ws = [whole(mesh, 8, 4, placements=p, seed=k, grad=True) for k, p in enumerate((ROWS, COLUMNS, REPLICATE))]
        gs = [whole(mesh, 8, 4, placements=p, seed=9 + k) for k, p in enumerate((ROWS, COLUMNS, REPLICATE))]
        return (ws, gs), ws

    check(step, make, backward=False)


# ---------------------------------------------------------------------------------------------- modules
class Attention(nn.Module):
    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        parts = (p(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for p in (self.query, self.key, self.value))
        return self.out(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, width // 4)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Transformer(nn.Module):
    def __init__(self, width: int = 16, layers: int = 2, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, width)
        self.register_buffer("scale", torch.full((1,), 1.5))
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 20, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x)


PLAN = {
    **{f"blocks.*.attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
    "blocks.*.attention.out": RowwiseParallel(),
    "blocks.*.up": ColwiseParallel(),
    "blocks.*.down": RowwiseParallel(),
}


def transformer(mesh: DeviceMesh, plan: Any, **options: Any) -> Transformer:
    torch.manual_seed(5)
    return parallelize_module(Transformer(**options), mesh, plan, src_data_rank=None)


def run_model(model, tokens):
    return model(tokens)


def test_tensor_parallel_transformer(mesh) -> None:
    plan = {**PLAN, "head": ColwiseParallel(output_layouts=Replicate())}

    def make():
        model = transformer(mesh, plan)
        return (model, torch.arange(24).reshape(2, 12) % 20), list(model.parameters())

    # Modules are guarded by identity, so that each call here would make a specialization.
    model = make()[0][0]

    def same_model():
        model.zero_grad()
        return (model, torch.arange(24).reshape(2, 12) % 20), list(model.parameters())

    region = check(run_model, same_model)
    (only,) = region.specializations
    paths = {str(row.path) for row in only.plan.inputs}
    names = [*(n for n, _ in model.named_parameters()), *(n for n, _ in model.named_buffers())]
    assert len(paths) == len(names) + 1
    assert "args[0].blocks[1].attention.out.weight" in paths and "args[0].scale" in paths
    assert only.plan.mutations == ()
    # Each of the two row-wise layers of each block adds up over the ranks, and the head is gathered.
    assert collectives(only.graphs.forward) == ["all_reduce"] * 4 + ["all_gather_into_tensor"]


def test_sequence_parallel_block(mesh) -> None:
    plan = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "attention.out": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    torch.manual_seed(5)
    model = parallelize_module(Block(16), mesh, plan, src_data_rank=None)

    def make():
        model.zero_grad()
        x = whole(mesh, 2, 8, 16, placements=[Shard(1)], grad=True)
        return (model, x), [x, *model.parameters()]

    region = check(run_model, make)
    found = collectives(region.specializations[0].graphs.forward)
    assert set(found) == {"all_gather_into_tensor", "reduce_scatter_tensor"}


def test_tied_parameters(mesh) -> None:
    model = transformer(mesh, PLAN, tied=True)
    tied = nn.Parameter(distribute_tensor(model.head.weight.detach(), mesh, REPLICATE, src_data_rank=None))
    model.embedding.weight = model.head.weight = tied

    def f(model, tokens):
        tokens = DTensor.from_local(tokens, mesh, REPLICATE, run_check=False)
        x = model.embedding(tokens)
        return model.head(x)

    def make():
        model.zero_grad()
        return (model, torch.arange(24).reshape(2, 12) % 20), [model.head.weight]

    region = check(f, make)
    paths = [str(row.path) for row in region.specializations[0].plan.inputs]
    assert [p for p in paths if p.endswith(("head.weight", "embedding.weight"))] == ["args[0].embedding.weight"]
    assert model.head.weight is tied and model.embedding.weight is tied


def test_module_as_the_region(mesh) -> None:
    model = transformer(mesh, PLAN)
    tokens = torch.arange(24).reshape(2, 12) % 20
    region = st.compile(model)
    want = model(tokens)
    got = region(tokens)
    assert torch.equal(want, got)
    assert str(region.specializations[0].plan.inputs[1].path).startswith("self.")


# ---------------------------------------------------------------------------------------------- shapes
@pytest.mark.parametrize("size", [10, 6, 3])
def test_uneven_shards(mesh, size) -> None:
    """10 over 4 ranks is 3, 3, 3, 1; with 3 the last rank has none."""

    def make():
        x, w = whole(mesh, 5, 8, grad=True), whole(mesh, size, 8, placements=ROWS, seed=1, grad=True)
        return (x, w), (x, w)

    region = check(lambda x, w: F.linear(x, w).redistribute(mesh, REPLICATE).sin(), make)
    assert region(*make()[0]).shape == (5, size)


@pytest.mark.parametrize("size", [10, 3])
def test_uneven_reduce_scatter(mesh, size) -> None:
    def make():
        x = of_local(mesh, size, 4, placements=[Partial()])
        return (x,), (x,)

    check(lambda x: x.redistribute(mesh, ROWS) * 2, make)


def test_two_dimensional_mesh(mesh_2d) -> None:
    def f(x, w1, w2):
        return F.linear(F.relu(F.linear(x, w1)), w2).redistribute(placements=[Shard(0), Replicate()])

    def make():
        x = whole(mesh_2d, 8, 16, placements=[Shard(0), Replicate()], grad=True)
        w1 = whole(mesh_2d, 12, 16, placements=[Replicate(), Shard(0)], seed=1, grad=True)
        w2 = whole(mesh_2d, 16, 12, placements=[Replicate(), Shard(1)], seed=2, grad=True)
        return (x, w1, w2), (x, w1, w2)

    region = check(f, make)
    assert collectives(region.specializations[0].graphs.forward) == ["all_reduce"]
    (x, w1, w2), _ = make()
    region(x, w1, w2).sum().backward()
    assert w1.grad.placements[1] == Shard(0) and isinstance(w1.grad.placements[0], Partial)


def test_fully_sharded_weights_on_both_dimensions(mesh_2d) -> None:
    """The recipe of "SimpleFSDP": weights are gathered in the region."""

    def f(x, w):
        return F.linear(x, w.redistribute(placements=[Replicate(), Shard(0)]))

    def make():
        x = whole(mesh_2d, 8, 16, placements=[Shard(0), Replicate()], grad=True)
        w = whole(mesh_2d, 12, 16, placements=[Shard(1), Shard(0)], seed=1, grad=True)
        return (x, w), (x, w)

    region = check(f, make)
    assert collectives(region.specializations[0].graphs.forward) == ["all_gather_into_tensor"]


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


def test_sharded_batch_sizes_that_change(mesh) -> None:
    """The outer size is four times the inner one; both are symbols."""

    def f(x, w):
        return (F.linear(x, w) * x.shape[0]).relu()

    region = st.compile(f)
    for size in (8, 16, 24, 32):
        x, w = whole(mesh, size, 16, placements=ROWS), whole(mesh, 12, 16, seed=1, grad=True)
        want, got = f(x, w), region(x, w)
        assert got.placements == want.placements and got.shape == want.shape
        assert torch.equal(got._local_tensor, want._local_tensor)
    assert len(region.specializations) == 2, region.explain()


@pytest.mark.parametrize(
    "options", [{}, {"dynamic": True}, {"partitioner": "default"}, {"retain_trace": False}], ids=str
)
@pytest.mark.parametrize("f", [torch.sin, lambda x: x.sin() * 2], ids=["sin", "sin, times"])
def test_losses_that_send_replicated_tangents_to_shards(mesh, f, options) -> None:
    """The later backward needs the outer size, a symbol that no saved tensor carries."""
    region = st.compile(f, **options)
    for size in (8, 12, 6):
        for loss in (lambda out: out.sum(), lambda out: (out * out).mean()):
            x = whole(mesh, size, 4, placements=ROWS, grad=True)
            loss(f(x)).backward()
            want, x.grad = x.grad, None
            loss(region(x)).backward()
            assert difference(seen(want), seen(x.grad)) is None


def test_tangents_of_other_placements_for_a_module(mesh) -> None:
    layer = distribute_module(nn.Linear(4, 4), mesh)
    region = st.compile(layer)
    for size in (8, 12, 16):
        x, parameters = whole(mesh, size, 4, placements=ROWS, grad=True), list(layer.parameters())
        want = torch.autograd.grad(layer(x).sum(), [x, *parameters])
        got = torch.autograd.grad(region(x).sum(), [x, *parameters])
        assert all(difference(seen(w), seen(g), 1e-6) is None for w, g in zip(want, got, strict=True))


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
def _column(x, w):
    return F.linear(x, w)


def test_equal_meshes_share_a_specialization(process_group) -> None:
    region = st.compile(_column)
    for _ in range(3):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        region(whole(mesh, 4, 8), whole(mesh, 8, 8, placements=ROWS, grad=True))
    assert len(region.specializations) == 1, region.explain()


def test_another_mesh_recompiles(mesh, mesh_2d) -> None:
    region = st.compile(_column)
    for other in (mesh, mesh_2d["tp"], mesh_2d["dp"]):
        got = region(whole(other, 4, 8), whole(other, 8, 8, placements=ROWS, grad=True))
        assert got.device_mesh == other
    assert len(region.specializations) == 3, region.explain()
    assert "device_mesh" in region.specializations[1].reason
    region(whole(mesh, 4, 8), whole(mesh, 8, 8, placements=ROWS, grad=True))
    assert len(region.specializations) == 3


def test_another_placement_recompiles(mesh) -> None:
    region = st.compile(_column)
    for place, out in ((ROWS, (Shard(1),)), (REPLICATE, (Replicate(),)), (ROWS, (Shard(1),))):
        assert region(whole(mesh, 4, 8), whole(mesh, 8, 8, placements=place, grad=True)).placements == out
    assert len(region.specializations) == 2, region.explain()


def test_dense_in_place_of_a_dtensor_recompiles(mesh) -> None:
    region = st.compile(_column)
    region(whole(mesh, 4, 8), whole(mesh, 8, 8, grad=True))
    assert type(region(values(4, 8), values(8, 8))) is torch.Tensor
    assert len(region.specializations) == 2


def test_updating_parameters_does_not_recompile(mesh) -> None:
    torch.manual_seed(5)
    model = parallelize_module(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)),
        mesh,
        {"0": ColwiseParallel(), "2": RowwiseParallel()},
        src_data_rank=None,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    region = st.compile(run_model)
    for _ in range(3):
        region(model, values(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(region.specializations) == 1, region.explain()


# ---------------------------------------------------------------------------------------------- operations
def _with_loss_parallel(x):
    with loss_parallel():
        return F.cross_entropy(
            x.redistribute(placements=COLUMNS), DTensor.from_local(torch.arange(8), x.device_mesh, REPLICATE)
        )


OPERATIONS = {
    "softmax over a split dimension": lambda x: F.softmax(x.redistribute(placements=COLUMNS), -1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "sum": lambda x: x.sum(),
    "mean, gathered": lambda x: x.mean().full_tensor(),
    "norm": lambda x: torch.linalg.vector_norm(x),
    "view and transpose": lambda x: x.view(4, 2, 8).transpose(0, 1),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "stack": lambda x: torch.stack([x, x * 2]),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "zeros made in the region": lambda x: x + dtensor_zeros((8, 8), device_mesh=x.device_mesh, placements=ROWS),
    "two casts": lambda x: x.to(torch.bfloat16).float(),
    "in place on a value": lambda x: (x * 1).relu_(),
    "value and its detached self": lambda x: (x * 2, x.detach()),
    "loss_parallel": _with_loss_parallel,
    "asynchronous redistribute": lambda x: x.redistribute(placements=REPLICATE, async_op=True).sin(),
    "checkpoint": lambda x: checkpoint(lambda y: (y * 2).sin().cos(), x, use_reentrant=False),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(mesh, name) -> None:
    def make():
        x = whole(mesh, 8, 8, placements=ROWS, grad=True)
        return (x,), (x,)

    check(OPERATIONS[name], make)


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


@pytest.mark.parametrize("name", ["chunk", "unbind"])
def test_all_parts_of_a_split_are_results(mesh, name) -> None:
    def make():
        x = whole(mesh, 8, 2, placements=ROWS, grad=True)
        return (x,), (x,)

    check({"chunk": lambda x: x.chunk(2, 1), "unbind": lambda x: x.unbind(1)}[name], make)


# ---------------------------------------------------------------------------------------------- the rest
def test_wrapper_inside_a_dtensor(mesh) -> None:
    from subclass_trace.zoo import TwoTensor

    def make():
        x = DTensor.from_local(
            TwoTensor(values(2, 8), values(2, 8, seed=1)), mesh, ROWS, run_check=False
        ).requires_grad_()
        return (x,), (x,)

    region = check(lambda x: (x * 2).sin(), make)
    assert region.specializations[0].plan.leaf_count == 2


def test_inference_and_no_grad(mesh) -> None:
    def make():
        x, w = whole(mesh, 4, 8), whole(mesh, 8, 8, placements=ROWS, grad=True)
        return (x, w), ()

    with torch.no_grad():
        check(_column, make, backward=False)
    with torch.inference_mode():
        check(_column, make, backward=False)


def test_autocast(mesh) -> None:
    def f(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(x, w)

    def make():
        x, w = whole(mesh, 4, 8, grad=True), whole(mesh, 8, 8, placements=ROWS, grad=True)
        return (x, w), (x, w)

    region = check(f, make)
    assert region(*make()[0]).dtype == torch.bfloat16


def test_gradient_of_another_placement(mesh) -> None:
    """The backward is given a Partial gradient for a result that is replicated."""

    def run(f):
        x, w = whole(mesh, 4, 8, grad=True), whole(mesh, 8, 8, grad=True)
        out = f(x, w)
        out.backward(DTensor.from_local(values(4, 8, seed=3), mesh, [Partial()], run_check=False))
        return x.grad, w.grad

    for got, want in zip(run(st.compile(_column)), run(_column), strict=True):
        assert got.placements == want.placements
        assert torch.equal(got._local_tensor, want._local_tensor)


def test_report_names_the_local_tensor_and_the_mesh(mesh) -> None:
    region = st.compile(_column)
    region(whole(mesh, 4, 8), whole(mesh, 8, 8, placements=ROWS, grad=True))
    text = region.specializations[0].report()
    assert "._local_tensor" in text and "DeviceMesh" in text and "DTensor" in text


def test_error_of_the_region_is_the_eager_one(mesh) -> None:
    x, w = whole(mesh, 4, 8), whole(mesh, 8, 4, grad=True)
    with pytest.raises(RuntimeError) as eager:
        _column(x, w)
    local = w._local_tensor
    with pytest.raises(Exception, match=r"reduction dim|shapes") as compiled:
        st.compile(_column)(x, w)
    assert str(eager.value).splitlines()[0][:20] in str(compiled.value)
    assert w._local_tensor is local


#: what the first backward may save of its own, sizes that the trace found equal, a local tensor taken out
AGAIN = {
    "exchanged": (lambda x, w, mesh: (x.redistribute(mesh, COLUMNS).pow(3) * w).sum(), {}),
    "local": (lambda x, w, mesh: (x * x).redistribute(mesh, REPLICATE).to_local().sin(), {"dynamic": True}),
    "both": (lambda x, w, mesh: x.redistribute(mesh, COLUMNS).pow(3).redistribute(mesh, ROWS), {"dynamic": True}),
}


@pytest.mark.parametrize("name", ["exchanged", "local", pytest.param("both", marks=pytest.mark.slow)])
def test_differentiated_twice_without_a_retained_trace(mesh, name) -> None:
    function, options = AGAIN[name]

    def second(f, x, w):
        out = f(x, w)
        first = torch.autograd.grad((out * out).sum(), (x, w), create_graph=True, allow_unused=True)
        loss = sum((g * g).sum() for g in first if g is not None)
        return [g for g in (*first, *torch.autograd.grad(loss, (x, w), allow_unused=True)) if g is not None]

    region = st.compile(lambda x, w: function(x, w, mesh), retain_trace=False, **options)
    x, w = (whole(mesh, 8, 8, placements=ROWS, seed=k, grad=True) for k in range(2))
    pairs = zip(second(lambda x, w: function(x, w, mesh), x, w), second(region, x, w), strict=True)
    assert [d for a, b in pairs if (d := difference(seen(a), seen(b), 1e-4))] == []


@pytest.mark.parametrize("placements", [REPLICATE, ROWS, COLUMNS], ids=str)
def test_index_by_a_number_in_a_tensor(mesh, placements) -> None:
    def f(x, i):
        return x[i], x[:, i], x.narrow(0, i, 2)

    region = st.compile(f)
    for k in (2, -3, 0):
        x, i = whole(mesh, 8, 8, placements=placements), torch.tensor(k)
        assert [d for a, b in zip(f(x, i), region(x, i), strict=True) if (d := difference(seen(a), seen(b)))] == []
    assert len(region.specializations) == 1
    with pytest.raises(IndexError):
        region(x, torch.tensor(8))


def test_index_by_a_dtensor_is_refused(mesh) -> None:
    with pytest.raises(st.DataDependentError):
        st.compile(lambda x, i: x[i])(whole(mesh, 8, 4), distribute_tensor(torch.tensor(2), mesh, REPLICATE))
