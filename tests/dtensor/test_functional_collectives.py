"""Functional collectives: other ranks wait for them, whatever this one does with the result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import subclass_trace as st

Tensor = torch.Tensor
#: torch 2.13 gives it another name, and a warning
_gather: Any = getattr(fc, "all_gather_single_autograd", None) or fc.all_gather_tensor_autograd


def unread(x: Tensor) -> Tensor:
    fc.all_reduce(x.sum(), "sum", dist.group.WORLD)
    return x * 2


def read_by_what_is_not(x: Tensor) -> Tensor:
    (fc.all_reduce(x.sum(), "sum", dist.group.WORLD) * 3).sin()
    return x * 2


def unread_beside_a_write(x: Tensor) -> Tensor:
    y = x * 2
    fc.all_reduce(x.sum(), "sum", dist.group.WORLD)
    y.add_(1)
    return y


@pytest.mark.parametrize("options", [{}, {"passes": ["cleanup"]}, {"partitioner": "min_cut"}], ids=str)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [unread, read_by_what_is_not, unread_beside_a_write])
def test_a_collective_that_nobody_reads_runs(
    function: Callable[[Tensor], Tensor], grad: bool, options: dict[str, Any], process_group: Any
) -> None:
    region = st.compile(function, frontend="trace", **options)
    x = torch.ones(3, requires_grad=grad)
    y = region(x)
    if grad:
        y.sum().backward()
    ran = [str(op) for op in _operations(lambda: region(x))]
    assert ran.count("_c10d_functional.all_reduce.default") == 1


def _operations(call: Callable[[], Any]) -> list[Any]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    names = [e.name for e in profile.events() if e.name.startswith("_c10d_functional::")]
    return [f"{name.replace('::', '.')}.default" for name in names]


def test_a_gather_in_a_checkpoint_is_done_again_in_a_whole_step(process_group: Any) -> None:
    """Else all gathered weights live from the forward to the backward."""
    weights = [torch.randn(1, 4, requires_grad=True) for _ in range(3)]

    def block(x: Tensor, w: Tensor) -> Tensor:
        return (x @ _gather(w, 0, dist.group.WORLD)).relu()

    def step(x: Tensor) -> Tensor:
        for w in weights:
            x = checkpoint(block, x, w, use_reentrant=False)
        x.sum().backward()
        for w in weights:
            w.grad = None
        return x.detach()

    region, found = st.compile(step, frontend="trace"), []
    for run in (step, region, region):
        found.append(
            _operations(lambda run=run: run(torch.ones(2, 4))).count("_c10d_functional.all_gather_into_tensor.default")
        )
    assert found[0] == 6 and found[2] >= 5


@pytest.mark.parametrize("saved", ["all_reduce", "wait_tensor"])
def test_a_policy_that_saves_a_collective_saves_what_it_gives(saved: str, process_group: Any) -> None:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if saved in str(op) else CheckpointPolicy.PREFER_RECOMPUTE

    def block(x: Tensor) -> Tensor:
        return fc.all_reduce(x.exp(), "sum", dist.group.WORLD).sin()

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    region = st.compile(lambda x: checkpoint(block, x, use_reentrant=False, context_fn=contexts), frontend="trace")
    x = torch.ones(3, requires_grad=True)
    region(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp() * x.detach().exp().cos())
    backward = _operations(lambda: region(x).sum().backward())
    assert backward.count("_c10d_functional.all_reduce.default") <= 2
