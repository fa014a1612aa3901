"""Collectives that write to their arguments, as each rank of `ranks` checks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from spmd import values
from torch.distributed.device_mesh import DeviceMesh

import subclass_trace as st

#: torch 2.13 gives them other names, and a warning
GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def functions(world: int, rank: int) -> dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]]:
    """Functions with collectives that write to their arguments, and whether what they take may require grad."""

    def reduced(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        square = y * y
        dist.all_reduce(y)
        return square * y * x

    def largest(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x, dist.ReduceOp.MAX)
        return x + 1

    def sent(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        dist.broadcast(y, src=world - 1)
        return y * x

    def gathered(x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x)
        whole = x.new_empty(world * x.shape[0], x.shape[1])
        GATHER(whole, x)
        return torch.cat(parts) * whole

    def scattered(x: torch.Tensor) -> torch.Tensor:
        part, other = x.new_empty(x.shape[0] // world, x.shape[1]), torch.empty_like(x)
        SCATTER(part, x)
        dist.reduce_scatter(other, [x, x * 2][:world])
        return part.sum() + other

    def exchanged(x: torch.Tensor) -> torch.Tensor:
        a, b = torch.empty_like(x), torch.empty_like(x)
        dist.all_to_all_single(a, x)
        sizes = [4] if world == 1 else [1, 3] if rank == 0 else [3, 1]
        dist.all_to_all_single(b, x, sizes, sizes)
        return a * b

    def of_scalars(x: torch.Tensor) -> torch.Tensor:
        total, least = x.sum(), x.min()
        dist.all_reduce(total)
        dist.broadcast(least, src=world - 1)
        means = [torch.empty(()) for _ in range(world)]
        dist.all_gather(means, x.mean())
        return torch.stack([total, least, *means])

    class Copied(torch.autograd.Function):
        """What Megatron's layers begin with."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            g = g.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(g)
            return g

    def summed(g: torch.Tensor) -> torch.Tensor:
        g = g * 1
        dist.all_reduce(g)
        return g

    def in_backwards(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = Copied.apply(x.sin())
        z = y * x
        if z.requires_grad:
            z.register_hook(summed)
        return z.exp()

    taking_grad = {f.__name__: (f, True) for f in (reduced, sent, in_backwards)}
    return taking_grad | {f.__name__: (f, False) for f in (largest, gathered, scattered, exchanged, of_scalars)}


def collectives_in_place(mesh: DeviceMesh) -> None:
    rank = dist.get_rank()
    for f, takes_grad in functions(mesh.size(), rank).values():
        region = st.compile(f, frontend="trace")
        for k in range(4):
            grad = takes_grad and k % 2 == 1
            inputs = [values(4, 3, seed=10 * rank + k).requires_grad_(grad) for _ in range(2)]
            expected, got = f(inputs[0]), region(inputs[1])
            assert torch.equal(expected, got) and torch.equal(*inputs) and inputs[0]._version == inputs[1]._version
            if grad:
                a, b = (
                    torch.autograd.grad(y.square().sum(), x)[0] for x, y in zip(inputs, (expected, got), strict=True)
                )
                assert torch.equal(a, b)
        assert len(region.specializations) == 1 + takes_grad, f


def groups_of_collectives_in_place(mesh: DeviceMesh) -> None:
    def f(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        y = x * 1
        dist.all_reduce(y, group=group)
        return y

    alone = [dist.new_group([rank]) for rank in range(mesh.size())][dist.get_rank()]
    region = st.compile(f, frontend="trace")
    for group, count in ((None, mesh.size()), (alone, 1), (mesh.get_group(), mesh.size()), (alone, 1)):
        assert region(torch.ones(2), group).tolist() == [count, count]
    try:
        st.compile(lambda x: dist.all_reduce(x, async_op=True).wait(), frontend="trace")(torch.ones(2))
        raise AssertionError("a collective that is not waited for at once was traced")
    except st.errors.UnsupportedError as error:
        assert "collective in place" in error.what, error
