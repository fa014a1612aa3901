"""The ``eager`` back end: the graph as straight-line Python. See `subclass_trace.backends.eager.graph_code`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx as fx

from .graph_code import BoxedGraph, compile_graph


def compile_eager(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedGraph:
    """Every operation of the graph as one call, with the results of eager mode bit for bit."""
    return compile_graph(gm, name="backward" if gm.meta.get("is_backward") else "forward")
