"""As ``partition_fn`` below Dynamo: checkpoint tags, selective policies, static and dynamic sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from subclass_trace.partition.min_cut import MinCut

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
aten = torch.ops.aten


def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return (
        CheckpointPolicy.MUST_SAVE if op in (aten.mm.default, aten.addmm.default) else CheckpointPolicy.PREFER_RECOMPUTE
    )


def block() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)
    )


def chain(blocks: Any, x: torch.Tensor, **options: Any) -> torch.Tensor:
    return functools.reduce(lambda y, b: checkpoint(b, y, use_reentrant=False, **options), blocks, x).sum()


CASES: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "plain": lambda blocks, x: blocks(x).sum(),
    "checkpoint": lambda blocks, x: sum(checkpoint(b, x, use_reentrant=False).sum() for b in blocks),
    "chain": chain,
    "selective": lambda blocks, x: chain(
        blocks, x, context_fn=functools.partial(create_selective_checkpoint_contexts, policy)
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_as_the_partitioner_of_aot_autograd(case: Any, dynamic: bool) -> None:
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    torch.manual_seed(0)
    blocks = torch.nn.Sequential(*[block() for _ in range(3)])
    nop = lambda graph, _: graph
    backend = aot_autograd(fw_compiler=nop, bw_compiler=nop, partition_fn=MinCut())
    compiled = torch.compile(functools.partial(case, blocks), backend=backend, dynamic=dynamic)
    for rows in (4, 7) if dynamic else (4,):
        grads = []
        for call in (functools.partial(case, blocks), compiled):
            x = torch.linspace(-1, 1, rows * 16).view(rows, 16).requires_grad_()
            call(x).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)
