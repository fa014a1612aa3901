"""A dense program with its recordings: warm up, record, replay.

The first call of each kind runs, so that libraries are ready. The second is recorded, once for the
sizes and for the addresses of what stays where it is: equal layers have a recording each. When
such memory has moved `MOVES` times, it is copied in from then on.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from .buffers import overlaps
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
        kind: Hashable,
        padding: Padding | None = None,
    ) -> None:
        """``kind``: of the program whose sizes are counted; None: they are not."""
        self.call, self.face, self.pool, self.kind, self.padding = call, face, pool, kind, padding
        self.fixed = [k for k, what in enumerate(face.kinds) if what in ("static", "pooled")]
        self.refused: str | None = None
        self.recordings: dict[tuple[Any, tuple[int, ...]], Recording | Padded] = {}
        self._warm: set[Any] = set()
        self._moves: collections.Counter[int] = collections.Counter()
        self._again: collections.Counter[Any] = collections.Counter()
        self._prepare()

    def _prepare(self) -> None:
        """How the sizes and the addresses of a call are read."""
        self._addresses = _picker(self.fixed, lambda k: k)
        self._sizes = _picker(self.face.sized, lambda k: k)

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

    def _key(self, values: list[Any]) -> tuple[Any, tuple[int, ...]]:
        sizes = None if self._sizes is None else self._sizes(values)
        if sizes is not None:
            sizes = tuple([v.shape if isinstance(v, Tensor) else v for v in sizes])
        return sizes, tuple(map(_address, self._addresses(values)))

    # ---- what is rare
    def _eagerly(self, values: list[Any], why: str) -> Sequence[Any]:
        self.pool.ran[why] += 1
        results = self.call(values)
        return [results[number] for number, _ in self.face.gives]

    def _slow(self, values: list[Any], key: tuple[Any, tuple[int, ...]]) -> Sequence[Any]:
        """A call without a recording, or with one that must not be replayed now."""
        sizes, _ = key
        found, refused = self.recordings.get(key), self.refused
        if refused is not None:
            return self._eagerly(values, refused)
        if found is not None:
            other = self.pool.in_the_way(found.recording)
            if other is found.recording or self._again[key] >= MOVES:
                return self._eagerly(values, "results of an earlier call are in use")
            self._again[key] += 1
            self._drop(key)
        size = self._size(values)
        ...
