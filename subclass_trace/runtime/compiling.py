"""The programs of a specialization: two halves go through a back end; without a backward, ours runs what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import torch
import torch.fx as fx

from ..backends import Backend, Compiled, Compiler, compile_with
from ..backends.eager import compile_eager, graph_code
from ..partition.half import Half
from ..plan import Plan
from .delivered import delivered_by_program, targets_of, version_moves


def program_as_recorded(half: Half, plan: Plan, inference_leaves: Collection[int]) -> tuple[Compiled, Plan] | None:
    """The program of a graph that writes to its inputs itself, with what is left to do; None where it has to be functional:
    more than data changes, or what is written is there for another sake as well.

    Args:
        inference_leaves: numbers of the leaves that are inference tensors, which no operation outside of inference mode may
            write.
    """
    inference = torch.is_inference_mode_enabled()
    targets = targets_of(plan, () if inference else inference_leaves)
    if targets is None or (inference and any(n.target is torch.ops.aten.view.dtype for n in half.body)):
        return None  # a view of another dtype is an inference tensor there: a write to it moves no version counter
    moves = version_moves(half)
    if moves is None:
        return None
    call: Compiled = graph_code.compile_half(half, name="forward").function
    mutations = delivered_by_program(plan, {k: moves[k] for k in targets.values()})
    results = replace(plan.results, detach_values=plan.results.detach_values | set(targets))
    return call, replace(plan, mutations=replace(plan.mutations, rows=mutations), results=results)


def compile_half(backend: Backend, compiler: Compiler, half: Half, is_backward: bool = False) -> Compiled:
    """Our own back end reads the list of nodes; any other gets a graph module."""
    name = "backward" if is_backward else "forward"
    if compiler is compile_eager and half.is_plain:
        return graph_code.compile_half(half, name=name).function
    return compile_with(compiler, half.module, half.examples, is_backward=is_backward, name=backend.name)


def backward_compiler(backend: Backend) -> Callable[[fx.GraphModule], Compiled]:
    """For backwards that are traced later."""
    return lambda graph: compile_half(backend, backend.backward, Half.of_module(graph), is_backward=True)
