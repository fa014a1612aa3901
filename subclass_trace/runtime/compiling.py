"""The programs of a specialization: two halves go through a back end; without a backward, ours runs what was recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.fx as fx

from ..backends import Backend, Compiled, Compiler, compile_with
from ..backends.eager import compile_eager
from ..backends.eager.blame import blame_of_compiled
from ..backends.eager.graph_code import Listing, compile_listing
from ..partition.half import Half
from ..plan import Plan


def program_as_recorded(half: Half, plan: Plan) -> tuple[Compiled, Plan] | None:
    """The program of a graph that writes to its inputs itself, as eager mode does, with what is left to do then; None where it
    has to be functional."""
    if torch.is_inference_mode_enabled() and any(n.target is torch.ops.aten.view.dtype for n in half.body):
        return None  # a view of another dtype is an inference tensor there: a write to it moves no version counter
    call: Compiled = compile_listing(Listing.of_half(half), name="forward").function
    plan = replace(plan, mutations=replace(plan.mutations, in_program=True))
    return call, plan


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


def backward_compiler(backend: Backend) -> Callable[[fx.GraphModule], Compiled]:
    """For backwards that are traced later."""
    return lambda graph: compile_half(backend, backend.backward, Half.of_module(graph), is_backward=True)
