"""``loss_parallel`` and ``implicit_replication`` around a call, inside of a region, around its backward: as in eager."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from spmd import COLUMNS, difference, of_local, seen, whole
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import loss_parallel

import subclass_trace as st


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
