"""The programs of a specialization: two halves go through a back end; ours writes to inputs itself where it can."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import torch
import torch.fx as fx

from .. import verify
from ..backends import Backend, Compiled, Compiler, compile_with
from ..backends.eager import compile_eager
from ..partition.half import Half
from ..partition.packing import Packing, unpack_inputs
from ..plan import Plan
from .blame import blame_of_compiled
from .delivered import delivered_by_program, targets_of
from .graph_code import Listing, compile_listing


def forward_program(
    backend: Backend, compiler: Compiler, half: Half, plan: Plan, inference_leaves: Collection[int]
) -> tuple[Compiled, Plan]:
    """Our own back end writes to the inputs itself where it can; the plan says what is left to do.

    ``inference_leaves``: numbers of the leaves that are inference tensors.
    """
    inference = set() if torch.is_inference_mode_enabled() else set(inference_leaves)
    targets = targets_of(plan, inference) if compiler is compile_eager and not _writes_unseen(half) else {}
    if not targets:
        return compile_half(backend, compiler, half), plan
    listing = Listing.of_half(half) if half.is_plain else Listing.of_module(half.module)
    boxed = compile_listing(listing, name="forward", targets=targets)
    call: Compiled = boxed.function
    inputs = {place for place, number in targets.items() if number in boxed.delivered}
    mutations = delivered_by_program(plan, boxed.delivered)
    plan = replace(plan, mutations=mutations, detach_values=plan.detach_values | inputs)
    if verify.ENABLED:
        verify.verify_plan(plan)
    return call, plan


def _writes_unseen(half: Half) -> bool:
    """In inference mode, a view of another dtype is an inference tensor: a write to it moves no version counter."""
    return torch.is_inference_mode_enabled() and any(n.target is torch.ops.aten.view.dtype for n in half.body)


def compile_half(backend: Backend, compiler: Compiler, half: Half, is_backward: bool = False) -> Compiled:
    """Our own back end reads the list of nodes; any other gets a graph module."""
    name = "backward" if is_backward else "forward"
    if compiler is compile_eager and half.is_plain:
        return compile_listing(Listing.of_half(half), name=name).function
    paths = {n.name: n.meta["path"] for n in half.inputs if "path" in n.meta}
    explain = blame_of_compiled(
        half.module.graph.nodes, name, paths
    )  # before the compiler, which may rewrite the graph
    return compile_with(
        compiler, half.module, half.examples, is_backward=is_backward, name=backend.name, explain=explain
    )


def backward_compiler(
    backend: Backend, packed: Mapping[str, Packing] | None = None
) -> Callable[[fx.GraphModule], Compiled]:
    """For backwards that are traced later: they take what is saved, packed as it is."""

    def compile_backward(graph: fx.GraphModule) -> Compiled:
        if packed:
            unpack_inputs(graph, packed)
        return compile_half(backend, backend.backward, Half.of_module(graph), is_backward=True)

    return compile_backward
