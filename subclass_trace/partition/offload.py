"""Saved activations on the CPU: copies beside the computation, the streams behind them, and their places in a graph.

    subclass_trace::offload(x) -> host          a copy to pinned memory begins, on a stream of its own
    subclass_trace::reload(host, device) -> x   a copy back begins
    subclass_trace::wait(y, others) -> y        what reads y from here on comes after the copy that fills it

Order is in the data: nothing but the result of a ``wait`` is read, and ``others`` is what has to be alive, or begun, until
then. So a compiler that knows nothing of streams may move these nodes, and reuse memory by last uses: the memory that is
copied from is held by a ``wait`` (`record_stream` would protect it from the allocator, not from the compiler), and the
memory that is copied to belongs to the stream of the computation, whose earlier work the copy waits for.

The streams are those of ``torch.get_device_module``, or of a module that `register_streams` named.

Forward: a copy begins right after its value is computed. When as many are under way as may be, the computation waits for
the oldest before the next begins, and what is left is waited for at the end. Backward: values come back in the order of
their first uses. The first copies begin at once, each later one when an earlier value is first used; the computation waits
for a value right before its first use, and that wait names the copies that have begun, so that no compiler delays them.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.fx as fx

from ..errors import OptionError

Tensor = torch.Tensor


class Streams(Protocol):
    """What is used of a device module such as ``torch.cuda``."""

    def Stream(self, device: torch.device) -> Any:
        """A new stream, which has ``wait_stream`` and ``wait_event``."""

    def Event(self) -> Any:
        """A new event, which has ``record``."""

    def current_stream(self, device: torch.device) -> Any:
        """The stream that the computation runs on."""

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """A context whose work is enqueued on ``stream``."""


@dataclass(frozen=True)
class Offload:
    """How activations go to the CPU and come back.

    Attributes:
        in_flight: how many copies are under way at a time. In the backward the copy of a value begins when the one that
            is used ``in_flight - 1`` values earlier is first used; 1 means no overlap there.
        streams: None for the device's own; or a name from `register_streams`.
    """

    in_flight: int = 2
    streams: str | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            OptionError: a value out of range, or an unknown name.
        """
        if type(self.in_flight) is not int or self.in_flight < 1:
            raise OptionError(
                "in_flight is out of range", path="Offload.in_flight", expected="1 or more", got=repr(self.in_flight)
            )
        if self.streams is not None and self.streams not in _named:
            raise OptionError(
                f"there are no streams {self.streams!r}",
                path="Offload.streams",
                expected=f"None, or one of {sorted(_named)}",
                got=repr(self.streams),
                fix="name them by register_streams first",
            )


_named: dict[str, Streams] = {}
#: one copy ahead of the computation
ONE_AHEAD = Offload()
#: (name of the streams, device) -> the stream of all its copies
_sides: dict[tuple[str, torch.device], Any] = {}


@dataclass(frozen=True, eq=False)
class _Pending:
    """A copy that nobody waited for yet."""

    event: Any
    streams: Streams
    device: torch.device


#: by the memory that a copy fills. A wait takes its entry; a copy that is never waited for leaves one until the next to
#: the same memory.
_pending: dict[int, _Pending] = {}


def register_streams(name: str, streams: Streams) -> None:
    """Let ``Offload(streams=name)`` use these, for devices that torch has no module for. The name ends up in graphs."""
    _named[name] = streams
    for key in [k for k in _sides if k[0] == name]:
        del _sides[key]


@dataclass(frozen=True)
class Operations:
    """The three operations, as targets of graph nodes."""

    offload: Any
    reload: Any
    wait: Any


_library: list[Any] = []  # what is registered lasts as long as this object


@functools.cache
def operations() -> Operations:
    """The operations, registered on the first call."""
    library: Any = torch.library.Library("subclass_trace", "FRAGMENT")  # type: ignore[no-untyped-call]
    _library.append(library)
    rows = (
        ("offload", "(Tensor x, str streams) -> Tensor", _offload, _offload_fake),
        ("reload", "(Tensor host, Device device, str streams) -> Tensor", _reload, _reload_fake),
        ("wait", "(Tensor(a) x, Tensor[] others) -> Tensor(a)", _wait, _wait_fake),
    )
    for name, schema, real, fake in rows:
        library.define(name + schema)
        library.impl(name, real, "CompositeExplicitAutograd")
        torch.library.register_fake(f"subclass_trace::{name}", fake, lib=library)
    namespace = torch.ops.subclass_trace
    return Operations(namespace.offload.default, namespace.reload.default, namespace.wait.default)


# ---------------------------------------------------------------------------------------------- real tensors
def _streams(name: str, device: torch.device) -> tuple[Streams, Any]:
    """The device module, and its stream for copies."""
    module: Any = _named[name] if name else torch.get_device_module(device)
    side = _sides.get((name, device))
    if side is None:
        side = _sides[name, device] = module.Stream(device=device)
    return module, side


def _begin(target: Tensor, source: Tensor, device: torch.device, name: str) -> None:
    """Copy on the side stream, after all that the computation has enqueued until now."""
    streams, side = _streams(name, device)
    side.wait_stream(streams.current_stream(device))
    event = streams.Event()
    with torch.no_grad(), streams.stream(side):
        target.copy_(source, non_blocking=True)
        event.record(side)
    _pending[target.untyped_storage().data_ptr()] = _Pending(event, streams, device)


def _offload(x: Tensor, streams: str) -> Tensor:
    host = torch.empty_like(x, device="cpu", pin_memory=x.device.type != "cpu")
    _begin(host, x, x.device, streams)
    return host


def _reload(host: Tensor, device: torch.device, streams: str) -> Tensor:
    x = torch.empty_like(host, device=device, pin_memory=False)
    _begin(x, host, x.device, streams)
    return x


def _wait(x: Tensor, others: Sequence[Tensor]) -> Any:
    pending = _pending.pop(x.untyped_storage().data_ptr(), None)
    if pending is not None:
        pending.streams.current_stream(pending.device).wait_event(pending.event)
    return torch.ops.aten.alias.default(x)


# ---------------------------------------------------------------------------------------------- fake tensors
def _offload_fake(x: Tensor, streams: str) -> Tensor:
    return torch.empty_like(x, device="cpu")


def _reload_fake(host: Tensor, device: torch.device, streams: str) -> Tensor:
    return torch.empty_like(host, device=device)


def _wait_fake(x: Tensor, others: Sequence[Tensor]) -> Any:
    return torch.ops.aten.alias.default(x)


# ---------------------------------------------------------------------------------------------- places in a graph
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


def _copies(graph: fx.Graph, kind: object) -> list[tuple[fx.Node, fx.Node]]:
    """Each copy of a kind with its wait."""
    waits = [n for n in graph.nodes if n.op == "call_function" and n.target is operations().wait]
    pairs = [(n.args[0], n) for n in waits]
    return [(copy, n) for copy, n in pairs if isinstance(copy, fx.Node) and copy.target is kind]


def _end_offloads(graph: fx.Graph, offload: Offload) -> None:
    under_way: deque[fx.Node] = deque()
    place = {n: k for k, n in enumerate(graph.nodes)}
    waits = dict(_copies(graph, operations().offload))
    for copy in sorted(waits, key=place.__getitem__):
        if len(under_way) == offload.in_flight:
            copy.prepend(waits[under_way.popleft()])
        under_way.append(copy)


def _place_reloads(graph: fx.Graph, offload: Offload) -> None:
    uses = _by_first_use(graph, _copies(graph, operations().reload))
    todo = deque(copy for copy, _, _ in uses)
    under_way: deque[fx.Node] = deque()

    def begin(place: fx.Node, most: int) -> None:
        while todo and len(under_way) < most:
            place.prepend(todo[0])
            under_way.append(todo.popleft())

    if todo:  # the first copies wait for no use
        ours = (operations().reload, operations().wait)
        start = next(n for n in graph.nodes if n.op != "placeholder" and n.target not in ours)
        begin(start, max(offload.in_flight - 1, 1))
    for _, wait, user in uses:
        begin(user, offload.in_flight)
        wait.args = (under_way.popleft(), list(under_way))
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
