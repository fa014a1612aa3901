"""AsyncCollectiveTensor (a result that is still on its way) as input, output and tangent; optimizers; "SimpleFSDP"."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from spmd import check, difference, on_its_way, seen, values, whole
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import subclass_trace as st


# ---------------------------------------------------------------------------------------------- inputs and results
def test_as_an_input_or_as_what_it_becomes(mesh) -> None:
    """A caller may have waited or not: both are served, and each gives what eager gives."""
    region = st.compile(lambda x: x * 2)
    waiting = on_its_way(mesh, 2, 4)
    done = waiting.trigger_wait()
    for _ in range(2):
        for value in (waiting, done):
            assert difference(seen(value * 2), seen(region(value))) is None
    assert len(region.specializations) <= 2, region.explain()


def test_as_a_result(mesh) -> None:
    """Eager returns a value that is still on its way; the graph has waited for it."""

    def gather(x):
        return x.redistribute(placements=[Replicate()], async_op=True).to_local()

    found = []
    for f, kind in ((gather, AsyncCollectiveTensor), (st.compile(gather), torch.Tensor)):
        x = whole(mesh, 8, 4, placements=[Shard(0)], grad=True)
        out = f(x)
        assert type(out) is kind
        out = out * 2
        out.sum().backward()
        found.append([seen(out), seen(x.grad)])
    assert difference(*found) is None


def test_as_the_tangent_of_a_dense_result(mesh) -> None:
    def run(f):
        x, w = values(8, 4).requires_grad_(), values(4, 4, seed=1).requires_grad_()
        f(x, w).backward(on_its_way(mesh, 2, 4, seed=2))
        return [seen(x.grad), seen(w.grad)]

    def product(x, w):
        return (x @ w).sin()

    region = st.compile(product)
    for _ in range(2):
        found = difference(run(product), run(region))
        assert found is None, found


def test_inside_the_tangent_of_a_dtensor(mesh) -> None:
    def run(f):
        x, w = (whole(mesh, 8, 4, placements=[Replicate()], seed=k, grad=True) for k in (0, 1))
        local = on_its_way(mesh, 2, 8, seed=2)
        f(x, w).backward(DTensor.from_local(local, mesh, [Replicate()], run_check=False))
        return [seen(x.grad), seen(w.grad)]

    region = st.compile(F.linear)
    for _ in range(2):
        found = difference(run(F.linear), run(region))
        assert found is None, found


# ---------------------------------------------------------------------------------------------- a training step
@pytest.mark.parametrize("foreach", [False, True])
def test_a_step_of_adamw_as_a_region(mesh, foreach: bool) -> None:
    """Parameters, gradients and moments are DTensors that one region changes in place."""

    def make():
        parameters = [
            whole(mesh, 8, 4, placements=p, seed=s, grad=True) for s, p in enumerate(([Shard(0)], [Replicate()]))
        ]
        gradients = [whole(mesh, 8, 4, placements=p.placements, seed=9).detach() for p in parameters]
        moments = [[torch.zeros_like(p.detach()) for p in parameters] for _ in range(2)]
        return (parameters, gradients, *moments), ()

    def step(parameters, gradients, first, second):
        with torch.no_grad():
            if foreach:
                torch._foreach_lerp_(first, gradients, 0.1)
                torch._foreach_mul_(second, 0.99)
                torch._foreach_addcmul_(second, gradients, gradients, value=0.01)
                torch._foreach_addcdiv_(parameters, first, torch._foreach_add(torch._foreach_sqrt(second), 1e-8), -0.1)
                return
            for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
                m.lerp_(g, 0.1)
                v.mul_(0.99).addcmul_(g, g, value=0.01)
                p.addcdiv_(m, v.sqrt().add_(1e-8), value=-0.1)

    check(step, make, backward=False)


# ---------------------------------------------------------------------------------------------- "SimpleFSDP"
class Gathered(nn.Module):
    """A linear layer whose sharded weight is gathered in the forward, in bfloat16, and averaged over in the backward."""

    def __init__(self, mesh: DeviceMesh, width: int, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(whole(mesh, width, width, placements=[Shard(0)], seed=seed).detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.redistribute(
            placements=[Replicate()], forward_dtype=torch.bfloat16, backward_dtype=torch.float32
        ).to_local(grad_placements=[Partial("avg")])
        return F.linear(x, weight)


def test_gathered_weights_are_gathered_again_in_the_backward(mesh) -> None:
    """With a checkpoint the whole weights are not kept: that is what FSDP's resharding does."""
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(Gathered(mesh, 8, 1), nn.GELU(), Gathered(mesh, 8, 2))

    def make():
        model.zero_grad()
        return (model, values(4, 8).bfloat16()), list(model.parameters())

    region = check(lambda model, x: checkpoint(model, x, use_reentrant=False), make)
    backward = [str(n.target) for n in region.specializations[0].graphs.backward.graph.nodes]
    assert "_c10d_functional.all_gather_into_tensor.default" in backward
    assert "_c10d_functional.reduce_scatter_tensor.default" in backward
    assert all(p.grad.dtype == torch.float32 and p.grad.placements == (Shard(0),) for p in model.parameters())
