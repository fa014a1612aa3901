"""The order in which gradients are added up.

Autograd runs the node that was made last first, and the gradients that reach one tensor are added up in that order; the
strides of a sum follow its first operand. A region is one node, and the views among its results are nodes of their own:

- A view of an input that the function makes before it last uses the input in another way is made before the region's
  node (`order_views`).
- The tangent of an intermediate result that views are made of comes when the nodes of these views would have run in eager
  mode, which may be after nodes of the region (`arrivals`, `Arrival`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import _torch
from ..plan import MutationPlan, OutputPlan, SymbolicView, ValueOutput, ViewCalls, ViewOutput
from .inputs import TracedInputs

Tensor = torch.Tensor


def order_views(
    outputs: Sequence[OutputPlan],
    results: Sequence[Any],
    values: Sequence[Tensor],
    inputs: TracedInputs,
    mutations: Sequence[MutationPlan],
) -> list[OutputPlan]:
    """The outputs, with ``ahead`` set.

    Args:
        results: what the function returned, one for each output.
        values: what the region's node computes.
    """
    fixed = {m.input for m in mutations}
    views = [k for k, o in enumerate(outputs) if isinstance(o, ViewOutput) and _may_move(o) and o.base not in fixed]
    if not views:
        return list(outputs)
    last: dict[Any, int] = {}
    for node, used in _uses([t.grad_fn for t in values if t.requires_grad]):
        last[used] = max(last.get(used, -1), _torch.node_sequence_number(node))
    found = list(outputs)
    for k in views:
        o: Any = outputs[k]
        edge = inputs.inputs[o.base].edge
        if edge is not None and edge.node in last:
            own = [_torch.node_sequence_number(n) for n, used in _uses([results[k].grad_fn]) if used == edge.node]
            found[k] = replace(o, ahead=bool(own) and max(own) < last[edge.node])
    return found


def arrivals(outputs: Sequence[OutputPlan], results: Sequence[Any], values: Sequence[Tensor]) -> dict[int, int]:
    """Value -> the sequence number at which its tangent arrives, for those whose tangent does not come first."""
    views: dict[int, list[Tensor]] = {}
    for o, result in zip(outputs, results, strict=True):
        if isinstance(o, ViewOutput) and not o.of_input and o.requires_grad:
            views.setdefault(o.base, []).append(result)
    direct = {o.value for o in outputs if isinstance(o, ValueOutput)}
    bases = {k: values[k].grad_fn for k in views if k not in direct and values[k].grad_fn is not None}
    if not bases:
        return {}
    uses = list(_uses([t.grad_fn for t in values if t.requires_grad]))
    found = {}
    for k, base in bases.items():
        own = [_torch.node_sequence_number(n) for v in views[k] for n, used in _uses([v.grad_fn]) if used == base]
        if own and any(used == base and _torch.node_sequence_number(n) > max(own) for n, used in uses):
            found[k] = max(own)
    return found


class Arrival(torch.autograd.Function):
    """Stands for a result; its node hands the tangent on at the moment that its sequence number says."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, box: Sequence[Tensor]) -> Tensor:
        """The tensor in ``box``, which has the type and the sizes of ``value``."""
        return box[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Nothing is computed."""
        return grad, None


def _may_move(o: ViewOutput) -> bool:
    if isinstance(o.replay, SymbolicView):  # a number that it needs is one of the graph
        return False
    if isinstance(o.replay, ViewCalls) and (o.replay.given or any(call.has_sizes for call, _ in o.replay.calls)):
        return False
    return o.of_input and o.requires_grad and not o.early and not o.starts_grad and not o.version_bumps


def _uses(roots: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """(node, a node that its gradients go to) for all nodes behind ``roots``."""
    todo, seen = [n for n in roots if n is not None], set[Any]()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for following, _ in node.next_functions:
            if following is not None:
                yield node, following
                todo.append(following)
