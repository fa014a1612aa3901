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

import torch
import torch.fx as fx

from ..errors import OptionError, UnsupportedError
from ..torch_api.texts import text_of
from .budget import Hull
from .flow import Infeasible, cut
from .rules import INF, RECOMPUTE, Facts, bans, kept_rows, recompute_tags, storage_weights
from .split import halves, make_split
from .table import Table


@dataclass(frozen=True)
class MinCut:
    """Our partitioner.

    Attributes:
        budget: a limit on what is saved. A whole number above 1: bytes (of unique storages, beyond
            inputs). A number
            from 0 to 1: share between the least possible and what is saved without a limit.
        recompute: recompute what is cheap. False (``partitioner="default"``): save what the
            backward reads.
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
        try:
            if self.budget is None or self.budget == 1:
                return self._unlimited(table, facts, tags, weights)
            hull = Hull(table, tags, weights)
            full = (
                hull.bytes(self._unlimited(table, facts, tags, weights)) if self.budget < 1 else 0
            )
            return list(hull.within(self._limit(full, hull.ends[1].bytes)).saved)
        except Infeasible:
            raise UnsupportedError(
                "what the backward needs can be neither saved nor recomputed",
                code="no-partition",
                expected="on each way from a value that is computed once to the backward, one "
                "value that can be saved",
                fix="let the checkpoint policy save one of these (MUST_SAVE), or leave it out of "
                "the checkpointed part",
            ) from None

    def _unlimited(
        self, table: Table, facts: Facts, tags: Sequence[Any], weights: Sequence[float]
    ) -> list[int]:
        banned = bans(table, tags, cheap_too=not self.recompute)
        if facts.kept is not None:
            for i in kept_rows(table, facts):
                banned[i] |= tags[i] not in RECOMPUTE
        # of what is kept, the backward computes what it needs
        small = facts.small if self.recompute else INF
        sizes = [max([table.size[k] for k in (i, *ins)]) for i, ins in enumerate(table.ins)]
        late = [
            tag == "is_backward" and size <= small and isinstance(value, torch.Tensor)
            for tag, size, value in zip(table.tag, sizes, table.val, strict=True)
        ]
        recomputed = [
            table.in_backward[i] or late[i] or tags[i] in RECOMPUTE for i in range(len(late))
        ]
        return cut(
            table.rows,
            table.ins,
            table.users,
            weights,
            banned,
            recomputed,
            table.needed_in_backward,
        )

    def _limit(self, full: int, least: int) -> int:
        """The budget in bytes, when so much is saved without one, and at least so much is
        necessary.

        Raises:
            OptionError: it cannot be kept.
        """
        assert self.budget is not None
        limit = (
            int(self.budget) if self.budget > 1 else least + int(self.budget * max(full - least, 0))
        )
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
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Partition as a function of ``functorch.compile`` does, for example
        ``aot_function(..., partition_fn=MinCut())``.

        Returns: forward and backward; the forward's outputs are
        ``(*outputs, *saved tensors, *saved sizes)``.
        """
        table = Table(joint, num_fwd_outputs)
        forward, backward = halves(make_split(table, self.choose(table, Facts())), num_fwd_outputs)
        return forward.module, backward.module


def check_budget(budget: object) -> None:
    """Check a memory budget.

    Raises:
        OptionError: neither a share from 0 to 1 nor a whole number of bytes.
    """
    if budget is None:
        return
    if isinstance(budget, (int, float)) and not isinstance(budget, bool):
        if 0 <= budget <= 1 or (isinstance(budget, int) and budget > 1):
            return
    raise OptionError(
        "activation_memory_budget is out of range",
        expected="a number from 0 to 1 (a share), or a whole number of bytes",
        got=text_of(budget),
    )
