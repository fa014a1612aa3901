"""Where copies to the CPU and back stand in a graph.

Forward: a copy begins right after its value is computed. When as many are under way as may be, the computation waits for
the oldest before the next begins, and what is left is waited for at the end.

Backward: values come back in the order of their first uses. The first copies begin at once, each later one when an
earlier value is first used; the computation waits for a value right before its first use, and that wait names the copies
that have begun, so that no compiler delays them.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.fx as fx

from .transfers import Offload, operations


def begin_offload(graph: fx.Graph, node: fx.Node, offload: Offload) -> fx.Node:
    """Append the end of a copy to the CPU, which begins right after ``node``."""
    with graph.inserting_after(node):
        host = _call(graph, operations().offload, node, offload.streams or "")
    return _call(graph, operations().wait, host, [node])


def begin_reload(graph: fx.Graph, node: fx.Node, device: torch.device, offload: Offload) -> fx.Node:
    """Append a copy to the device and its end. `arrange` separates the two."""
    return _call(graph, operations().wait, _call(graph, operations().reload, node, device, offload.streams or ""), [])


def arrange(graph: fx.Graph, offload: Offload) -> None:
    """Put the ends of copies to the CPU, and both ends of copies back, where they belong (changes the graph)."""
    _end_offloads(graph, offload)
    _place_reloads(graph, offload)


def _call(graph: fx.Graph, op: Any, *args: Any) -> fx.Node:
    node = graph.call_function(op, args)
    values: Any = fx.node.map_arg(args, lambda n: n.meta["val"])
    with values[0].fake_mode:
        node.meta["val"] = op(*values)
    return node


def _bytes(node: fx.Node) -> int:
    value: torch.Tensor = node.meta["val"]
    return value.numel() * value.dtype.itemsize


def _copies(graph: fx.Graph, kind: object) -> list[tuple[fx.Node, fx.Node]]:
    """Each copy of a kind with its wait."""
    waits = [n for n in graph.nodes if n.op == "call_function" and n.target is operations().wait]
    pairs = [(n.args[0], n) for n in waits]
    return [(copy, n) for copy, n in pairs if isinstance(copy, fx.Node) and copy.target is kind]


class _Window:
    """The copies that are under way."""

    def __init__(self, offload: Offload) -> None:
        self.offload = offload
        self.bytes = 0
        self.under_way: deque[fx.Node] = deque()

    def admits(self, copy: fx.Node) -> bool:
        if not self.under_way:
            return True
        fits = self.bytes + _bytes(copy) <= self.offload.in_flight_bytes
        return fits and len(self.under_way) < self.offload.in_flight

    def begin(self, copy: fx.Node) -> None:
        self.under_way.append(copy)
        self.bytes += _bytes(copy)

    def end(self) -> fx.Node:
        copy = self.under_way.popleft()
        self.bytes -= _bytes(copy)
        return copy


def _end_offloads(graph: fx.Graph, offload: Offload) -> None:
    window = _Window(offload)
    place = {n: k for k, n in enumerate(graph.nodes)}
    waits = dict(_copies(graph, operations().offload))
    for copy in sorted(waits, key=place.__getitem__):
        while not window.admits(copy):
            copy.prepend(waits[window.end()])
        window.begin(copy)


def _place_reloads(graph: fx.Graph, offload: Offload) -> None:
    uses = _by_first_use(graph, _copies(graph, operations().reload))
    todo = deque(copy for copy, _, _ in uses)
    window = _Window(offload)

    def begin(place: fx.Node, most: int) -> None:
        while todo and len(window.under_way) < most and window.admits(todo[0]):
            place.prepend(todo[0])
            window.begin(todo.popleft())

    if todo:  # the first copies wait for no use
        ours = (operations().reload, operations().wait)
        start = next(n for n in graph.nodes if n.op != "placeholder" and n.target not in ours)
        begin(start, max(offload.in_flight - 1, 1))
    for _, wait, user in uses:
        begin(user, offload.in_flight)
        wait.args = (window.end(), list(window.under_way))
        user.prepend(wait)


def _by_first_use(graph: fx.Graph, pairs: list[tuple[fx.Node, fx.Node]]) -> list[tuple[fx.Node, fx.Node, fx.Node]]:
    """Copy, wait and first user, in the order of the users. Copies that nobody uses are erased."""
    place = {n: k for k, n in enumerate(graph.nodes)}
    rows = []
    for copy, wait in pairs:
        if wait.users:
            rows.append((copy, wait, min(wait.users, key=place.__getitem__)))
        else:
            graph.erase_node(wait)
            graph.erase_node(copy)
    return sorted(rows, key=lambda row: place[row[2]])
