"""Operations that DTensor has no rule for: it follows a decomposition, on tensors of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

import subclass_trace as st

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "cauchy_": lambda x: x * x.detach().clone().cauchy_(),
    "geometric_": lambda x: x * x.detach().clone().geometric_(0.5),
    "deg2rad": lambda x: torch.deg2rad(x) * 2,
    "logit": lambda x: torch.special.logit(x, 0.1),
}


def _outcome(f: Callable[[Any], Any], mesh: Any, size: int, placement: Any) -> Any:
    torch.manual_seed(0)
    x = DTensor.from_local(torch.rand(size, 3), mesh, [placement], run_check=False).requires_grad_()
    try:
        out = f(x)
        out.sum().backward()
    except (NotImplementedError, st.UnsupportedError):
        return "refused"
    assert x.grad is not None
    return out.to_local().tolist(), out.placements, out.shape, x.grad.to_local().tolist(), torch.rand(1)


@pytest.mark.parametrize("placement", [Shard(0), Replicate()], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_as_in_eager(mesh: Any, name: str, placement: Any) -> None:
    """Also where nothing is in DTensor's caches, and with symbolic sizes."""
    region = st.compile(OPERATIONS[name])
    _clear_sharding_prop_cache()
    decompositions = getattr(DTensor._op_dispatcher.sharding_propagator, "decomp_strategy", None)
    if decompositions is not None:  # from torch 2.12 on
        decompositions._fake_meshes.clear()
    for size in (4, 5, 6):
        got = _outcome(region, mesh, size, placement)
        assert got == _outcome(OPERATIONS[name], mesh, size, placement)
    assert len(region.specializations) <= 2
