"""Operations that run in some calls only: an optimizer's step that a `GradScaler` may leave out
(`capture/skipped_steps.py`).

The graph computes the step, and then puts back what it wrote. Where it writes in place, that is the
same as a branch: all of the step, or none of it, and nothing to put back.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

import torch.fx as fx

from .views import ViewCall, final, inputs_of


def branches(
    body: list[fx.Node],
    outputs: Collection[Any],
    merged: Mapping[fx.Node, fx.Node],
    calls: Mapping[fx.Node, ViewCall],
) -> tuple[list[fx.Node], dict[fx.Node, fx.Node]]:
    """What is to be run; and for each node of it that runs in some calls only, the value that is
    false then.

    A step stays as the graph has it where anything but itself reads what it computes: where the
    graph is functional.
    """
    parts: dict[str, dict[str, list[fx.Node]]] = {}
    for node in body:
        if tag := node.meta.get("left_out"):
            number, part = tag.split()
            parts.setdefault(number, {}).setdefault(part, []).append(node)
    dropped, guards = set[fx.Node](), dict[fx.Node, fx.Node]()
    for rows in parts.values():
        condition, step, restored = (
            rows.get(part, []) for part in ("condition", "step", "restore")
        )
        own = {*step, *restored}
        outside = {final(r, merged) for r in outputs if isinstance(r, fx.Node)}
        outside |= {
            final(r, merged) for node in body if node not in own for r in inputs_of(node, calls)
        }
        if len(condition) == 1 and step and not outside & own and _in_one_piece(body, own):
            dropped |= set(restored)
            guards.update(dict.fromkeys(step, condition[0]))
    return [node for node in body if node not in dropped], guards


def _in_one_piece(body: list[fx.Node], own: Collection[fx.Node]) -> bool:
    """Does nothing run in between that is no part of it?"""
    runs = [
        part for part, _ in itertools.groupby(node in own for node in body if node.op != "get_attr")
    ]
    return sum(runs) == 1
