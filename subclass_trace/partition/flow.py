"""A minimum cut between what the forward has computed and what the backward must have.

Each row is split in two: *in* (it is computed) and *out* (it is available in the backward). Cutting between them means
saving the row, at its weight. A row on the sink's side with both halves is computed again.

Most rows are decided before any flow is sent: what a banned row feeds, and what the backward reads. Only the rest
becomes a network. Of all minimum cuts the one nearest to the sink is taken, which is unique (and the one that torch's
``networkx.minimum_cut`` gives): the answer depends on the graph alone, so that all ranks find the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

INF = math.inf


class Infeasible(Exception):
    """A row can be neither saved nor computed again."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def cut(
    rows: Sequence[int],
    ins: Sequence[Sequence[int]],
    users: Sequence[Sequence[int]],
    weight: Sequence[float],
    banned: Sequence[bool],
    again: Sequence[bool],
    needed: Sequence[bool],
) -> list[int]:
    """The rows to save, in order.

    Args:
        rows: numbers of the rows, in topological order.
        weight: price of saving a row; infinite if it cannot be saved.
        banned: computed in the forward alone; ``again``: computed in the backward; ``needed``: available in it.

    Raises:
        Infeasible: no cut of finite weight.
    """
    count = len(weight)
    source_in, source_out = list(banned), [False] * count
    sink_in, sink_out = list(again), list(needed)
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
                raise Infeasible(i)
            sink_in[i] = True
    saved = [i for i in rows if source_in[i] and sink_out[i] and not sink_in[i]]
    network = _Network(rows, ins, users, weight, (source_in, sink_in, sink_out))
    return sorted(saved + network.cut()) if network.open else saved


class _Network:
    """What is still open: rows that a source reaches and that reach a sink."""

    def __init__(
        self,
        rows: Sequence[int],
        ins: Sequence[Sequence[int]],
        users: Sequence[Sequence[int]],
        weight: Sequence[float],
        decided: tuple[list[bool], list[bool], list[bool]],
    ) -> None:
        self.users, self.weight = users, weight
        self.source_in, self.sink_in, self.sink_out = source_in, sink_in, sink_out = decided
        reached, reaching = [False] * len(weight), [False] * len(weight)
        for i in rows:
            if not sink_in[i]:
                reached[i] = source_in[i] or any(reached[x] and not sink_out[x] for x in ins[i])
        for i in reversed(rows):
            reaching[i] = sink_out[i] or any(reaching[u] and not source_in[u] for u in users[i])
        self.open = [
            i for i in rows if reached[i] and reaching[i] and not sink_in[i] and not (source_in[i] and sink_out[i])
        ]

    def cut(self) -> list[int]:
        place = {i: k for k, i in enumerate(self.open)}
        count = len(self.open)
        source, sink = 2 * count, 2 * count + 1
        flow = Flow(2 * count + 2, source, sink)
        for i, k in place.items():
            start = source if self.source_in[i] else 2 * k
            end = sink if self.sink_out[i] else 2 * k + 1
            flow.edge(start, end, self.weight[i])
            if not self.sink_out[i]:
                for u in self.users[i]:
                    if u in place and not self.source_in[u]:
                        flow.edge(2 * k + 1, 2 * place[u], INF)
        side = flow.sink_side()
        saved = []
        for i, k in place.items():
            into = not self.source_in[i] and side[2 * k]
            out = self.sink_out[i] or side[2 * k + 1]
            if out and not into:
                saved.append(i)
        return saved


class Flow:
    """Maximum flow by Dinic's algorithm, on flat lists: edge ``e`` and its reverse ``e ^ 1``.

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
            Infeasible: a path of infinite capacity leads from source to sink (the row is not known here: -1).
        """
        while (level := self._levels()) is not None:
            self._block(level)
        side = [False] * len(self.out)
        side[self.sink] = True
        todo = deque([self.sink])
        while todo:
            x = todo.popleft()
            for e in self.out[x]:
                y = self.head[e]
                if not side[y] and self.room[e ^ 1] > 0:
                    side[y] = True
                    todo.append(y)
        return side

    def _levels(self) -> list[int] | None:
        """Steps from the source along edges with room; None when the sink is out of reach."""
        level = [-1] * len(self.out)
        level[self.source] = 0
        todo = deque([self.source])
        head, room = self.head, self.room
        while todo:
            x = todo.popleft()
            step = level[x] + 1
            for e in self.out[x]:
                y = head[e]
                if level[y] < 0 and room[e] > 0:
                    level[y] = step
                    if y == self.sink:
                        return level
                    todo.append(y)
        return None

    def _block(self, level: list[int]) -> None:
        """Send flow along shortest paths until none is left: depth first, with an explicit path."""
        head, room, out = self.head, self.room, self.out
        following = [0] * len(out)
        path: list[int] = []
        x = self.source
        while True:
            if x == self.sink:
                amount = min([room[e] for e in path])
                if amount == INF:
                    raise Infeasible(-1)
                for e in path:
                    room[e] -= amount
                    room[e ^ 1] += amount
                full = next(k for k, e in enumerate(path) if room[e] <= 0)
                x = head[path[full] ^ 1]
                del path[full:]
                continue
            edges, k, step = out[x], following[x], level[x] + 1
            while k < len(edges) and not (room[edges[k]] > 0 and level[head[edges[k]]] == step):
                k += 1
            following[x] = k
            if k < len(edges):
                path.append(edges[k])
                x = head[edges[k]]
            elif path:
                x = head[path.pop() ^ 1]
                following[x] += 1
            else:
                return
