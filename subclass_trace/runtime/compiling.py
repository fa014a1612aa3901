"""The programs of a specialization: two halves go through a back end; without a backward, ours runs what was recorded."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.fx as fx

from ..backends import Backend, Compiled, Compiler, compile_with
from ..backends.eager import compile_eager, graph_code
from ..partition.half import Half


def program_as_recorded(half: Half) -> Compiled | None:
    """The program of a graph that writes to its inputs itself, as eager mode does; None where it has to be functional."""
    if torch.is_inference_mode_enabled() and any(n.target is torch.ops.aten.view.dtype for n in half.body):
        return None  # a view of another dtype is an inference tensor there: a write to it moves no version counter
    return graph_code.compile_half(half, name="forward").function


def compile_half(backend: Backend, compiler: Compiler, half: Half, is_backward: bool = False) -> Compiled:
    """Our own back end reads the list of nodes; any other gets a graph module."""
    name = "backward" if is_backward else "forward"
    if compiler is compile_eager and half.is_plain:
        return graph_code.compile_half(half, name=name).function
    return compile_with(compiler, half.module, half.examples, is_backward=is_backward, name=backend.name)


def backward_compiler(backend: Backend) -> Callable[[fx.GraphModule], Compiled]:
    """For backwards that are traced later."""
    return lambda graph: compile_half(backend, backend.backward, Half.of_module(graph), is_backward=True)
