"""One recording: buffers for the inputs of a call, a replay, and what the call gets of its results.

In: a program, and the values of a call. Out: a `Recording`, whose `run` serves calls with the same
sizes and addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...torch_api.autograd import move_versions, set_versions
from ...torch_api.memory import holders, storage_of, with_version_of
from .buffers import as_span, fresh, is_dense, make_buffers
from .pool import Pool
from .recorder import Work

Tensor = torch.Tensor
#: what a call gets, of its own inputs and of what it has got before that
Give = Callable[[Sequence[Any], Sequence[Any]], Any]


class Unfit(Exception):
    """A program cannot be recorded; the text says why."""


@dataclass(frozen=True, eq=False)
class Interface:
    """What a program takes and gives.

    Attributes:
        kinds: of each input: "static" (it stays where it is), "pooled" (a recording has made it, and
        it stays there), "copied", "host" (a number in a tensor of the host's), or "number".
        written: inputs to which the program writes.
        gives: number of an output, and how it is handed out: "result", "contents" (of an input, to
        which they are copied at once), or "pooled" (for another recording).
        opaque, generators: see `Work`.
    """

    kinds: tuple[str, ...]
    written: frozenset[int]
    gives: tuple[tuple[int, str], ...]
    opaque: bool = False
    generators: tuple[torch.Generator, ...] = ()


class Recording:
    """See the module's docstring. ``number``: in which order recordings were made."""

    def __init__(
        self,
        call: Callable[[list[Any]], Sequence[Any]],
        face: Interface,
        pool: Pool,
        fixed: Sequence[int],
        values: Sequence[Any],
    ) -> None:
        """``fixed``: inputs that are read where they are."""
        self.pool, self.face, self.call = pool, face, call
        tensors = {k: v for k, v in enumerate(values) if isinstance(v, Tensor) and k not in fixed}
        host = {k: v for k, v in tensors.items() if face.kinds[k] == "host"}
        moved = {k: pool.recorder.on_device(v) for k, v in host.items() if pool.recorder.on_host(v)}
        rest = {k: v for k, v in tensors.items() if k not in moved}
        self.buffers: dict[int, Tensor] = {**make_buffers(rest, face.written), **moved}
        self.addresses = [values[k].data_ptr() for k in fixed]
        stores = [storage_of(values[k]) for k in fixed]
        self._alive = [torch_api.weak(s) for s in stores]
        self._at = [s.data_ptr() for s in stores]
        self._record(values)
        self.number = pool.next_number()
        for t in self._kept:
            pool.addresses[t.data_ptr()] = self

    # ---- made
    def _record(self, values: Sequence[Any]) -> None:
        args = [self.buffers.get(k, v) for k, v in enumerate(values)]
        self._copies = [(k, to, is_dense(to)) for k, to in self.buffers.items()]
        self._to = [to if dense else as_span(to) for _, to, dense in self._copies]
        self._plain = all(dense for _, _, dense in self._copies)
        self._copy_in(values)
        written = [args[k] for k in sorted(self.face.written)]
        before = tuple([t._version for t in written])
        work = Work(self.call, args, self.face.generators, self.face.opaque)
        try:
            self._replay, results = self.pool.recorder.record(work)
        finally:  # nothing was written
            after = tuple([t._version for t in written])
            set_versions(tuple(written), before)
        moved = zip(sorted(self.face.written), before, after, strict=True)
        self._writes = [(k, now - then, k in self.buffers) for k, then, now in moved if now > then]
        self._kept: list[Tensor] = []
        self._gives = _Results(self, args).gives(results)
        self._held = holders(self._kept)

    def keep(self, t: Tensor) -> None:
        """It lies in the pool, and is handed out."""
        self._kept.append(t)

    # ---- asked
    def is_in_use(self) -> bool:
        """Has anybody results of it?"""
        return holders(self._kept) != self._held

    def is_stale(self) -> bool:
        """Is the memory of an input gone, or elsewhere?"""
        found = [alive() for alive in self._alive]
        return [None if s is None else s.data_ptr() for s in found] != self._at

    def close(self) -> None:
        """It serves no call any more."""
        for t in self._kept:
            if self.pool.addresses.get(t.data_ptr()) is self:
                del self.pool.addresses[t.data_ptr()]

    # ---- run
    def _copy_in(self, values: Sequence[Any]) -> None:
        if self._plain:
            of = [values[k] for k, _, _ in self._copies]
        else:
            of = [values[k] if dense else as_span(values[k]) for k, _, dense in self._copies]
        self.pool.recorder.copy(self._to, of)

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Serve a call."""
        self._copy_in(values)
        self._replay()
        for k, count, copied in self._writes:
            value = values[k]
            if copied:
                to, of = (t if is_dense(t) else as_span(t) for t in (value, self.buffers[k]))
                to.copy_(of)
            for _ in range(count - copied):
                move_versions([value])
        results: list[Any] = []
        for give in self._gives:
            results.append(give(values, results))
        if self._kept:
            self.pool.handed_out(self)
        return results


class _Results:
    """What a call gets of the results of a recording."""

    def __init__(self, recording: Recording, args: Sequence[Any]) -> None:
        self.recording, self.args, self.face = recording, args, recording.face
        self.weak = recording.pool.settings.outputs == "weak"
        tensors = {k: t for k, t in enumerate(args) if isinstance(t, Tensor)}
        self.memory: dict[int, list[int]] = {}  # address of a storage -> inputs that lie there
        for k, t in tensors.items():
            self.memory.setdefault(_storage(t), []).append(k)
        self.made: list[Give] = []
        self.first: dict[int, int] = {}  # results by identity -> where they are handed out
        self.heads: dict[int, int] = {}  # storages of results -> the same

    def gives(self, results: Sequence[Any]) -> list[Give]:
        """One function for each thing that is handed out."""
        for number, kind in self.face.gives:
            self.made.append(self._give(results[number], kind, results))
        return self.made

    def _give(self, out: Any, kind: str, results: Sequence[Any]) -> Give:
        if not isinstance(out, Tensor):
            return lambda values, before: out
        inputs = self.memory.get(_storage(out), []) if out.numel() else []
        if (same := next((k for k, t in enumerate(self.args) if t is out), None)) is not None:
            inputs = [same]
        if inputs and (kind == "pooled" or self.face.kinds[inputs[0]] != "pooled"):
            return self._of_an_input(out, kind, inputs[0], same is not None)
        first = self.first.get(id(out))
        if kind == "pooled":
            self.recording.keep(out)
            if first is None:
                return lambda values, before: out
            return lambda values, before: with_version_of(out, before[first])
        if kind == "contents":
            return lambda values, before: out.detach()
        if first is not None:
            return lambda values, before: before[first]
        self.first[id(out)] = len(self.made)
        if self.weak and not inputs:
            self.recording.keep(out)
            return lambda values, before: out.detach()
        return self._copy(out, results)

    def _of_an_input(self, out: Tensor, kind: str, k: int, same: bool) -> Give:
        """It lies in the memory of input ``k``: the call gets that of its own input, but for what is
        kept for a backward, which does not change with it; its version does."""
        buffer = self.recording.buffers.get(k)
        if buffer is None:
            self.recording.pool.addresses[out.data_ptr()] = self.recording
            if same:
                return lambda values, before: values[k]
            return lambda values, before: out if kind == "pooled" else out.detach()
        if kind == "pooled":
            self.recording.keep(out)
            return lambda values, before: with_version_of(out, values[k])
        if same:
            return lambda values, before: values[k]
        if out.dtype != buffer.dtype or self.face.kinds[k] == "host":
            raise Unfit("a result is an input as another dtype")
        where = out.storage_offset() - buffer.storage_offset()
        size, stride = out.shape, out.stride()

        def view(values: Sequence[Any], before: Sequence[Any]) -> Tensor:
            t: Tensor = values[k].detach()
            return t.as_strided(size, stride, t.storage_offset() + where)

        return view

    def _copy(self, out: Tensor, results: Sequence[Any]) -> Give:
        """A clone; results that share memory do so in each call."""
        others = [results[n] for n, kind in self.face.gives if kind == "result"]
        others = [t for t in others if isinstance(t, Tensor) and t is not out]
        if not any(_storage(t) == _storage(out) != 0 for t in others):
            if is_dense(out):
                return lambda values, before: out.clone()
            return lambda values, before: fresh(out)
        place = out.storage_offset(), out.shape, out.stride()
        head = self.heads.setdefault(_storage(out), len(self.made))

        def part(values: Sequence[Any], before: Sequence[Any]) -> Tensor:
            here = head == len(before)
            memory = out.untyped_storage().clone() if here else before[head].untyped_storage()
            return torch.empty(0, dtype=out.dtype, device=out.device).set_(memory, *place)

        return part


def _storage(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()
