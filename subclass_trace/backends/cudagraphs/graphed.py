"""A dense program with its recordings: warm up, record, replay.

The first call of each kind runs, so that libraries are ready. The second is recorded, once for the
sizes and for the addresses of what stays where it is: equal layers have a recording each. When
such memory has moved `MOVES` times, it is copied in from then on.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...torch_api.memory import address
from .padding import Padded, Padding
from .pool import Pool
from .recorder import Work
from .recording import Interface, Recording, Unfit

Tensor = torch.Tensor
#: how often an input may be found elsewhere before it is copied
MOVES = 3
#: so many recordings of one program and its sizes: for equal modules
FAMILIES = 256
_address = Tensor.data_ptr


class Graphed:
    """See the module's docstring. Boxed: takes a list, and empties it."""

    def __init__(
        self,
        call: Callable[[list[Any]], Sequence[Any]],
        face: Interface,
        pool: Pool,
        group: object = None,
        padding: Padding | None = None,
    ) -> None:
        """``group``: sizes are counted within it; None: within the region."""
        self.call, self.face, self.pool, self.group, self.padding = call, face, pool, group, padding
        self.refused: str | None = None
        self.recordings: dict[tuple[Any, Any], Recording | Padded] = {}
        self._copied: set[int] = set()  # inputs that were to stay where they are, and do not
        self._warm: set[Any] = set()
        self._moves: collections.Counter[int] = collections.Counter()
        self._again: collections.Counter[Any] = collections.Counter()
        self._sizes = _picker(face.sized)
        self._fix()

    def _fix(self) -> None:
        kinds = enumerate(self.face.kinds)
        fixed = [k for k, what in kinds if what in ("static", "pooled") and k not in self._copied]
        self.fixed, self._addresses = fixed, _picker(fixed)
        self._drop([*self.recordings])

    def __call__(self, given: list[Any]) -> Sequence[Any]:
        """Serve a call."""
        values = given[:]
        given.clear()
        with self.pool.lock:
            key = self._key(values)
            found = self.recordings.get(key)
            if found is None or self.pool.in_the_way(found.recording) is not None:
                return self._slow(values, key)
            return found.run(values)

    def _key(self, values: list[Any]) -> tuple[Any, Any]:
        sizes = self._sizes(values)
        if sizes:
            sizes = [(v.shape, v.stride()) if isinstance(v, Tensor) else v for v in sizes]
        return tuple(sizes), tuple(map(_address, self._addresses(values)))

    # ---- what is rare
    def _eagerly(self, values: list[Any], why: str) -> Sequence[Any]:
        self.pool.ran[why] += 1
        results = self.call(values)
        return [results[number] for number, _ in self.face.gives]

    def _slow(self, values: list[Any], key: tuple[Any, Any]) -> Sequence[Any]:
        """A call without a recording, or with one that must not be replayed now."""
        found = self.recordings.get(key)
        if self.refused is not None:
            return self._eagerly(values, self.refused)
        if found is not None:
            other = self.pool.in_the_way(found.recording)
            if other is found.recording or self._again[key] >= MOVES:
                return self._eagerly(values, "results of an earlier call are in use")
            self._again[key] += 1
            self._drop([key])
        elif key[0] not in self._warm:
            self._warm.add(key[0])
            work = Work(self.call, values, self.face.generators, self.face.opaque)
            results = self.pool.recorder.warm(work)
            return [results[number] for number, _ in self.face.gives]
        elif (why := self._moved(values, key)) is not None:
            return self._eagerly(values, why)
        try:
            made = self._record(values)
        except Unfit as error:
            self.refused = f"it cannot be recorded: {error}"
            self.pool.say(f"a region runs without a CUDA graph, {self.refused}")
            return self._eagerly(values, self.refused)
        if isinstance(made, str):
            return self._eagerly(values, made)
        self.recordings[self._key(values)] = made
        return made.run(values)

    def _moved(self, values: list[Any], key: tuple[Any, Any]) -> str | None:
        """Is what should stay where it is elsewhere? Then it is copied in from now on; or this is
        no call to be recorded, and the reason is given."""
        memory, kinds = self.pool.memory, self.face.kinds
        pooled = [k for k in self.fixed if kinds[k] == "pooled"]
        new = {k for k in pooled if address(values[k]) not in memory}
        if new and len(new) == len(pooled):
            return "it works on values of a call that ran without"
        stale = {other: r.recording.moved() for other, r in self.recordings.items()}
        self._drop([other for other, gone in stale.items() if gone])
        for gone in stale.values():
            self._moves.update(k for k in gone if kinds[k] == "static")
        new |= {k for k, count in self._moves.items() if count >= MOVES and k in self.fixed}
        if new:
            self._copied |= new
            self._fix()
        same = sum(sizes == key[0] for sizes, _ in self.recordings)
        return None if same < FAMILIES else f"it has {FAMILIES} recordings"

    def _record(self, values: list[Any]) -> Recording | Padded | str:
        """A recording for these values; or why there is none."""
        padding, sizes = self.padding, self.pool.settings.sizes
        size = padding.size_of(values) if padding is not None and sizes is not None else None
        if padding is None or sizes is None or not self.face.sized or size in sizes:
            if not self.pool.allows(self.group, (id(self), self._key(values)[0])):
                return "the limit of sizes is reached"
            return Recording(self.call, self.face, self.pool, self.fixed, values)
        why, larger = padding.why, [n for n in sizes if size is not None and n > size]
        larger = [n for n in larger if padding.allows(n)]
        if why is None and not larger:
            why = "none of options['sizes'] is as large"
        if why is not None:
            self.pool.say(f"calls of other sizes than options['sizes'] run without one: {why}")
            return f"a size that is not in options['sizes']: {why}"
        padded = padding.padded(values, larger[0])
        key = self._key(padded)
        found = self.recordings.get(key)
        if found is None:
            found = Recording(self.call, self.face, self.pool, self.fixed, padded)
            self.recordings[key] = found
        return Padded(found.recording, padding, values)

    def _drop(self, keys: Sequence[Any]) -> None:
        gone = {self.recordings[key].recording for key in keys}
        for recording in gone:
            recording.close()
        rest = {k: r for k, r in self.recordings.items() if r.recording not in gone}
        self.recordings = rest


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What stands at these places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return (lambda values: (values[places[0]],)) if places else lambda values: ()
