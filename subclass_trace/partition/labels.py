"""Save, save packed, or compute again: one minimum cut with three ordered labels for each row.

A row is *computed again*, *exact* in the backward, or at least *available*, perhaps rounded; each implies the next.
Reading a row in the backward asks for the last; computing a row of the forward again from it asks for the exact value, so that
rounding errors never compound; views pass on what they are given. Saving exact cuts between the first two labels at the
row's weight, saving packed between the last two at its packed weight. Ordered labels with such costs are submodular,
which is why the best choice is still a minimum cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .budget import Hull
from .flow import INF, Flow, Infeasible
from .table import Table


def labelled_cut(
    t: Table,
    weights: Sequence[float],
    banned: Sequence[bool],
    again: Sequence[bool],
    needed: Sequence[bool],
    forms: Mapping[int, str],
    share: Mapping[int, float],
    transfer: Mapping[int, float],
    cost: Sequence[float] | None = None,
) -> tuple[list[int], dict[int, str]]:
    """The rows to save, and the form of those that are packed.

    Args:
        forms: row -> form that it may be packed in; ``share``: row -> packed bytes over bytes.
        transfer: row -> what its way to the CPU and back costs, or drawing it again, in the unit of the weights. These
            forms are exact.
        cost: per row, what computing it again costs in that unit. None: nothing.
        weights, banned, again, needed: see `flow.cut`.

    Raises:
        Infeasible: no cut of finite weight.
    """
    rows = [i for i in t.rows if not t.late[i]]
    place = {i: 3 * k for k, i in enumerate(rows)}
    source, sink = 3 * len(rows), 3 * len(rows) + 1
    flow = Flow(3 * len(rows) + 2, source, sink)

    def elsewhere(i: int) -> float:
        return weights[i] * share[i] + transfer[i] if i in transfer else INF

    for i in rows:
        first, exact, rough = place[i], place[i] + 1, place[i] + 2
        if t.view[i]:
            flow.edge(first, exact, INF)
        else:
            flow.edge(first, exact, min(weights[i], elsewhere(i)))
        rounded = i in forms and i not in transfer
        flow.edge(exact, rough, weights[i] * share[i] if rounded else 0.0 if t.view[i] else INF)
        flow.edge(exact, first, INF)
        flow.edge(rough, exact, INF)
        if banned[i]:
            flow.edge(source, first, INF)
        elif cost is not None and cost[i] > 0:
            flow.edge(source, first, cost[i])
        if again[i]:
            flow.edge(first, sink, INF)
        if needed[i]:
            flow.edge(exact, sink, INF)
        for u in t.users[i]:
            if u not in place:
                flow.edge(rough, sink, INF)
            elif t.view[u]:
                flow.edge(exact, place[u] + 1, INF)
                flow.edge(rough, place[u] + 2, INF)
            else:  # what the forward never runs belongs to the backward proper: it may read rounded values
                flow.edge(exact if t.early[u] else rough, place[u], INF)
    side = flow.sink_side()
    saved, packed = [], {}
    for i in rows:
        first, exact, rough = (side[place[i] + k] for k in range(3))
        if t.view[i] or first or not rough:
            continue
        saved.append(i)
        if i in forms and (not exact or elsewhere(i) < weights[i]):
            packed[i] = forms[i]
    return saved, packed


# ---------------------------------------------------------------------------------------------- within a limit
@dataclass(frozen=True)
class Choice:
    """Rows to save, the form of those that are packed, bytes on the device, and cost."""

    saved: tuple[int, ...]
    packed: Mapping[int, str]
    bytes: int
    cost: float


class PackedHull:
    """The same cut for a price per byte, with what computing again and transfers cost: partitions within a limit.

    Exact, packed and computed again are priced together, so a limit is reached by packing and by computing again at once.
    Corners of the lower hull of (bytes, cost) are found as `Hull` does. Equal layers would all change at one price, so the
    same is done with costs that rise a little from row to row. Then single values are added.
    """

    def __init__(
        self, hull: Hull, forms: Mapping[int, str], share: Mapping[int, float], transfer: Mapping[int, float]
    ) -> None:
        self.hull, self.forms, self.share, self.transfer = hull, forms, share, transfer
        t = hull.t
        self.needed = [w and not late for w, late in zip(t.needed_late, t.late, strict=True)]

    def cut(self, price: float, cost: Sequence[float]) -> Choice:
        """The cheapest partition at this price, when computing rows again costs this."""
        h = self.hull
        weights = [price * w if may else INF for w, may in zip(h.weight, h.saveable, strict=True)]
        rows, packed = labelled_cut(
            h.t, weights, h.fixed, h.again, self.needed, self.forms, self.share, self.transfer, cost
        )
        return self.choice(rows, packed, cost)

    def choice(self, rows: Sequence[int], packed: Mapping[int, str], cost: Sequence[float]) -> Choice:
        """Price a partition.

        Raises:
            Infeasible: the backward cannot be computed from it.
        """
        again = self.computed_again(rows, packed)
        moved = sum([self.transfer.get(i, 0.0) for i in packed])
        return Choice(tuple(rows), packed, self.bytes(rows, packed), sum([cost[i] for i in again]) + moved)

    def bytes(self, rows: Sequence[int], packed: Mapping[int, str]) -> int:
        """Bytes on the device."""
        exact = self.hull.bytes([i for i in rows if i not in packed])
        return exact + sum([round(self.hull.weight[i] * self.share[i]) for i in packed])

    def computed_again(self, rows: Sequence[int], packed: Mapping[int, str]) -> set[int]:
        """What the backward computes again. Only what belongs to the backward proper may read rounded values.

        Raises:
            Infeasible: something would have to be computed from a value that is not there.
        """
        h, t = self.hull, self.hull.t
        available = set(rows)
        exact = {i for i in available if i not in packed or i in self.transfer}
        found: set[int] = set()
        seen: set[tuple[int, bool]] = set()
        todo = [(i, self.needed[i]) for i in h.rows if h.read_late[i]]
        while todo:
            i, exactly = todo.pop()
            if i in (exact if exactly else available) or (i, exactly) in seen:
                continue
            seen.add((i, exactly))
            if h.fixed[i]:
                raise Infeasible(i)
            found.add(i)
            todo += [(x, exactly if t.view[i] else t.early[i]) for x in t.ins[i]]
        return found

    def least(self) -> int:
        """The fewest bytes that are possible."""
        return self._ends(self.hull.cost)[1].bytes

    def within(self, limit: int) -> Choice:
        """The best partition found with at most ``limit`` bytes (`least` or more)."""
        cost = self.hull.cost
        tilted = [c * (1 + 0.3 * i / len(cost)) for i, c in enumerate(cost)]
        found = [self._search(limit, cost), self._search(limit, tilted)]
        with contextlib.suppress(Infeasible):  # nothing packed
            found.append(self.choice(self.hull.within(limit).saved, {}, cost))
        best: Choice | None = min([self.choice(f.saved, f.packed, cost) for f in found], key=lambda c: c.cost)
        while best is not None:
            last, best = best, self._with_one_more(best, limit)
        return last

    def _ends(self, cost: Sequence[float]) -> tuple[Choice, Choice]:
        """The partition that computes nothing dear again, and the one with the fewest bytes."""
        dear = [c for c in (*cost, *self.transfer.values()) if c > 0]
        sizes = sum([w for w in self.hull.weight if w not in (0.0, INF)])
        return self.cut(min(dear, default=1.0) / (2 * sizes + 2), cost), self.cut(2 * sum(dear) + 1.0, cost)

    def _search(self, limit: int, cost: Sequence[float]) -> Choice:
        """The corner of the hull next to the limit."""
        low, high = self._ends(cost)
        if low.bytes <= limit:
            return low
        while low.bytes > high.bytes and high.cost > low.cost:
            price = (high.cost - low.cost) / (low.bytes - high.bytes)
            middle = self.cut(price, cost)
            line = low.cost + price * low.bytes
            if middle.cost + price * middle.bytes >= line - 1e-9 * abs(line):
                break
            low, high = (low, middle) if middle.bytes <= limit else (middle, high)
        return high

    def _with_one_more(self, now: Choice, limit: int) -> Choice | None:
        """Save one more value, the one that spares most for its bytes; None when none helps."""
        h = self.hull
        again = self.computed_again(now.saved, now.packed)
        rows = [i for i in again if h.cost[i] > 0 and h.saveable[i] and h.weight[i] >= 1 and i not in now.saved]
        rows.sort(key=lambda i: (-h.cost[i] / h.weight[i], i))
        for i in rows[:30]:
            saved = sorted([*now.saved, i])
            for packed in ({**now.packed, i: self.forms[i]}, now.packed) if i in self.forms else (now.packed,):
                if self.bytes(saved, packed) <= limit:
                    found = self.choice(saved, packed, h.cost)
                    if found.cost < now.cost * (1 - 1e-12):
                        return found
        return None
