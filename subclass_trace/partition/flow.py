"""A minimum cut between what the forward has computed and what the backward must have.

Each row is split in two: *in* (it is computed) and *out* (it is available in the backward). Cutting
between them means saving the row, at its weight. A row on the sink's side with both halves is
recomputed.

Most rows are decided before any flow is sent: what a banned row feeds, and what the backward reads.
Only the rest becomes a network. Of all minimum cuts the one nearest to the sink is taken, which is
unique (and the one that torch's
``networkx.minimum_cut`` gives): the answer depends on the graph alone, so that all ranks find the
same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

INF = math.inf


class Infeasible(Exception):
    """A row can be neither saved nor recomputed."""


def cut(
    rows: Sequence[int],
    ins: Sequence[Sequence[int]],
    users: Sequence[Sequence[int]],
    weight: Sequence[float],
    banned: Sequence[bool],
    recomputed: Sequence[bool],
    needed: Sequence[bool],
    cost: Sequence[float] | None = None,
) -> list[int]:
    """The rows to save, in order.

    Args:
        rows: numbers of the rows, in topological order.
        weight: price of saving a row; infinite if it cannot be saved.
        banned: computed in the forward alone; ``recomputed``: computed in the backward; ``needed``:
            available in it.
        cost: price of recomputing a row; None: nothing.

    Raises:
        Infeasible: no cut of finite weight.
    """
    source_in, sink_in, sink_out = _forced(rows, ins, users, weight, banned, recomputed, needed)
    reached, reaching = [False] * len(weight), [False] * len(weight)
    for i in rows:
        if not sink_in[i]:
            priced = cost is not None and cost[i] > 0
            reached[i] = (
                source_in[i] or priced or any(reached[x] and not sink_out[x] for x in ins[i])
            )
    for i in reversed(rows):
        reaching[i] = sink_out[i] or any(reaching[u] and not source_in[u] for u in users[i])
    saved = [i for i in rows if source_in[i] and sink_out[i] and not sink_in[i]]
    open_ = [
        i
        for i in rows
        if reached[i] and reaching[i] and not sink_in[i] and not (source_in[i] and sink_out[i])
    ]
    if not open_:
        return saved

    place = {i: k for k, i in enumerate(open_)}
    source, sink = 2 * len(open_), 2 * len(open_) + 1
    flow = Flow(sink + 1, source, sink)
    for i, k in place.items():
        if cost is not None and cost[i] > 0 and not source_in[i]:
            flow.edge(source, 2 * k, cost[i])
        flow.edge(source if source_in[i] else 2 * k, sink if sink_out[i] else 2 * k + 1, weight[i])
        if not sink_out[i]:
            for u in users[i]:
                if u in place and not source_in[u]:
                    flow.edge(2 * k + 1, 2 * place[u], INF)
    side = flow.sink_side()
    for i, k in place.items():
        if (sink_out[i] or side[2 * k + 1]) and (source_in[i] or not side[2 * k]):
            saved.append(i)
    return sorted(saved)


def _forced(
    rows: Sequence[int],
    ins: Sequence[Sequence[int]],
    users: Sequence[Sequence[int]],
    weight: Sequence[float],
    banned: Sequence[bool],
    recomputed: Sequence[bool],
    needed: Sequence[bool],
) -> tuple[list[bool], list[bool], list[bool]]:
    """What follows without a choice: rows that the forward alone computes, rows that the backward
    computes, and those that it needs.

    Raises:
        Infeasible: a row that cannot be saved is both.
    """
    source_in, source_out = list(banned), [False] * len(weight)
    sink_in, sink_out = list(recomputed), list(needed)
    for i in rows:
        if not sink_in[i]:
            if not source_in[i] and any(source_out[x] for x in ins[i]):
                source_in[i] = True
            if source_in[i] and weight[i] == INF:
                source_out[i] = True
    for i in reversed(rows):
        if sink_in[i]:
            sink_out[i] = True
            continue
        if any(sink_in[u] for u in users[i]):
            sink_out[i] = True
        if sink_out[i] and weight[i] == INF:
            if source_in[i]:
                raise Infeasible
            sink_in[i] = True
    return source_in, sink_in, sink_out


class Flow:
    """Maximum flow by Dinic's algorithm, on flat lists: edge ``e`` and its reverse ``e ^ 1``.

    Distances are counted from the sink, so that a path is never led astray: the source has an edge
    to most nodes, the sink to few. The last count, which does not reach the source, is the cut
    nearest to the sink.

    Nodes are numbered in the order of a joint graph, where paths are long and of many lengths, each
    a round of Dinic's. So the first round takes any path of rising numbers, whatever its length:
    that leaves 1 to 5 rounds of 3 to 13.

    >>> flow = Flow(3, source=0, sink=2)
    >>> flow.edge(0, 1, 5.0); flow.edge(1, 2, 3.0)
    >>> flow.sink_side()
    [False, False, True]
    """

    def __init__(self, count: int, source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        self.out: list[list[int]] = [[] for _ in range(count)]
        self.head: list[int] = []
        self.room: list[float] = []

    def edge(self, a: int, b: int, capacity: float) -> None:
        """Add an edge from ``a`` to ``b``."""
        number = len(self.head)
        self.head += (b, a)
        self.room += (capacity, 0.0)
        self.out[a].append(number)
        self.out[b].append(number + 1)

    def sink_side(self) -> list[bool]:
        """For each node: on the sink's side of the minimum cut nearest to the sink.

        Raises:
            Infeasible: a path of infinite capacity leads from source to sink.
        """
        falling = [len(self.out) - x for x in range(len(self.out))]
        falling[self.source], falling[self.sink] = len(self.out) + 1, 0
        self._block(falling)
        while (steps := self._steps())[self.source] >= 0:
            self._block(steps)
        return [n >= 0 for n in steps]

    def _steps(self) -> list[int]:
        """Steps to the sink along edges with room; -1 for nodes without a way, or farther than the
        source."""
        steps = [-1] * len(self.out)
        steps[self.sink] = 0
        front = [self.sink]
        head, room, out = self.head, self.room, self.out
        count = 0
        while front and steps[self.source] < 0:
            count += 1
            reached = []
            for x in front:
                for e in out[x]:
                    y = head[e]
                    if steps[y] < 0 and room[e ^ 1] > 0:
                        steps[y] = count
                        reached.append(y)
            front = reached
        return steps

    def _block(self, steps: list[int]) -> None:
        """Send flow along paths on which ``steps`` fall until none is left: depth first, with an
        explicit path."""
        head, room, out, sink = self.head, self.room, self.out, self.sink
        following = [0] * len(out)
        path: list[int] = []
        x = self.source
        while True:
            if x == sink:
                amount = min([room[e] for e in path])
                if amount == INF:
                    raise Infeasible
                full = len(path)
                for k in range(len(path) - 1, -1, -1):
                    e = path[k]
                    room[e] -= amount
                    room[e ^ 1] += amount
                    if room[e] <= 0:
                        full = k
                x = head[path[full] ^ 1]
                del path[full:]
                continue
            edges, k, here = out[x], following[x], steps[x]
            count = len(edges)
            while k < count and not (0 <= steps[head[edges[k]]] < here and room[edges[k]] > 0):
                k += 1
            following[x] = k
            if k < count:
                path.append(edges[k])
                x = head[edges[k]]
            elif path:
                x = head[path.pop() ^ 1]
                following[x] += 1
            else:
                return
