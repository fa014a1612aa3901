"""Bytes against time: good partitions of a joint graph by parametric minimum cuts, and the best one
within a limit.

For a price per saved byte, the cheapest partition is a minimum cut (`flow.cut`) in which saving
costs the price of its bytes, and recomputing costs what `costs.seconds` says. As the price rises,
the cut saves less. All its values are corners of the lower hull of (bytes, seconds), and the limit
lies between two of them, which are found by halving: the price at which two corners cost the same
either gives a corner between them, or there is none.

The hull has no points between its corners. There, more of what the smaller one recomputes is saved
as long as there is room, that which spares most for its bytes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .costs import seconds
from .flow import INF, Infeasible, cut
from .rules import LAST_RESORT, MUST_SAVE, RECOMPUTE, never_recomputed
from .table import Table


@dataclass(frozen=True)
class Corner:
    """A partition: rows that are saved, what they weigh, and what recomputing the rest costs."""

    saved: tuple[int, ...]
    bytes: int
    cost: float


class Hull:
    """The partitions of a table.

    Raises:
        Infeasible: none is possible.
    """

    def __init__(self, t: Table, tags: Sequence[Any], weights: Sequence[float]) -> None:
        self.t = t
        self.weight = [
            0.0 if w < 1 or (_is_number(v) and w < INF) else w
            for w, v in zip(weights, t.val, strict=True)
        ]
        self.recomputed = [
            tag in RECOMPUTE or not may for tag, may in zip(tags, t.allowed_in_forward, strict=True)
        ]
        self.fixed = [
            not recomputed and _is_fixed(t, tags, i) for i, recomputed in enumerate(self.recomputed)
        ]
        self.cost = [0.0] * len(weights)
        for i in t.rows:
            # others run once in any case
            if t.in_forward[i] and not self.fixed[i] and not self.recomputed[i]:
                self.cost[i] = seconds(t, i)
        self.read_in_backward = [
            i
            for i in t.rows
            if not t.in_backward[i]
            and (t.needed_in_backward[i] or any(t.in_backward[u] for u in t.users[i]))
        ]
        self.ends = self._first(), self.cut(2 * sum(self.cost) + 1.0)

    def cut(self, price: float) -> Corner:
        """The cheapest partition at this price per byte, of all those the one that recomputes
        least."""
        return self._corner([w * price for w in self.weight], self.fixed, self.cost)

    def _first(self) -> Corner:
        """The fewest bytes with nothing dear recomputed."""
        try:
            return self._corner(
                self.weight, [f or c > 0 for f, c in zip(self.fixed, self.cost, strict=True)], None
            )
        except Infeasible:  # something dear has to be recomputed
            sizes = sum([w for w in self.weight if w != INF])
            return self.cut(min([c for c in self.cost if c > 0], default=1.0) / (2 * sizes + 2))

    def _corner(
        self, weight: Sequence[float], banned: Sequence[bool], cost: Sequence[float] | None
    ) -> Corner:
        t = self.t
        again = [late or here for late, here in zip(t.in_backward, self.recomputed, strict=True)]
        saved = cut(t.rows, t.ins, t.users, weight, banned, again, t.needed_in_backward, cost)
        return Corner(tuple(saved), self.bytes(saved), self._cost_of(saved))

    # ---- what a choice of saved rows costs
    def bytes(self, saved: Iterable[int]) -> int:
        """Bytes that saving these rows adds."""
        weights = [(i, self.weight[i]) for i in saved if self.weight[i] != INF]
        return int(sum([w if w < LAST_RESORT else self.t.size[i] for i, w in weights]))

    def _recomputed_for(self, saved: Iterable[int], wanted: Sequence[int]) -> set[int]:
        """What is recomputed for the rows ``wanted`` when these rows are saved."""
        stop, todo = set(saved), list(wanted)
        found: set[int] = set()
        while todo:
            i = todo.pop()
            if i not in stop and i not in found:
                found.add(i)
                todo.extend(self.t.ins[i])
        return found

    def _cost_of(self, saved: Iterable[int]) -> float:
        return sum([self.cost[i] for i in self._recomputed_for(saved, self.read_in_backward)])

    # ---- within a limit
    def within(self, limit: int) -> Corner:
        """The best partition found with at most ``limit`` bytes; at least the smaller end."""
        above, inside = self.ends
        if above.bytes <= limit:
            return above
        while inside.bytes < limit and inside.bytes < above.bytes and inside.cost > above.cost:
            middle = self.cut((inside.cost - above.cost) / (above.bytes - inside.bytes))
            if middle.bytes in (above.bytes, inside.bytes):
                between = (
                    self._filled(inside, limit),
                    self._filled(self._without(above, limit), limit),
                )
                return min(between, key=lambda c: (c.cost, c.bytes, c.saved))
            above, inside = (above, middle) if middle.bytes <= limit else (middle, inside)
        return inside

    def _without(self, corner: Corner, limit: int) -> Corner:
        """Less of what a corner saves: first that which costs least for its bytes, as if the others
        stayed."""
        free = {i for i in self.t.rows if self.fixed[i] and self.weight[i] == 0}
        saved = {*corner.saved, *free}
        size = corner.bytes

        def alone(i: int) -> float:
            recomputed = self._recomputed_for(saved - {i}, [i])
            return (
                INF
                if any(self.fixed[x] for x in recomputed)
                else sum([self.cost[x] for x in recomputed])
            )

        lone = {i: alone(i) for i in corner.saved if self.weight[i] >= 1}
        while size > limit and min(lone.values(), default=INF) < INF:
            i = min(lone, key=lambda i: lone[i] / min(self.weight[i], size - limit))
            saved.discard(i)
            del lone[i]
            size = self.bytes(saved)
        return Corner(tuple(sorted(saved)), size, self._cost_of(saved) if size <= limit else INF)

    def _filled(self, corner: Corner, limit: int) -> Corner:
        """With more values, those that spare most for their bytes, as long as there is room."""
        options = [
            i
            for i in self._recomputed_for(corner.saved, self.read_in_backward)
            if 1 <= self.weight[i] <= limit and self.cost[i] > 0
        ]
        for i in sorted(options, key=lambda i: (-self.cost[i] / self.weight[i], i))[:60]:
            saved = tuple(sorted([*corner.saved, i]))
            size, cost = self.bytes(saved), self._cost_of(saved)
            if size <= limit and cost < corner.cost * (1 - 1e-12):
                corner = Corner(saved, size, cost)
        return corner


def _is_fixed(t: Table, tags: Sequence[Any], i: int) -> bool:
    """Computed in the forward alone, at any price."""
    return t.is_placeholder(i) or tags[i] is MUST_SAVE or never_recomputed(t, i)


def _is_number(value: object) -> bool:
    return not isinstance(value, torch.Tensor)
