"""Dense regions whose backward is left to autograd.

An ``autograd.Function`` costs as much as a dozen small operations. The forward program of the eager
back end, run under autograd, does what eager mode does, where it leaves the history that the
function has left: `_for_autograd` says for which captures that is worth a try,
`leaves_same_history` runs the program on fakes and compares node by node, with the order in which
the engine meets them. Parts without gradients, detached values, hooks and custom Functions fail
that.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
import torch.fx as fx

from .. import policy
from ..backends.eager import graph_code
from ..capture.capture import Captured
from ..capture.graphs import primal_number
from ..partition.half import Half
from ..partition.table import nbytes
from ..plan import ValueOutput
from ..subclass.spec import LeafSpec
from ..torch_api.autograd import is_custom_node, node_sequence_number
from ..torch_api.modes import without_tracing
from ..torch_api.operators import OpOverload
from .planning import detached_values

Tensor = torch.Tensor
Program: TypeAlias = Callable[[list[Any]], Sequence[Any]]


def left_to_autograd(captured: Captured) -> tuple[Captured, Half, Program] | None:
    """The capture as one without a backward, its forward, and that compiled, if autograd shall do
    the backward."""
    if (alone := _for_autograd(captured)) is None:
        return None
    half = Half.of_module(alone.forward_graph(in_place=False)[0])
    if detached_values(alone, half):
        return None
    call: Program = graph_code.compile_half(half, name="forward", by_autograd=True).function
    return (alone, half, call) if leaves_same_history(captured, half, call) else None


def _for_autograd(captured: Captured) -> Captured | None:
    """The capture as one without a backward, if nothing of the region is more than operations on
    dense tensors."""
    tape, recorder, results = captured.tape, captured.session.recorder, captured.results
    if (
        tape is None
        or not torch.is_grad_enabled()
        or captured.mutations.gradients
        or captured.session.passes is not None
    ):
        return None
    hooked = recorder.met.hooks or getattr(recorder.forward_state, "hooks_nodes", False)
    if (
        hooked or recorder.decompositions or recorder.memory.any
    ):  # a write would move versions out of their order
        return None
    values = (*[row.spec for row in captured.inputs.rows], *results.values)
    if not all(isinstance(spec, LeafSpec) and spec.layout is torch.strided for spec in values):
        return None
    if results.shared or results.size_outputs or captured.mutations.rows:
        return None
    if any(isinstance(o, ValueOutput) and (o.protected or o.parameter) for o in results.outputs):
        return None
    nodes = [n for n in recorder.graph.nodes if n.op != "placeholder"]
    return (
        replace(captured, tape=None)
        if len(nodes) <= policy.POLICY.few and all(map(_is_plain, nodes))
        else None
    )


def _is_plain(node: fx.Node) -> bool:
    operation = isinstance(node.target, OpOverload) or node.target is operator.getitem
    return (
        operation
        and "recompute" not in node.meta
        and nbytes(node.meta.get("val")) <= policy.POLICY.small
    )


def leaves_same_history(captured: Captured, half: Half, call: Program) -> bool:
    """Does the program, under autograd, leave the history that the function has left?"""
    tape = captured.tape
    assert tape is not None
    session, inputs = captured.session, captured.inputs
    number = {primal: k for k, primal in enumerate(inputs.leaf_primals)}
    given = {
        place: row.traced for row in inputs.rows if row.edge is not None for place in row.leaves
    }

    def value(node: fx.Node) -> Any:
        primal = primal_number(node)
        if primal in inputs.sizes:
            return inputs.sizes[primal]
        t = inputs.originals[number[primal]]
        return given.get(number[primal], t.new_empty_strided(t.shape, t.stride()))

    with session.modes(), without_tracing():
        args = [*map(value, half.inputs)]
        try:
            found = call(args)
        except Exception:  # what runs without gradients there
            return False
    live = iter(tape.outputs)
    rows = []
    for k in range(len(captured.results.values)):
        if k in captured.differentiable:
            rows.append((found[k], next(live)))
        elif isinstance(found[k], Tensor) and found[k].requires_grad:
            return False
    return same_history(rows, {e.node for e in tape.edges})


def same_history(rows: Sequence[tuple[Tensor, Tensor]], ends: Collection[Any]) -> bool:
    """Are the histories of the tensors of each pair the same nodes, in the same order, as far as
    these ends?"""
    if any(a.output_nr != b.output_nr for a, b in rows):
        return False
    todo, known = [(a.grad_fn, b.grad_fn) for a, b in rows], dict[Any, Any]()
    while todo:
        a, b = todo.pop()
        if b is None or b in ends or b in known:
            if a != known.get(b, b):
                return False
            continue
        known[b] = a
        if (
            a is None
            or a in ends
            or a.name() != b.name()
            or is_custom_node(b)
            or hasattr(b, "variable")
        ):
            return False
        if [n for _, n in a.next_functions] != [n for _, n in b.next_functions]:
            return False
        todo += zip([n for n, _ in a.next_functions], [n for n, _ in b.next_functions], strict=True)
    number = node_sequence_number
    return [known[b] for b in sorted(known, key=number)] == sorted({*known.values()}, key=number)
