"""One recording: buffers for the inputs of a call, a replay, and what the call gets of its results.

In: a program, and the values of a call. Out: a `Recording`, whose `run` serves calls with the same
sizes and addresses.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...torch_api.autograd import move_versions, set_versions
from ...torch_api.memory import (
    address,
    holders,
    part_of,
    storage_of,
    with_version_of,
)
from .buffers import (
    as_span,
    fresh,
    fresh_memory,
    is_computed_with,
    is_whole,
    make_buffers,
    overlaps,
)
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
        kinds: of each input: "static" (it stays where it is), "pooled" (a recording has made it,
            and it stays there), "copied", or "number".
        sized: inputs whose sizes or values differ between calls.
        written: inputs to which the program writes.
        gives: number of an output, and how it is handed out: "result", "contents" (of an input, to
            which they are copied at once), "pooled" (kept for a backward), "inside" (for the next
            recording of the call), or the number of an input that it is.
        opaque, generators: see `Work`.
    """

    kinds: tuple[str, ...]
    sized: tuple[int, ...]
    written: frozenset[int]
    gives: tuple[tuple[int, str | int], ...]
    opaque: bool = False
    generators: tuple[torch.Generator, ...] = ()


class Recording:
    """See the module's docstring.

    Attributes:
        number: in which order recordings were made.
        buffers: where the inputs of calls are copied to.
        results: of the program, in the pool.
    """

    def __init__(
        self,
        call: Callable[[list[Any]], Sequence[Any]],
        face: Interface,
        pool: Pool,
        fixed: Sequence[int],
        values: Sequence[Any],
    ) -> None:
        """``fixed``: inputs that are read where they are."""
        self.pool, self.face = pool, face
        given = {k: v for k, v in enumerate(values) if isinstance(v, Tensor) and k not in fixed}
        for k in fixed:
            near = [n for n, t in given.items() if overlaps(t, values[k])]
            if any(n in face.written or k in face.written for n in near):
                raise Unfit("an input that is copied shares memory with one that is not")
        host = {k: v for k, v in given.items() if v.dim() == 0 and pool.recorder.on_host(v)}
        moved = {k: pool.recorder.on_device(v) for k, v in host.items()}
        rest = {k: v for k, v in given.items() if k not in moved}
        with torch.inference_mode(False):  # their versions are counted
            self.buffers: dict[int, Tensor] = {**make_buffers(rest, face.written), **moved}
        stores = {k: storage_of(values[k]) for k in fixed}
        self._at = [(k, weakref.ref(s), s.data_ptr()) for k, s in stores.items()]
        dense = {k: is_whole(to) for k, to in self.buffers.items()}
        self._copies = list(dense.items())
        self._to = [to if dense[k] else as_span(to) for k, to in self.buffers.items()]
        self._plain = list(dense) if all(dense.values()) else None
        self._kept: list[Tensor] = []
        self._held: list[int] | None = None
        self._record(call, values)
        pool.recorded += 1
        self.number = pool.recorded
        for t in self._kept:
            pool.memory[address(t)] = self

    @property
    def recording(self) -> Recording:
        """This one."""
        return self

    # ---- made
    def _record(self, call: Callable[[list[Any]], Sequence[Any]], values: Sequence[Any]) -> None:
        args = [self.buffers.get(k, v) for k, v in enumerate(values)]
        self._copy_in(values)
        written = [k for k in sorted(self.face.written) if not values[k].is_inference()]
        memory = tuple([args[k] for k in written])
        before = tuple([t._version for t in memory])
        work = Work(call, args, self.face.generators, self.face.opaque)
        try:
            self.replay, results = self.pool.recorder.record(work)
            self.results: list[Any] = [*results]
        except Exception as error:
            raise Unfit(str(error)) from error
        finally:  # nothing was written
            after = tuple([t._version for t in memory])
            set_versions(memory, before)
        counts = {k: now - then for k, then, now in zip(written, before, after, strict=True)}
        self._writes = [(k, counts.get(k, 0), k in self.buffers) for k in sorted(self.face.written)]
        self._gives = _Results(self, args).gives()
        outside = {address(t) for k, t in enumerate(args) if isinstance(t, Tensor)}
        outside -= {address(t) for t in self.buffers.values()}
        for n, t in enumerate(self.results):  # a weight is not kept alive here
            if isinstance(t, Tensor) and address(t) in outside:
                self.results[n] = None

    def keep(self, t: Tensor) -> None:
        """It lies in the pool, and is handed out."""
        self._kept.append(t)

    # ---- asked
    def is_in_use(self) -> bool:
        """Has anybody results of it?"""
        return holders(self._kept) != self._held

    def keeps(self, at: int) -> bool:
        """Does a result of it lie there?"""
        return any(address(t) == at for t in self._kept)

    def moved(self) -> list[int]:
        """The inputs whose memory is gone, or elsewhere."""
        rows = [(k, alive(), at) for k, alive, at in self._at]
        return [k for k, store, at in rows if store is None or store.data_ptr() != at]

    def close(self) -> None:
        """It serves no call any more."""
        memory = self.pool.memory
        for at in [a for a, by in memory.items() if by is self]:
            del memory[at]

    # ---- run
    def _copy_in(self, values: Sequence[Any]) -> None:
        if self._plain is not None:
            of = [values[k] for k in self._plain]
        else:
            of = [values[k] if dense else as_span(values[k]) for k, dense in self._copies]
        self.pool.recorder.copy(self._to, of)

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Serve a call."""
        if self._held is None:
            self._held = holders(self._kept)
        self._copy_in(values)
        self.replay()
        for k, count, copied in self._writes:
            value = values[k]
            if copied:
                to, of = (t if is_whole(t) else as_span(t) for t in (value, self.buffers[k]))
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
        self.results, self.buffers = recording.results, recording.buffers
        self.weak = recording.pool.settings.outputs == "weak"
        self.memory: dict[int, int] = {}  # address of a storage -> an input that lies there
        for k, t in enumerate(args):
            if isinstance(t, Tensor):
                self.memory.setdefault(address(t), k)
        self.made: list[Give] = []
        self.first: dict[int, int] = {}  # results by identity -> where they are handed out
        self.heads: dict[int, int] = {}  # storages of results -> the same

    def gives(self) -> list[Give]:
        """One function for each thing that is handed out."""
        for number, kind in self.face.gives:
            self.made.append(self._give(self.results[number], kind))
        return self.made

    def _give(self, out: Any, kind: str | int) -> Give:
        if isinstance(kind, int):
            return lambda values, before: values[kind]
        if not isinstance(out, Tensor):
            return lambda values, before: out
        source = self.memory.get(address(out)) if out.numel() else None
        same = next((k for k, t in enumerate(self.args) if t is out), None)
        source = source if same is None else same
        if source is not None and (kind != "result" or self.face.kinds[source] != "pooled"):
            return self._of_an_input(out, kind, source, same is not None)
        if kind in ("pooled", "inside"):
            self.recording.keep(out)
            if (result := self.heads.get(address(out))) is None or kind == "inside":
                return lambda values, before: out
            return lambda values, before: with_version_of(out, before[result])
        if kind == "contents":
            return lambda values, before: out.detach()
        if (first := self.first.get(id(out))) is not None:
            return lambda values, before: before[first]
        self.first[id(out)] = len(self.made)
        head = self.heads.setdefault(address(out), len(self.made))
        if self.weak and source is None:
            self.recording.keep(out)
            return lambda values, before: out.detach()
        return self._copy(out, head)

    def _of_an_input(self, out: Tensor, kind: str, k: int, same: bool) -> Give:
        """It lies in the memory of input ``k``: the call gets that of its own input. But what is
        kept for a backward to compute with stays in the buffer, which its version does not tell."""
        base = self.args[k]
        if k not in self.buffers:
            self.recording.pool.memory[address(out)] = self.recording
        elif kind == "pooled" and is_computed_with(out):
            self.recording.keep(out)
            return lambda values, before: (
                values[k] if values[k].is_inference() else with_version_of(out, values[k])
            )
        if same:
            return lambda values, before: values[k]
        take = part_of(out, base)
        return lambda values, before: take(values[k])

    def _copy(self, out: Tensor, head: int) -> Give:
        """A clone; results that share memory do so in each call."""
        others = [self.results[n] for n, kind in self.face.gives if kind == "result"]
        others = [t for t in others if isinstance(t, Tensor) and t is not out]
        if not any(address(t) == address(out) != 0 for t in others):
            if is_whole(out):
                return lambda values, before: out.clone()
            return lambda values, before: fresh(out)
        if head != len(self.made):
            take = part_of(out, self.results[self.face.gives[head][0]])
            return lambda values, before: take(before[head])
        return lambda values, before: fresh_memory(out)
