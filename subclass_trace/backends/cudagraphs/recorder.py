"""Recorders: what warms up, records and replays. `CudaRecorder` is the real one.

The other one is in `testing/emulated.py`. A recorder has one pool of memory, which all its
recordings share: what a recording needs in between may lie where the results of another one do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ...errors import BackendError
from ...torch_api.operators import copy_all

Tensor = torch.Tensor
_stream: Callable[[], Any] = torch.cuda.Stream


@dataclass(frozen=True, eq=False)
class Work:
    """What is recorded.

    Attributes:
        call: takes a list, and empties it.
        inputs: on which the recording will work for ever.
        generators: the random numbers that it draws, besides the default ones.
        opaque: its kernels are not all operations of torch's (inductor's).
    """

    call: Callable[[list[Any]], Sequence[Any]]
    inputs: Sequence[Any]
    generators: Sequence[torch.Generator] = ()
    opaque: bool = False

    def run(self) -> Sequence[Any]:
        """Call it."""
        return self.call(list(self.inputs))


class Recorder(Protocol):
    """See the module's docstring."""

    def on_host(self, t: Tensor) -> bool:
        """Does a replay not read it again, because no kernel does?"""

    def on_device(self, t: Tensor) -> Tensor:
        """Memory for the number in a tensor of the host's, where kernels read it."""

    def warm(self, work: Work) -> Sequence[Any]:
        """Run it, so that libraries are ready for a recording."""

    def record(self, work: Work) -> tuple[Callable[[], object], Sequence[Any]]:
        """What replays it, and its results, in which nothing stands before the first replay."""

    def copy(self, to: list[Tensor], of: list[Tensor]) -> None:
        """Copy inputs of a call to where a recording reads them."""


class CudaRecorder:
    """CUDA graphs."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise BackendError(
                "there is no CUDA here, and so there are no CUDA graphs",
                path="backend",
                expected="a CUDA device",
                got=f"torch {torch.__version__}, torch.cuda.is_available() is False",
                fix="backend='eager' and mode='default' need no device; tests pass "
                "options={'recorder': subclass_trace.testing.EmulatedRecorder()}, which emulates "
                "recordings on the CPU",
            )
        self._pool: Any = None
        self._stream: Any = None
        self._last: Any = None

    def __repr__(self) -> str:
        return "CudaRecorder()"

    def _start(self) -> None:
        if self._pool is None:
            self._pool, self._stream = torch.cuda.graph_pool_handle(), _stream()

    def on_host(self, t: Tensor) -> bool:
        """See `Recorder`."""
        return t.device.type != "cuda"

    def on_device(self, t: Tensor) -> Tensor:
        """See `Recorder`."""
        return torch.empty((), dtype=t.dtype, device="cuda")

    def warm(self, work: Work) -> Sequence[Any]:
        """On a stream of its own, as the recording."""
        self._start()
        now = torch.cuda.current_stream()
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            results = work.run()
        now.wait_stream(self._stream)
        for t in results:
            if isinstance(t, Tensor) and t.is_cuda:
                t.record_stream(now)
        return results

    def record(self, work: Work) -> tuple[Callable[[], object], Sequence[Any]]:
        """See `Recorder`."""
        self._start()
        graph = torch.cuda.CUDAGraph()
        for generator in work.generators:
            graph.register_generator_state(generator)
        how: Any = {"pool": self._pool, "stream": self._stream}
        with torch.cuda.graph(graph, **how, capture_error_mode="thread_local"):
            results = work.run()
        return graph.replay, results

    def copy(self, to: list[Tensor], of: list[Tensor]) -> None:
        """Also the wait for a replay on another stream, which has the same memory."""
        now = torch.cuda.current_stream()
        if self._last is not None and self._last != now:
            now.wait_stream(self._last)
        self._last = now
        if to:
            copy_all(to, of)
