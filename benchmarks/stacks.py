"""The stacks that are compared: each makes a compiled callable of a function, and runs its graphs
as eager kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import (
    aot_function,
    default_partition,
    min_cut_rematerialization_partition,
    nop,
)
from torch._subclasses.fake_tensor import FakeTensorMode

import subclass_trace as st
from subclass_trace.backends.eager import bindings

Function = Callable[..., Any]
_PARTITIONERS = {"min_cut": min_cut_rematerialization_partition, "default": default_partition}


def ours(
    function: Function,
    partitioner: str = "min_cut",
    *,
    dynamic: bool = False,
    budget: float | None = None,
) -> st.Region:
    """This package with its own back end."""
    return st.compile(
        function,
        backend="eager",
        partitioner=partitioner,
        dynamic=dynamic or None,
        activation_memory_budget=budget,
    )


def aot(function: Function, partitioner: str = "min_cut", *, dynamic: bool = False) -> Function:
    """``functorch.compile.aot_function`` with the compiler that does nothing, and the same
    partitioner."""
    compiled: Function = aot_function(
        function, nop, nop, partition_fn=_PARTITIONERS[partitioner], dynamic=dynamic
    )
    return compiled


def dynamo(function: Function) -> Function:
    """``torch.compile`` with the back end that does nothing; its partitioner is min_cut."""
    compiled: Function = torch.compile(function, backend="aot_eager")
    return compiled


def forget() -> None:
    """Empty the caches that a first call fills, torch's and ours: the next one finds what a new
    process would."""
    torch._dynamo.reset()
    FakeTensorMode.cache_clear()
    bindings._cache.clear()
    if "torch.distributed.tensor" in sys.modules:
        # Also needed for aot_function to work at all: it fails on DTensors when their operations
        # ran before.
        from torch.distributed.tensor import DTensor

        DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()  # type: ignore[no-untyped-call]
        getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", lambda: None)()
