"""Operations over a mesh, modes, nested wrappers, reports: on a fake process group of four."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from spmd import COLUMNS, REPLICATE, ROWS, check, column, values, whole
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor import zeros as dtensor_zeros
from torch.distributed.tensor.parallel import (
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

import subclass_trace as st


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


# ---------------------------------------------------------------------------------------------- the rest


def test_inference_and_no_grad(mesh) -> None:
    def make():
        x, w = whole(mesh, 4, 8), whole(mesh, 8, 8, placements=ROWS, grad=True)
        return (x, w), ()

    with torch.no_grad():
        check(column, make, backward=False)
    with torch.inference_mode():
        check(column, make, backward=False)


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
