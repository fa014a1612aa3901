"""Bytes against time: all good partitions of a joint graph by one parametric minimum cut, and the best within a limit.

For a price per saved byte, the cheapest partition is a minimum cut: source -> in(X): cost of computing X again;
in(X) -> out(X): price * bytes of X; out(X) -> in(Y): infinite, since computing Y again needs X; out(X) -> sink:
infinite where the backward reads X. Dividing all by the price makes only the edges of the source fall as the price
rises: the sink's sides are nested (Gallo, Grigoriadis and Tarjan), so each further cut is made in what is still open
between two known ones, and all corners of the lower hull of (bytes, cost) are found in few small flows.

The hull has no points between its corners. There, starting from a corner that is too large, a knapsack chooses which values
are given up, each priced as if the others stayed; then those that spare most for their bytes are saved as long as there is
room. Every candidate is priced exactly, and the best one wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from .flow import INF, Flow, Infeasible, cut
from .rules import AGAIN, LAST_RESORT, MUST_SAVE, never_again
from .table import Table


@dataclass(frozen=True)
class Corner:
    """A partition: rows that are saved, what they weigh, and what computing the rest again costs."""

    saved: tuple[int, ...]
    bytes: int
    cost: float
    side: tuple[bool, ...]  # per node of the network: on the sink's side


class Hull:
    """The network of a table, and cuts of it for any price. Costs are in any unit; a price is in that unit per byte."""

    def __init__(
        self, t: Table, tags: Sequence[Any], weights: Sequence[float], cost: Callable[[Table, int], float]
    ) -> None:
        self.t = t
        self.rows = [i for i in t.rows if not t.late[i]]
        self.weight = [w if w >= 1 and not _is_number(t.val[i]) else 0.0 for i, w in enumerate(weights)]
        self.again = [tag in AGAIN or not may for tag, may in zip(tags, t.allowed_early, strict=True)]
        self.fixed = [not self.again[i] and _is_fixed(t, tags, i) for i in range(len(weights))]
        self.cost = [0.0] * len(weights)
        for i in self.rows:
            if t.early[i] and not self.fixed[i] and not self.again[i]:  # others run once in any case
                self.cost[i] = cost(t, i)
        self.saveable = [w != INF for w in weights]
        self.read_late = [t.needed_late[i] or any(t.late[u] for u in t.users[i]) for i in range(len(weights))]
        self.free = [i for i in self.rows if self.fixed[i] and self.saveable[i] and self.weight[i] == 0]
        self._build()

    # ---------------------------------------------------------------- the network
    def _build(self) -> None:
        """Nodes: 0 is the source, 1 the sink; rows that are decided at each price are one with them.

        A row that one other alone reads is available where that one is computed again: their two nodes are one. Nodes
        are made from the last row to the first, and numbered from the first (`Flow`).
        """
        place: dict[int, tuple[int, int]] = {}
        count = 2
        for i in reversed(self.rows):
            into = 0 if self.fixed[i] else 1 if self.again[i] else -1
            readers = {place[u][0] for u in self.t.users[i] if u in place} - {0}
            out = 1 if self.read_late[i] or self.again[i] else readers.pop() if len(readers) == 1 else -1
            if not self.saveable[i]:  # computed again or not needed: one node
                if into == 0 and out == 1:
                    raise Infeasible
                into = out = into if into >= 0 else out
            if out < 0:
                out, count = count, count + 1
                into = into if self.saveable[i] else out
            if into < 0:
                into, count = count, count + 1
            place[i] = into, out
        number = [0, 1, *range(count - 1, 1, -1)]
        self.place = {i: (number[place[i][0]], number[place[i][1]]) for i in self.rows}
        self.count = count
        self.at: list[list[int]] = [[] for _ in range(count)]  # node -> rows
        for i, nodes in self.place.items():
            for n in set(nodes):
                self.at[n].append(i)
        self.edges: list[tuple[int, int, float, float]] = []  # from, to, bytes, cost
        for i in self.rows:
            into, out = self.place[i]
            if self.cost[i] > 0 and into > 0:
                self.edges.append((0, into, 0.0, self.cost[i]))
            if into != out:
                self.edges.append((into, out, self.weight[i], 0.0))
            for u in self.t.users[i]:
                if u in self.place and self.place[u][0] != out:
                    self.edges.append((out, self.place[u][0], 0.0, INF))

    def cut(self, price: float, low: Corner | None = None, high: Corner | None = None) -> Corner:
        """The cheapest partition at this price, of all those the one that computes least again.

        Args:
            low, high: partitions for a lower and for a higher price, between which the answer lies.

        Raises:
            Infeasible: no partition is possible.
        """
        name = list(range(self.count))
        for node in range(2, self.count):
            if low is not None and low.side[node]:
                name[node] = 1
            elif high is not None and not high.side[node]:
                name[node] = 0
        open_ = {n: k + 2 for k, n in enumerate(sorted({n for n in name if n > 1}))}
        open_ |= {0: 0, 1: 1}
        flow, edge = (made := Flow(len(open_), 0, 1)), made.edge
        for a, b, size, cost in self.edges:
            x, y = name[a], name[b]
            if x != y and x != 1 and y and (capacity := size * price + cost) > 0:
                edge(open_[x], open_[y], capacity)
        side = flow.sink_side()
        return self._corner(tuple([side[open_[n]] for n in name]))

    def _corner(self, side: tuple[bool, ...]) -> Corner:
        saved = tuple([i for i in self.rows if side[self.place[i][1]] and not side[self.place[i][0]]])
        again = [i for i in self.rows if side[self.place[i][0]]]
        return Corner(saved, self.bytes(saved), sum([self.cost[i] for i in again]), side)

    # ---------------------------------------------------------------- what a choice of saved rows costs
    def bytes(self, saved: Iterable[int]) -> int:
        """Bytes that saving these rows adds."""
        rows = [i for i in saved if self.saveable[i]]
        return int(sum([self.weight[i] if self.weight[i] < LAST_RESORT else self.t.size[i] for i in rows]))

    def computed_again(self, saved: Iterable[int]) -> set[int] | None:
        """What the backward computes again when these rows are saved; None when it cannot."""
        t, stop = self.t, set(saved)
        found: set[int] = set()
        todo = [i for i in self.rows if self.read_late[i]]
        while todo:
            i = todo.pop()
            if i in stop or i in found:
                continue
            if self.fixed[i]:
                return None
            found.add(i)
            todo.extend(t.ins[i])
        return found

    def price_of(self, saved: Sequence[int]) -> tuple[int, float] | None:
        """Bytes and cost of a choice; None when the backward cannot be computed from it."""
        again = self.computed_again(saved)
        return None if again is None else (self.bytes(saved), sum([self.cost[i] for i in again]))

    # ---------------------------------------------------------------- corners
    @cached_property
    def ends(self) -> tuple[Corner, Corner]:
        """The partition that computes nothing dear again, and the one that saves the fewest bytes."""
        low = self._first()
        return low, self.cut(2 * sum([c for c in self.cost if c > 0]) + 1.0, low=low)

    def _first(self) -> Corner:
        """The fewest bytes with nothing dear computed again: most rows follow from that without a flow (`flow.cut`)."""
        t = self.t
        dear = [fixed or cost > 0 for fixed, cost in zip(self.fixed, self.cost, strict=True)]
        again = [late or a for late, a in zip(t.late, self.again, strict=True)]
        needed = [n and not late for n, late in zip(t.needed_late, t.late, strict=True)]
        weight = [w if may else INF for w, may in zip(self.weight, self.saveable, strict=True)]
        try:
            saved = cut(t.rows, t.ins, t.users, weight, dear, again, needed)
        except Infeasible:  # something dear has to be computed again
            costs = [c for c in self.cost if c > 0]
            sizes = sum([w for w in self.weight if w not in (0.0, INF)])
            return self.cut(min(costs, default=1.0) / (2 * sizes + 2))
        run, have = self.computed_again(saved), set(saved)
        assert run is not None
        side = [False] * self.count
        for i in self.rows:
            into, out = self.place[i]
            side[into] |= i in run
            side[out] |= i in run or i in have
        side[0], side[1] = False, True
        return self._corner(tuple(side))

    def _middle(self, low: Corner, high: Corner) -> Corner | None:
        """A corner below the line between two: a cut at the price at which both cost the same."""
        if low.bytes <= high.bytes or high.cost <= low.cost:
            return None
        price = (high.cost - low.cost) / (low.bytes - high.bytes)
        middle = self.cut(price, low, high)
        line = low.cost + price * low.bytes
        below = middle.cost + price * middle.bytes < line - 1e-9 * abs(line)
        return middle if below and not _same(middle, low) and not _same(middle, high) else None

    def within(self, limit: int) -> Corner:
        """The best partition found with at most ``limit`` bytes.

        Raises:
            Infeasible: no partition is that small.
        """
        above, inside = self.ends
        if above.bytes <= limit:
            return above
        if inside.bytes > limit:
            raise Infeasible
        while inside.bytes < limit and (middle := self._middle(above, inside)) is not None:
            above, inside = (above, middle) if middle.bytes <= limit else (middle, inside)
        if inside.bytes == limit:  # nothing within the limit costs less than a corner of so many bytes
            return inside
        found = [inside.saved, *[self._give_up(start, limit) for start in dict.fromkeys((above, self.ends[0]))]]
        return min([self._filled(saved, limit) for saved in found], key=lambda c: (c.cost, c.bytes, c.saved))

    # ---------------------------------------------------------------- between the corners
    def _lone_cost(self, i: int, saved: set[int]) -> float:
        """What giving up ``i`` costs while all others stay; infinite if it cannot be computed again."""
        found: set[int] = set()
        todo = [i]
        while todo:
            x = todo.pop()
            if x in found or (x in saved and x != i):
                continue
            if self.fixed[x]:
                return INF
            found.add(x)
            todo.extend(self.t.ins[x])
        return sum([self.cost[x] for x in found])

    def _give_up(self, start: Corner, limit: int) -> tuple[int, ...]:
        """Give up saved values until the rest is within the limit, at the least sum of lone costs."""
        saved = {*start.saved, *self.free}
        items = [(i, self.weight[i], self._lone_cost(i, saved)) for i in start.saved if self.weight[i] >= 1]
        items = [row for row in items if row[2] < INF]
        room = limit - start.bytes + sum([size for _, size, _ in items])
        kept = set(most_gain([(size, cost) for _, size, cost in items], room))
        return tuple(sorted(saved - {i for k, (i, _, _) in enumerate(items) if k not in kept}))

    def _filled(self, saved: tuple[int, ...], limit: int) -> Corner:
        """With more values, those that spare most for their bytes, as long as there is room. Too large: infinite cost."""
        size, cost = self.price_of(saved) or (0, INF)
        if size > limit or cost == INF:
            return Corner(saved, size, INF, ())
        again = self.computed_again(saved) or set()
        options = [i for i in again if self.weight[i] >= 1 and self.saveable[i] and self.cost[i] > 0]
        for i in sorted(options, key=lambda i: (-self.cost[i] / self.weight[i], i))[:60]:
            more = tuple(sorted([*saved, i]))
            found = self.price_of(more) if self.weight[i] <= limit - size else None
            if found is not None and found[0] <= limit and found[1] < cost * (1 - 1e-12):
                saved, size, cost = more, *found
        return Corner(saved, size, cost, ())


def _is_fixed(t: Table, tags: Sequence[Any], i: int) -> bool:
    """Computed in the forward alone, at any price."""
    return t.is_placeholder(i) or tags[i] is MUST_SAVE or never_again(t, i)


def _is_number(value: object) -> bool:
    return not isinstance(value, torch.Tensor)


def _same(a: Corner, b: Corner) -> bool:
    return a.bytes == b.bytes and a.cost == b.cost


_UNITS = 8192


def most_gain(items: Sequence[tuple[float, float]], room: float) -> list[int]:
    """A knapsack: which (bytes, gain) items to take so that they fit in ``room`` and gain most. Bytes are
    rounded up to multiples of their greatest common divisor, or of 1/8192 of the room.

    >>> most_gain([(3, 5.0), (2, 3.0), (2, 3.0)], 4)
    [1, 2]
    """
    if room <= 0 or not items:
        return [k for k, (size, gain) in enumerate(items) if size <= 0 and gain > 0]
    unit = max(room / _UNITS, math.gcd(*[int(size) for size, _ in items]), 1)
    sizes, left = [int(-(-size // unit)) for size, _ in items], int(room // unit)
    best = torch.zeros(left + 1, dtype=torch.float64)  # by units of room
    taken: list[torch.Tensor] = []
    for size, (_, gain) in zip(sizes, items, strict=True):
        more = torch.full_like(best, -INF)
        more[size:] = best[: max(left + 1 - size, 0)] + gain
        taken.append(more > best)
        best = torch.maximum(best, more)
    chosen = []
    for k in reversed(range(len(items))):
        if taken[k][left]:
            chosen.append(k)
            left -= sizes[k]
    return sorted(chosen)
