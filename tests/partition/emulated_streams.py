"""Streams without a device: copies between "cpu" and "cpu" that are done as late as events allow.

`EmulatedStreams` has what `torch.cuda` has. A copy that is enqueued on a stream fills its target with NaN and is done when
the computation waits for an event after it. If the memory that it reads was freed by then, NaN stays.
"""

from __future__ import annotations

import contextlib
from collections import deque

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class EmulatedStreams:
    """``log``: what was asked for, in order; ``under_way``: for each new copy, how many were then under way."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.under_way: list[int] = []
        self.bytes_under_way: list[int] = []
        self.freed_early = 0
        self.filled: list[StorageWeakRef] = []
        self.compute = _Computation(self)
        self.sides: list[_Side] = []

    def Stream(self, device):
        assert device == torch.device("cpu")
        self.sides.append(_Side(self))
        return self.sides[-1]

    def Event(self):
        return _Event()

    def current_stream(self, device):
        return self.compute

    @contextlib.contextmanager
    def stream(self, stream):
        with _Enqueue(stream):
            yield


class _Event:
    def record(self, stream) -> None:
        self.stream = stream
        stream.queue.append(self)


class _Computation:
    def __init__(self, owner) -> None:
        self.owner = owner

    def wait_event(self, event) -> None:
        self.owner.log.append("computation waits")
        queue = event.stream.queue
        while event in queue:
            step = queue.popleft()
            if step is not event and not isinstance(step, _Event):
                step()


class _Side:
    def __init__(self, owner) -> None:
        self.owner, self.queue = owner, deque()

    def wait_stream(self, stream) -> None:
        assert stream is self.owner.compute
        self.owner.log.append("copies wait")


class _Enqueue(TorchDispatchMode):
    def __init__(self, side) -> None:
        super().__init__()
        self.side = side

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is aten.copy_.default and self.side.owner.log[-1] == "copies wait", func
        owner, (target, source) = self.side.owner, args[:2]
        contents, memory = source.clone(), StorageWeakRef(source.untyped_storage())
        pinned = any(
            ref.cdata == memory.cdata for ref in owner.filled
        )  # the allocator of pinned memory waits for copies
        target.fill_(float("nan") if target.is_floating_point() else 0)
        owner.filled.append(StorageWeakRef(target.untyped_storage()))

        def copy() -> None:
            if memory.expired() and not pinned:
                owner.freed_early += 1
            else:
                target.copy_(contents)

        copy.bytes = target.numel() * target.dtype.itemsize
        self.side.queue.append(copy)
        owner.log.append("copy")
        copies = [step for step in self.side.queue if not isinstance(step, _Event)]
        owner.under_way.append(len(copies))
        owner.bytes_under_way.append(sum(step.bytes for step in copies))
        return target
