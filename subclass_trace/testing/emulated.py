"""CUDA graphs on the CPU, for tests: what goes wrong with real ones goes wrong here.

- A recording runs no kernel: what it has written is put back, its results hold nothing.
- A replay runs the recorded operations on the recorded memory. Python does not run again, what was
  not copied is stale, no version counter moves.
- A replay overwrites, with NaN, what other recordings have in the pool, but for the results that
  somebody held when it was recorded.
- What waits for the device, or reads memory of the host, raises.

>>> recorder = EmulatedRecorder()
>>> x = torch.ones(2)
>>> replay, (y,) = recorder.record(Work(lambda given: (given[0] * 2,), [x]))
>>> y.isnan().all().item(), x.fill_(3.0) is x, replay(), y
(True, True, None, tensor([6., 6.]))
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..backends.cudagraphs.recorder import Work
from ..torch_api.memory import address, cloned_storage, storage_of, with_bits_of
from ..torch_api.modes import TorchDispatchMode
from ..torch_api.operators import copy_all, indexes_by_numbers, op_schema
from ..torch_api.trees import pytree, tree_map_only

Tensor = torch.Tensor
_WAITS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class EmulatedRecorder:
    """See the module's docstring.

    Attributes:
        host: tells of a tensor whether it stands for one of the host's memory.
        events: what was done, in order: "warm", "record", "replay", and "copy" for each tensor
        that was copied in.
    """

    def __init__(self, host: Callable[[Tensor], bool] = lambda t: False) -> None:
        self.host, self.events = host, list[str]()
        self._graphs: weakref.WeakSet[_Graph] = weakref.WeakSet()
        self._moved = list[Tensor]()

    def __repr__(self) -> str:
        return "EmulatedRecorder()"

    def on_host(self, t: Tensor) -> bool:
        """See `Recorder`."""
        return self.host(t) and all(t.data_ptr() != m.data_ptr() for m in self._moved)

    def on_device(self, t: Tensor) -> Tensor:
        """See `Recorder`."""
        self._moved.append(torch.empty((), dtype=t.dtype))
        return self._moved[-1]

    def warm(self, work: Work) -> Sequence[Any]:
        """See `Recorder`."""
        self.events.append("warm")
        return work.run()

    def record(self, work: Work) -> tuple[Callable[[], object], Sequence[Any]]:
        """See `Recorder`."""
        self.events.append("record")
        held = frozenset(p for graph in self._graphs for p in graph.held())
        with _random_as_before(work.generators):
            graph = _Graph(self, work, held)
        self._graphs.add(graph)
        return graph, graph.hand_out()

    def copy(self, to: list[Tensor], of: list[Tensor]) -> None:
        """See `Recorder`."""
        self.events += ["copy"] * len(to)
        if to:
            copy_all(to, of)

    def overwrite(self, by: _Graph) -> None:
        """What a replay does to the rest of the pool."""
        for graph in self._graphs:
            if graph is not by:
                for t in graph.memory:
                    if address(t) not in by.spared:
                        _spoil(t)


class _Graph:
    """One recording.

    ``memory``: what it has in the pool; ``spared``: the storages of the pool, by address, that were
    held when it was recorded.
    """

    def __init__(self, recorder: EmulatedRecorder, work: Work, spared: frozenset[int]) -> None:
        self.recorder, self.work, self.spared = recorder, work, spared
        self.calls: list[Callable[[], object]] = []
        self.memory: list[Tensor] = []
        given = [t for t in work.inputs if isinstance(t, Tensor)]
        self.reads = [(weakref.ref(storage_of(t)), address(t)) for t in given]
        before = [(t, cloned_storage(t)) for t in given]
        log = contextlib.nullcontext() if work.opaque else _Log(self)
        try:
            with log:
                self.results = work.run()
        finally:
            for t, contents in before:
                storage_of(t).copy_(contents)
        outside = {address(t) for t in given}
        inputs = [_at_address(t) if isinstance(t, Tensor) else t for t in work.inputs]
        self.work = replace(work, inputs=inputs)
        if work.opaque:
            made = [t for t in self.results if isinstance(t, Tensor)]
            made = [t for t in made if address(t) not in outside]
            self.memory, self.calls = [t.data for t in made], [self._again(made)]
        for t in self.memory:
            _spoil(t)
        self._handed: list[weakref.ref[Tensor]] = []

    def _again(self, made: list[Tensor]) -> Callable[[], object]:
        """An opaque program: it runs, and its results go where they were."""
        places = [k for k, t in enumerate(self.results) if any(t is m for m in made)]
        memory, work = [t.data for t in made], self.work

        def call() -> None:
            found = work.run()
            for k, t in zip(places, memory, strict=True):
                t.copy_(found[k])

        return call

    def hand_out(self) -> Sequence[Any]:
        """The results, which are not kept here."""
        results, self.results = self.results, ()
        self._handed = [weakref.ref(t) for t in results if isinstance(t, Tensor)]
        return results

    def held(self) -> Iterator[int]:
        """The storages of results that somebody still has."""
        for handed in self._handed:
            if (t := handed()) is not None:
                yield address(t)

    def __call__(self) -> None:
        """Replay it."""
        self.recorder.events.append("replay")
        for alive, at in self.reads:
            if (store := alive()) is None or store.data_ptr() != at:
                raise RuntimeError("the memory that a recording reads is gone")
        with torch.inference_mode():  # what was recorded in it is written to
            self.recorder.overwrite(self)
            for call in self.calls:
                call()


class _Log(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations of a recording."""

    def __init__(self, graph: _Graph) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.recorder = graph, graph.recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._check(func, (args, kwargs))
        made = func(*args, **kwargs)
        rows = pytree.tree_leaves((args, kwargs))
        known = {address(t) for t in rows if isinstance(t, Tensor)}
        results = [t for t in pytree.tree_leaves(made) if isinstance(t, Tensor)]
        fresh = [t for t in results if address(t) not in known]
        self.graph.memory += [t.data for t in fresh]
        if fresh or op_schema(func).is_mutable:
            self.graph.calls.append(_call(func, args, kwargs, made, self.graph.memory))
        return made

    def _check(self, func: Any, given: Any) -> None:
        waits = any(tag in func.tags for tag in _WAITS)
        if waits and not indexes_by_numbers(func, given[0]):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        for value in pytree.tree_leaves(given):
            if isinstance(value, Tensor) and self.recorder.on_host(value):
                raise RuntimeError(f"a recording would read memory of the host: {func}")
            if isinstance(value, torch.Generator):
                if value not in (*self.graph.work.generators, torch.default_generator):
                    raise RuntimeError(f"a generator that is not registered: {func}")


def _call(
    func: Any, args: Any, kwargs: Any, made: Any, own: Sequence[Tensor]
) -> Callable[[], object]:
    """The same operation on the same memory; no version counter is that of a user's tensor."""
    kept = {address(t) for t in own}

    def same(t: Tensor) -> Tensor:
        return t.data if address(t) in kept else _at_address(t)

    args, kwargs, made = tree_map_only(Tensor, same, (args, kwargs, made))
    memory = [t for t in pytree.tree_leaves(made) if isinstance(t, Tensor)]

    def call() -> None:
        found = pytree.tree_leaves(func(*args, **kwargs))
        for t, new in zip(memory, [t for t in found if isinstance(t, Tensor)], strict=True):
            if t.data_ptr() != new.data_ptr():
                t.copy_(new)

    return call


def _at_address(t: Tensor) -> Tensor:
    """The same memory, which is not kept alive: a recording knows addresses."""
    count = storage_of(t).nbytes()
    if count == 0:
        return t.data
    raw = (ctypes.c_uint8 * count).from_address(address(t))
    memory = torch.frombuffer(raw, dtype=torch.uint8).untyped_storage()
    made = torch.empty(0, dtype=t.dtype)
    return with_bits_of(t, made.set_(memory, t.storage_offset(), t.shape, t.stride()))


def _spoil(t: Tensor) -> None:
    """Put in what no program expects."""
    if t._is_zerotensor():
        return
    flat = t.as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)
    flat.fill_(float("nan") if t.is_floating_point() or t.is_complex() else 77)


@contextlib.contextmanager
def _random_as_before(generators: Sequence[torch.Generator]) -> Iterator[None]:
    every = (torch.default_generator, *generators)
    before = [g.get_state() for g in every]
    try:
        yield
    finally:
        for generator, state in zip(every, before, strict=True):
            generator.set_state(state)
