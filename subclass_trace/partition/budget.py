"""Bytes against time: all good partitions of a joint graph by one parametric minimum cut, and the best within a limit.

For a price per saved byte, the cheapest partition is a minimum cut: source -> in(X): cost of computing X again;
in(X) -> out(X): price * bytes of X; out(X) -> in(Y): infinite, since computing Y again needs X; out(X) -> sink:
infinite where the backward reads X. Dividing all by the price makes only the edges of the source fall as the price
rises: the sink's sides are nested (Gallo, Grigoriadis and Tarjan), so each further cut is made in what is still open
between two known ones, and all corners of the lower hull of (bytes, cost) are found in few small flows.

The hull has no points between its corners. Those are found by a knapsack over saved values (`_drop`): starting from a
corner that is too large, the values that are cheapest to compute again are given up, each priced as if the others stayed;
what comes out is priced exactly, and the best candidate wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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
                    raise Infeasible(i)
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

    def corners(self) -> list[Corner]:
        """All corners of the lower hull, from most bytes to fewest."""
        low, high = self.ends
        return [low, *self._between(low, high), *([] if _same(low, high) else [high])]

    def _between(self, low: Corner, high: Corner) -> list[Corner]:
        middle = self._middle(low, high)
        if middle is None:
            return []
        return [*self._between(low, middle), middle, *self._between(middle, high)]

    def _middle(self, low: Corner, high: Corner) -> Corner | None:
        """A corner below the line between two: a cut at the price at which both cost the same."""
        if low.bytes <= high.bytes or high.cost <= low.cost:
            return None
        price = (high.cost - low.cost) / (low.bytes - high.bytes)
        middle = self.cut(price, low, high)
        line = low.cost + price * low.bytes
        below = middle.cost + price * middle.bytes < line - 1e-9 * abs(line)
        return middle if below and not _same(middle, low) and not _same(middle, high) else None

    def around(self, limit: int) -> tuple[list[Corner], list[Corner]]:
        """Corners above and within ``limit`` bytes, nearest first; both neighbours are found unless one is at the limit.

        Raises:
            Infeasible: no partition is that small.
        """
        low, high = self.ends
        if low.bytes <= limit:
            return [], [low]
        if high.bytes > limit:
            raise Infeasible(-1)
        above, inside = [low], [high]
        while inside[0].bytes < limit and (middle := self._middle(above[0], inside[0])) is not None:
            (inside if middle.bytes <= limit else above).insert(0, middle)
        return above, inside

    def within(self, limit: int) -> Corner:
        """The best partition found with at most ``limit`` bytes.

        Raises:
            Infeasible: no partition is that small.
        """
        above, inside = self.around(limit)
        best = inside[0]
        if not above or best.bytes == limit:  # nothing within the limit costs less than a corner of so many bytes
            return best
        price = (best.cost - above[0].cost) / (above[0].bytes - best.bytes)
        bound = best.cost - price * (limit - best.bytes)  # nothing is below the hull
        cost, size, saved = best.cost, best.bytes, best.saved
        for candidate in self._candidates(above, inside, limit):
            priced = self.price_of(candidate)
            if priced is not None and priced[0] <= limit:  # equal ones: the first rows, so that all ranks take the same
                cost, size, saved = min((cost, size, saved), (priced[1], priced[0], tuple(candidate)))
            if cost <= bound * (1 + 1e-9):
                break
        for _ in range(3):  # what is left of the limit
            more = self._fill(saved, limit)
            if more is None:
                break
            saved, size, cost = more
        return Corner(tuple(saved), size, cost, ())

    def _candidates(self, above: Sequence[Corner], inside: Sequence[Corner], limit: int) -> Iterator[list[int]]:
        """Partitions that may be within the limit. Corners farther away share less, so that there is more to choose."""
        pairs = [(x, y) for x in range(min(len(above), 3)) for y in range(min(len(inside), 3))]
        for x, y in sorted(pairs, key=sum):
            yield self._keep(inside[y], above[x], limit)
        for start in dict.fromkeys((above[0], self.ends[0])):
            dropped = self._drop(start, limit)
            if dropped is not None:
                yield dropped

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

    def _drop(self, start: Corner, limit: int) -> list[int] | None:
        """Give up saved values until the rest is within the limit, at the least sum of lone costs."""
        saved = {*start.saved, *self.free}
        items = [(i, self.weight[i], self._lone_cost(i, saved)) for i in start.saved if self.weight[i] >= 1]
        items = [row for row in items if row[2] < INF]
        chosen = least_cost_cover([(w, c) for _, w, c in items], start.bytes - limit)
        if chosen is None:
            return None
        gone = {items[k][0] for k in chosen}
        return sorted(saved - gone)

    def _keep(self, best: Corner, above: Corner, limit: int) -> list[int]:
        """From a corner within the limit towards the next one: independent parts of the difference, by a knapsack."""
        parts = self._parts(best, above)
        room = limit - best.bytes
        chosen = most_gain([self._difference(best, above, part) for part in parts], room)
        merged = set().union(*[parts[k] for k in chosen]) if chosen else set()
        side = [above.side[n] if n in merged else best.side[n] for n in range(self.count)]
        return list(self._corner(tuple(side)).saved)

    def _difference(self, best: Corner, above: Corner, part: set[int]) -> tuple[float, float]:
        """Bytes more and cost less where these nodes are treated as by ``above``."""
        size = gain = 0.0
        for i in {i for n in part for i in self.at[n]}:
            into, out = self.place[i]
            for corner, sign in ((best, -1), (above, 1)):
                again = (corner if into in part else best).side[into]
                gain -= sign * again * self.cost[i]
                if (corner if out in part else best).side[out] and not again:
                    size += sign * self.bytes((i,))
        return size, gain

    def _parts(self, best: Corner, above: Corner) -> list[set[int]]:
        """Connected groups of the rows that the two corners treat differently."""
        differ = {n for n in range(2, self.count) if best.side[n] != above.side[n]}
        root = {n: n for n in differ}

        def find(n: int) -> int:
            while root[n] != n:
                root[n] = root[root[n]]
                n = root[n]
            return n

        for a, b, _, _ in self.edges:
            if a in differ and b in differ:
                root[find(a)] = find(b)
        groups: dict[int, set[int]] = {}
        for n in sorted(differ):
            groups.setdefault(find(n), set()).add(n)
        return list(groups.values())

    def _fill(self, saved: Sequence[int], limit: int) -> tuple[tuple[int, ...], int, float] | None:
        """Save one more value, the one that spares most for its bytes; None when none helps."""
        priced = self.price_of(saved)
        again = self.computed_again(saved)
        if priced is None or again is None:
            return None
        room, before = limit - priced[0], priced[1]
        options = [i for i in again if 1 <= self.weight[i] <= room and self.saveable[i] and self.cost[i] > 0]
        options.sort(key=lambda i: (-self.cost[i] / self.weight[i], i))
        for i in options[:30]:
            found = self.price_of([*saved, i])
            if found is not None and found[1] < before * (1 - 1e-12) and found[0] <= limit:
                return tuple(sorted([*saved, i])), found[0], found[1]
        return None


def _is_fixed(t: Table, tags: Sequence[Any], i: int) -> bool:
    """Computed in the forward alone, at any price."""
    return t.is_placeholder(i) or tags[i] is MUST_SAVE or never_again(t, i)


def _is_number(value: object) -> bool:
    return not isinstance(value, torch.Tensor)


def _same(a: Corner, b: Corner) -> bool:
    return a.bytes == b.bytes and a.cost == b.cost


# ---------------------------------------------------------------------------------------------- knapsacks
_UNITS = 8192


def most_gain(items: Sequence[tuple[float, float]], room: float) -> list[int]:
    """Which (bytes, gain) items to take so that they fit in ``room`` and gain most. Bytes are
    rounded up to multiples of their greatest common divisor, or of 1/8192 of the room.

    >>> most_gain([(3, 5.0), (2, 3.0), (2, 3.0)], 4)
    [1, 2]
    """
    if room <= 0 or not items:
        return [k for k, (size, gain) in enumerate(items) if size <= 0 and gain > 0]
    unit = max(room / _UNITS, math.gcd(*[int(size) for size, _ in items]), 1)
    return _knapsack([(int(-(-size // unit)), gain) for size, gain in items], int(room // unit))


def least_cost_cover(items: Sequence[tuple[float, float]], need: float) -> list[int] | None:
    """Which (bytes, cost) items to give up so that ``need`` bytes go at the least cost; None if all are too few.

    >>> least_cost_cover([(3, 5.0), (2, 3.0), (2, 1.0)], 4)
    [1, 2]
    """
    total = sum([size for size, _ in items])
    if total < need:
        return None
    kept = set(most_gain(items, total - need))  # what stays is the complement
    return [k for k in range(len(items)) if k not in kept]


def _knapsack(items: Sequence[tuple[int, float]], room: int) -> list[int]:
    """0/1 knapsack over whole units; equal items are taken in bundles of 1, 2, 4, ..."""
    bundles: list[tuple[int, float, list[int]]] = []
    groups: dict[tuple[int, float], list[int]] = {}
    for k, item in enumerate(items):
        groups.setdefault(item, []).append(k)
    for (size, gain), members in groups.items():
        step = 1
        while members:
            taken, members = members[:step], members[step:]
            bundles.append((size * len(taken), gain * len(taken), taken))
            step *= 2
    best = torch.zeros(room + 1, dtype=torch.float64)
    took: list[torch.Tensor | None] = []
    for size, gain, _ in bundles:
        if size > room or gain <= 0:
            took.append(None)
            continue
        moved = torch.full_like(best, -INF)
        moved[size:] = best[: room + 1 - size] + gain
        took.append(moved > best)
        best = torch.maximum(best, moved)
    left, chosen = int(best.argmax()), []
    for (size, _, members), took_it in zip(reversed(bundles), reversed(took), strict=True):
        if took_it is not None and bool(took_it[left]):
            chosen += members
            left -= size
    return sorted(chosen)
