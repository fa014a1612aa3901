"""`MinCut`: our partitioner and its options. ``partitioner="min_cut"`` is ``MinCut()``.

>>> import torch, subclass_trace as st
>>> region = st.compile(lambda x: x.sin().exp().sum(), partitioner=st.MinCut(budget=0.0))
>>> region(torch.zeros(3, requires_grad=True)).backward()
>>> [row.operation for row in region.specializations[0].saved]
['input']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx as fx

from ..capture.graphs import where
from ..errors import OptionError, UnsupportedError
from .budget import Hull
from .flow import Infeasible, cut
from .rules import (
    AGAIN,
    INF,
    MUST_SAVE,
    Facts,
    bans,
    kept_results,
    never_again,
    recompute_tags,
    storage_weights,
)
from .split import halves, make_split
from .table import Table


@dataclass(frozen=True)
class MinCut:
    """Our partitioner. It is callable as the partitioners of ``functorch.compile`` are.

    Attributes:
        budget: a limit on what is saved. A whole number above 1: bytes (of unique storages, beyond inputs). A number
            from 0 to 1: share between the least possible and what is saved without a limit.
        recompute: compute again what is cheap. False (``partitioner="default"``): save what the backward reads.
    """

    budget: float | int | None = None
    recompute: bool = True

    def __post_init__(self) -> None:
        """Check the budget.

        Raises:
            OptionError: it is out of range.
        """
        check_budget(self.budget)

    def choose(self, table: Table, facts: Facts) -> list[int]:
        """The rows to save.

        Raises:
            UnsupportedError: the tags of checkpointing contradict each other.
        """
        tags, weights = recompute_tags(table), storage_weights(table, facts)
        if self.budget is None or self.budget == 1:
            return self._unlimited(table, facts, tags, weights)
        hull = _hull(table, tags, weights)
        least = hull.ends[1].bytes
        full = hull.bytes(self._unlimited(table, facts, tags, weights)) if self.budget < 1 else 0
        return list(hull.within(self._limit(full, least)).saved)

    def _unlimited(self, table: Table, facts: Facts, tags: Sequence[Any], weights: Sequence[float]) -> list[int]:
        banned = bans(table, tags, cheap_too=not self.recompute)
        if facts.kept is not None:
            for i in kept_results(table, facts):
                banned[i] |= tags[i] not in AGAIN
        late = table.late if self.recompute else [tag == "is_backward" for tag in table.tag]
        again = [table.late[i] or late[i] or tags[i] in AGAIN for i in range(len(late))]
        try:
            return cut(table.rows, table.ins, table.users, weights, banned, again, table.needed_late)
        except Infeasible:
            raise _infeasible(table, tags, banned, weights) from None

    def _limit(self, full: int, least: int) -> int:
        """The budget in bytes, when so much is saved without one, and at least so much is necessary.

        Raises:
            OptionError: it cannot be kept.
        """
        assert self.budget is not None
        limit = int(self.budget) if self.budget > 1 else least + int(self.budget * max(full - least, 0))
        if limit < least:
            raise OptionError(
                "the memory budget cannot be kept",
                path="activation_memory_budget",
                expected=f"at least {least} bytes, which the backward cannot do without",
                got=f"{limit} bytes",
                fix="give a share from 0 to 1 instead; 0 saves the least possible",
            )
        return limit

    def __call__(
        self,
        joint: fx.GraphModule,
        joint_inputs: Sequence[Any] | None = None,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Partition as a function of ``functorch.compile`` does, for example ``aot_function(..., partition_fn=MinCut())``.

        Returns: forward and backward; the forward's outputs are ``(*outputs, *saved tensors, *saved sizes)``.
        """
        table = Table(joint, num_fwd_outputs)
        static = frozenset(table.name(table.primals[k]) for k in static_lifetime_input_indices or ())
        split = make_split(table, self.choose(table, Facts(static=static)))
        forward, backward = halves(split, num_fwd_outputs)
        return forward.module, backward.module


def check_budget(budget: object) -> None:
    """Check a memory budget.

    Raises:
        OptionError: neither a share from 0 to 1 nor a whole number of bytes.
    """
    number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
    if budget is None or (number and (0 <= budget <= 1 or (isinstance(budget, int) and budget > 1))):  # type: ignore[operator]
        return
    raise OptionError(
        "activation_memory_budget is out of range",
        expected="a number from 0 to 1 (a share), or a whole number of bytes",
        got=repr(budget),
    )


def _hull(table: Table, tags: Sequence[Any], weights: Sequence[float]) -> Hull:
    """Everything between saving most and saving least.

    Raises:
        UnsupportedError: the tags of checkpointing contradict each other.
    """
    try:
        return Hull(table, tags, weights)
    except Infeasible:
        banned = [never_again(table, i) or tags[i] is MUST_SAVE for i in range(len(table.nodes))]
        raise _infeasible(table, tags, banned, weights) from None


# ---------------------------------------------------------------------------------------------- when there is no cut
def _infeasible(t: Table, tags: Sequence[Any], banned: Sequence[bool], weights: Sequence[float]) -> UnsupportedError:
    """Rows that can be saved by nobody, from one that must not be computed again to one that the backward computes."""
    path = _blocked_path(t, tags, banned, weights)
    lines = [f"{t.name(i)} ({_why(t, tags, banned, weights, i)}){_at(t, i)}" for i in path]
    last = path[-1] if path else None
    return UnsupportedError(
        "what the backward needs can be neither saved nor computed again",
        path=None if last is None else t.name(last) + _at(t, last),
        expected="on each way from a value that is computed once to the backward, one value that can be saved",
        got=" -> ".join(lines),
        fix="let the checkpoint policy save one of these (MUST_SAVE), or leave it out of the checkpointed part",
    )


def _blocked_path(t: Table, tags: Sequence[Any], banned: Sequence[bool], weights: Sequence[float]) -> list[int]:
    before: dict[int, int | None] = {}
    for i in t.rows:
        again = t.late[i] or tags[i] in AGAIN
        if banned[i] and not again and weights[i] == INF:
            before.setdefault(i, None)
        source = next((x for x in t.ins[i] if x in before), None)
        if source is None:
            continue
        if again or (weights[i] == INF and t.needed_late[i]):
            path = [i]
            step: int | None = source
            while step is not None:
                path.append(step)
                step = before[step]
            return path[::-1]
        if weights[i] == INF:
            before.setdefault(i, source)
    return []


def _why(t: Table, tags: Sequence[Any], banned: Sequence[bool], weights: Sequence[float], i: int) -> str:
    if t.late[i]:
        return "part of the backward"
    if tags[i] in AGAIN:
        return f"tagged {tags[i].name}"
    if banned[i]:
        reason = (
            "an input" if t.is_placeholder(i) else "tagged MUST_SAVE" if tags[i] is MUST_SAVE else "must not run twice"
        )
        return reason + (", and no tensor that can be saved" if weights[i] == INF else "")
    return "cannot be saved"


def _at(t: Table, i: int) -> str:
    place = where(t.nodes[i])
    return f" at {place}" if place else ""
