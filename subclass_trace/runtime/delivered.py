"""Which mutations of a plan a program may deliver itself, and what is left to do when it has (docs/notes/in_place.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..plan import BasePrimal, LeafPrimal, MutationPlan, Plan, ValueOutput, ViewOutput
from ..subclass.spec import LeafSpec, leaf_count


def targets_of(plan: Plan, inference: Collection[int] = ()) -> dict[int, int]:
    """Number of a forward output -> number of the graph input that the plan copies it into, and that it is there for.

    ``inference``: leaves that are inference tensors, which no operation outside of inference mode may write.
    """
    place = {p.leaf: k for k, p in enumerate(plan.primals) if isinstance(p, LeafPrimal) and not p.detached}
    grouped = {k for p in plan.primals if isinstance(p, BasePrimal) for k in p.members}
    used, starts = _used_values(plan), [0]
    for spec in plan.values:
        starts.append(starts[-1] + leaf_count(spec))
    found: dict[int, int] = {}
    refused: set[int] = {*grouped, *inference}
    for m in plan.mutations:
        leaves = plan.inputs[m.input].leaves
        if not _is_plain(m) or m.value in used:
            refused.update(leaves)
            continue
        assert m.value is not None
        found |= {starts[m.value] + k: leaves[k] for k in m.leaves}
    return {k: place[leaf] for k, leaf in found.items() if leaf in place and leaf not in refused}


def _is_plain(m: MutationPlan) -> bool:
    """Does nothing but data change, without autograd's notice?"""
    other = m.replaced or m.memory or m.differentiable or m.metadata is not None or m.starts_grad or m.stops_grad
    return m.value is not None and not other


def _used_values(plan: Plan) -> set[int]:
    """Values that are there for more than one mutation's sake."""
    used: set[int | None] = {o.value for o in plan.outputs if isinstance(o, ValueOutput)}
    used |= {row.value for row in plan.aliases}
    used |= {o.base for o in plan.outputs if isinstance(o, ViewOutput) and not o.of_input}
    used |= {a.value for row in plan.aliases for a in row.leaves if a is not None}
    used |= {*plan.differentiable, *plan.fresh_leaves, *plan.dangling}
    used |= {k for k, _ in plan.inference}
    used |= {n for m in plan.mutations for n in m.memory.values()}
    several = [m.value for m in plan.mutations]
    return {k for k in used if k is not None} | {k for k in several if k is not None and several.count(k) > 1}


def delivered_by_program(plan: Plan, delivered: Mapping[int, int]) -> tuple[MutationPlan, ...]:
    """The mutations, with what the program itself has written (`Lowered.delivered`)."""
    writes = {p.leaf: delivered[k] for k, p in enumerate(plan.primals) if isinstance(p, LeafPrimal) and k in delivered}
    rows = []
    for m in plan.mutations:
        row = plan.inputs[m.input]
        done = tuple(k for k in m.leaves if row.leaves[k] in writes)
        moved = writes[row.leaves[0]] if done and isinstance(row.spec, LeafSpec) else 0
        bumps = m.leaf_bumps
        if done and bumps is not None:
            bumps = {k: n - writes[row.leaves[k]] if k in done else n for k, n in bumps.items()}
        rows.append(replace(m, in_program=done, moved=moved, leaf_bumps=bumps) if done else m)
    return tuple(rows)
