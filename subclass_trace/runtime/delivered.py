"""A program that runs what was recorded writes to the inputs itself: when that may be, and what is left to do then.

What the caller sees of it is what eager mode shows: the same operations write to the same memory in the same order. The
plan differs where an operation below a wrapper's dispatch, which moves no version counter in eager mode, moves one here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from .. import torch_api
from ..capture.graphs import is_write
from ..capture.writes import written_arguments
from ..partition.half import Half
from ..plan import BasePrimal, LeafPrimal, MutationPlan, Plan, ValueOutput, ViewOutput
from ..subclass.spec import LeafSpec, leaf_count

aten = torch.ops.aten
#: their kernels write statistics without moving a version counter
_UNCOUNTED = (aten._native_batch_norm_legit.default, aten._batch_norm_with_update.default)


def targets_of(plan: Plan, inference: Collection[int] = ()) -> dict[int, int] | None:
    """Number of a forward output -> number of the graph input whose new contents it is; None where a mutation is another one.

    ``inference``: leaves that may not be written.
    """
    place = {p.leaf: k for k, p in enumerate(plan.inputs.primals) if isinstance(p, LeafPrimal)}
    used, starts = _used_values(plan), [0]
    for spec in plan.results.values:
        starts.append(starts[-1] + leaf_count(spec))
    found: dict[int, int] = {}
    for m in plan.mutations.rows:
        leaves = plan.inputs.rows[m.input].leaves
        if not _is_plain(m) or m.value in used:
            return None
        assert m.value is not None
        if any(leaves[k] not in place or leaves[k] in inference for k in m.leaves):
            return None
        found |= {starts[m.value] + k: place[leaves[k]] for k in m.leaves}
    return None if any(isinstance(p, BasePrimal) for p in plan.inputs.primals) else found


def version_moves(half: Half) -> Mapping[int, int] | None:
    """Number of a graph input -> by how much the program moves its version counter; None where it writes to memory that two
    inputs lie in, which may have one counter or two."""
    moves: Counter[Any] = Counter()
    for node in half.body:
        if is_write(node) and node.target not in _UNCOUNTED:
            args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
            moves.update(map(torch_api.storage_ref, written_arguments(node.target, args, kwargs)))
    inputs = {k: t for k, n in enumerate(half.inputs) if isinstance(t := n.meta["val"], torch.Tensor)}
    held = Counter(torch_api.storage_ref(t) for t in inputs.values() if t.layout is torch.strided)
    if any(held[memory] > 1 for memory in moves):
        return None
    return {k: moves[torch_api.storage_ref(t)] for k, t in inputs.items() if t.layout is torch.strided}


def _is_plain(m: MutationPlan) -> bool:
    """Does nothing but data change, without autograd's notice?"""
    other = m.differentiable or m.metadata is not None or m.starts_grad
    return m.value is not None and not other


def _used_values(plan: Plan) -> set[int]:
    """Values that are there for more than one mutation's sake."""
    used: set[int | None] = {o.value for o in plan.results.outputs if isinstance(o, ValueOutput)}
    used |= {row.value for row in plan.results.aliases}
    used |= {o.base for o in plan.results.outputs if isinstance(o, ViewOutput) and not o.of_input}
    used |= {a.value for row in plan.results.aliases for a in row.leaves if a is not None}
    used |= {*plan.gradients.differentiable}
    several = [m.value for m in plan.mutations.rows]
    return {k for k in used if k is not None} | {k for k in several if k is not None and several.count(k) > 1}


def delivered_by_program(plan: Plan, delivered: Mapping[int, int]) -> tuple[MutationPlan, ...]:
    """The mutations, with what the program itself has written: graph input -> by how much its version has moved."""
    writes = {
        p.leaf: delivered[k] for k, p in enumerate(plan.inputs.primals) if isinstance(p, LeafPrimal) and k in delivered
    }
    rows = []
    for m in plan.mutations.rows:
        row = plan.inputs.rows[m.input]
        done = tuple(k for k in m.leaves if row.leaves[k] in writes)
        moved = writes[row.leaves[0]] if done and isinstance(row.spec, LeafSpec) else 0
        bumps = m.leaf_bumps
        if done and bumps is not None:
            bumps = {k: n - writes[row.leaves[k]] if k in done else n for k, n in bumps.items()}
        rows.append(replace(m, in_program=done, moved=moved, leaf_bumps=bumps) if done else m)
    return tuple(rows)
