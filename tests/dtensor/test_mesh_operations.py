"""Operations over a mesh, modes, nested wrappers, reports: on a fake process group of four."""

from __future__ import annotations

import pytest
import torch
from spmd import ROWS, column, values, whole
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

import subclass_trace as st


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
