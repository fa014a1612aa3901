"""Which mutations of a plan a program may deliver itself, and what is left to do when it has (docs/notes/in_place.md)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import _torch
from ..plan import BasePrimal, LeafPrimal, MutationPlan, Plan, ValueOutput, ViewOutput
from ..subclass.spec import LeafSpec, leaf_count

Boxed = Callable[[list[Any]], Sequence[Any]]
_is_inference: Callable[[torch.Tensor], bool] = torch.Tensor.is_inference


def targets_of(plan: Plan) -> dict[int, int]:
    """Number of a forward output -> number of the graph input that the plan copies it into, and that it is there for."""
    place = {p.leaf: k for k, p in enumerate(plan.primals) if isinstance(p, LeafPrimal) and not p.detached}
    grouped = {k for p in plan.primals if isinstance(p, BasePrimal) for k in p.members}
    used, starts = _used_values(plan), [0]
    for spec in plan.values:
        starts.append(starts[-1] + leaf_count(spec))
    found: dict[int, int] = {}
    refused: set[int] = set(grouped)
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


def maybe_of_inference(plan: Plan, targets: Mapping[int, int]) -> list[int]:
    """The inputs among ``targets`` that may be inference tensors inside of a normal wrapper, which its class may write."""
    below = {plan.inputs[m.input].leaves[k] for m in plan.mutations for k in m.below}
    return [
        k for k in dict.fromkeys(targets.values()) if isinstance(p := plan.primals[k], LeafPrimal) and p.leaf in below
    ]


def for_inference_too(
    program: Boxed,
    functional: Callable[[], Boxed],
    maybe: Sequence[int],
    targets: Mapping[int, int],
    moves: Mapping[int, int],
) -> Boxed:
    """``program``, but where one of its inputs ``maybe`` is an inference tensor, the functional one, and copies into others.

    Operations in place on such a tensor are allowed in inference mode alone, which would make inference tensors of all
    that the program makes.

    Args:
        functional: makes the same program without ``targets``.
        moves: by how much ``program`` moves the version counters of the inputs that it writes.
    """
    made: list[Boxed] = []
    pick = operator.itemgetter(*maybe, maybe[0])  # of one number alone it makes no tuple

    @functools.wraps(program)
    def run(inputs: list[Any]) -> Sequence[Any]:
        if not any(map(_is_inference, pick(inputs))) or torch.is_inference_mode_enabled():
            return program(inputs)
        if not made:
            made.append(functional())
        written = [(inputs[number], place, moves[number]) for place, number in targets.items() if number in moves]
        results = made[0](inputs)
        for x, place, moved in written:
            if not x.is_inference():  # those are for `deliver`, which knows the wrapper
                version = x._version
                x.copy_(results[place])
                _torch.set_version(x, version + moved)
        return results

    return run
