"""The ``inductor`` back end: PyTorch's compiler, called below Dynamo and AOTAutograd.

What this file adds to inductor's own entry point:

- the graph that the caller passes stays as it is: inductor rewrites a copy;
- random numbers are those of eager mode (``fallback_random``);
- operations that are called for what they do are chained by effect tokens, without which inductor
  would drop them;
- what Python computes of floats from inside of tensors is called step by step: inductor's formulas
  have ``v - v == 0``;
- sizes may be symbols. Inductor may then add guards to their ShapeEnv, so the caller reads guards
  after compiling.

All outputs keep the strides they were traced with: a backward is compiled for saved activations of
these.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..capture.effects import CHECKS, has_effects
from ..capture.user_code import line_text
from ..errors import UnsupportedError
from ..torch_api.inductor import inductor_compile, with_effect_tokens
from ..torch_api.operators import needs_exact_strides
from .python_numbers import steps_on_tensors


def compile_with_inductor(
    gm: fx.GraphModule, example_inputs: Sequence[Any], **role: bool
) -> Callable[..., Any]:
    """Compile a graph; ``role``: ``is_backward`` for (saved activations, tangents) to gradients,
    ``is_inference``.

    Raises:
        UnsupportedError: a node draws from a generator of its own.
    """
    for node in gm.graph.nodes:
        if any(isinstance(x, torch.Generator) for x in (*node.args, *node.kwargs.values())):
            what, fix = (
                f"inductor has no place for a generator of random numbers ({node.target})",
                "draw outside",
            )
            raise UnsupportedError(
                what, code="generator-of-a-graph", path=line_text(node.meta.get("frames")), fix=fix
            )
    own = _copy(gm)
    output = own.graph.output_node()
    if not isinstance(output.args[0], (tuple, list)):  # inductor wants several results
        output.args = ((output.args[0],),)
    loud = [
        n
        for n in own.graph.nodes
        if n.op == "call_function" and has_effects(n.target) and n.target not in CHECKS
    ]
    with with_effect_tokens(own.graph, loud):
        return inductor_compile(own, list(example_inputs), **role)


def _copy(gm: fx.GraphModule) -> fx.GraphModule:
    """The same attributes, a graph of its own."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(gm.graph, values)
    original = gm.graph.output_node()
    node = graph.output(result)
    node.meta = copy.copy(original.meta)
    steps_on_tensors(graph)
    _note_input_values(graph)
    own = fx.GraphModule(gm, graph)
    own.meta = copy.copy(gm.meta)
    for name, child in list(own.named_children()):
        if isinstance(child, fx.GraphModule):  # bodies of higher-order operations are rewritten too
            setattr(own, name, _copy(child))
    return own


def _note_input_values(graph: fx.Graph) -> None:
    """Inductor may choose other strides for intermediates; operations that need those of eager
    (``_scaled_mm``) say so.

    PyTorch's own tracers leave the same note on such nodes (``eager_input_vals``).
    """

    def value(a: Any) -> Any:
        return a.meta.get("val") if isinstance(a, fx.Node) else None

    for node in graph.nodes:
        if node.op == "call_function" and needs_exact_strides(node.target):
            node.meta["eager_input_vals"] = fx.node.map_aggregate((node.args, node.kwargs), value)
