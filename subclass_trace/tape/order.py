"""In which order the eager engine would run the nodes of a tape.

The engine keeps ready nodes in a priority queue: the node that the forward made last comes first,
and a leaf's AccumulateGrad before everything. C++ captures nodes in another order (depth first), so
hooks would run, and three or more gradients for one place would be added, in another order than
eager's. Here the capture's walk is repeated on the autograd graph itself, which gives each captured
node its sequence number, and then the engine's queue is played.

    >>> engine_order({0: [1, 2], 1: [3], 2: [3], 3: []}, {0: 9, 1: 5, 2: 7, 3: 1})
    [0, 2, 1, 3]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..capture.tape import nodes_behind
from ..torch_api import tape as _door
from ..torch_api.autograd import node_sequence_number

LEAF = 2**64 - 1  # the sequence number of an AccumulateGrad


@dataclass(frozen=True, eq=False)
class Walked:
    """The autograd graph under a backward call, in the order in which C++ captures it.

    Attributes:
        nodes: number -> node; number 0 is the engine's root, which Python does not see: None.
        following: number -> the nodes that its gradients go to, in order.
    """

    nodes: tuple[Any, ...]
    following: Mapping[int, Sequence[int]]


def walk(roots: Sequence[Any], only: Sequence[Any] | None) -> Walked:
    """Walk from ``roots`` (tensors or gradient edges) as C++ does.

    Args:
        only: the tensors or edges whose gradients were asked for; None for all leaves.
    """
    starts = [_door.gradient_node_of(r) for r in roots]
    edges = {node: [*_door.walk_next(node)] for node in nodes_behind(starts, [])}
    if only is not None:
        wanted = {_door.gradient_node_of(t) for t in only}
        for node in reversed(_played({None: starts, **edges}, [None])[1:]):
            if not wanted.isdisjoint(edges[node]):
                wanted.add(node)
        edges = {
            n: [f for f in following if f in wanted]
            for n, following in edges.items()
            if n in wanted
        }
        starts = [s for s in starts if s in wanted]
    order = _played({None: starts, **edges}, [None])
    number = {node: k for k, node in enumerate(order)}
    following = {0: [number[s] for s in starts]}
    following |= {number[n]: [number[f] for f in edges[n]] for n in order[1:]}
    return Walked(tuple(order), following)


def _played(following: Mapping[Any, Sequence[Any]], ready: Any) -> list[Any]:
    """The nodes in the order in which ``ready``, a stack or a queue with the first node, gives them
    back: a node comes to it when all that lead to it have run.
    """
    missing = Counter(node for targets in following.values() for node in targets)
    order: list[Any] = []
    while ready:
        node = ready.pop()
        order.append(node)
        for after in following[node]:
            missing[after] -= 1
            if not missing[after]:
                ready.append(after)
    return order


def engine_order(following: Mapping[int, Sequence[int]], priority: Mapping[int, int]) -> list[int]:
    """The numbers of all nodes in the order in which the engine runs them; node 0 is the root."""
    queue = _Queue(priority)
    queue.append(0)
    return _played(following, queue)


class _Queue:
    """``std::priority_queue`` of libstdc++, because its order among equals shows: all leaves have
    one priority."""

    def __init__(self, priority: Mapping[int, int]) -> None:
        self.priority, self.heap = priority, list[tuple[int, int]]()

    def __len__(self) -> int:
        return len(self.heap)

    def append(self, value: int) -> None:
        item = self.priority[value], value
        self.heap.append(item)
        self._up(len(self.heap) - 1, item)

    def _up(self, hole: int, item: tuple[int, int]) -> None:
        heap = self.heap
        while hole and heap[(hole - 1) // 2][0] < item[0]:
            heap[hole] = heap[(hole - 1) // 2]
            hole = (hole - 1) // 2
        heap[hole] = item

    def pop(self) -> int:
        heap = self.heap
        top, item = heap[0], heap.pop()
        if heap:
            hole, size = 0, len(heap)
            child = 2
            while child < size:  # the hole sinks to the bottom along the larger children
                if heap[child][0] < heap[child - 1][0]:
                    child -= 1
                heap[hole], hole = heap[child], child
                child = 2 * hole + 2
            if child == size:
                heap[hole], hole = heap[child - 1], child - 1
            self._up(hole, item)
        return top[1]


def priorities(nodes: Sequence[Any]) -> dict[int, int]:
    """Number -> sequence number of the nodes of a walk."""
    return {k: 0 if n is None else node_sequence_number(n) for k, n in enumerate(nodes)}
