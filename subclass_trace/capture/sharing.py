"""Which forward values lie in memory that the caller reaches otherwise: an input's, or another value's.

Autograd knows nothing of memory that is shared through ``detach()``, through an inner tensor, or through a wrapper that
the region made of tensors that it had. The graph computes such values like others; `ValueAlias` says what the run time
puts in their place, so that a later write to one is seen by the other. See docs/notes/views.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import torch_api
from ..errors import NeedsEager
from ..plan import LeafAlias, ValueAlias
from ..subclass.flatten import flatten, wrappers_inside
from .aliasing import byte_range, share_counter
from .inputs import Inputs
from .recorder import Recorder

Tensor = torch.Tensor


class Sharing:
    """The tensors of the inputs, and the memory that they lie in. ``emit`` adds a forward value."""

    def __init__(self, inputs: Inputs, recorder: Recorder, emit: Callable[[Tensor], int]) -> None:
        self.recorder, self.emit = recorder, emit
        self._same = {id(t): k for k, t in enumerate(inputs.leaf_values)}
        self._starts = [_start(t) for t in inputs.originals]
        self._leaves = inputs.leaf_values
        self._inside = {id(wrapper) for row in inputs.inputs for _, wrapper in wrappers_inside(row.traced)}
        self._leaves_in: dict[Any, list[int]] = {}
        for k, t in enumerate(inputs.originals):
            if t.layout is torch.strided:
                self._leaves_in.setdefault(torch_api.storage_ref(t), []).append(k)

    def aliases(
        self,
        values: Sequence[Tensor],
        skip: set[int],
    ) -> list[ValueAlias]:
        """One row for each value that shares memory.

        Args:
            skip: numbers of values that are new contents of inputs: they are copied.
        """
        flat = {n: flatten(v) for n, v in enumerate(values) if n not in skip}
        among = self._among_values([(n, k, t) for n, (leaves, _) in flat.items() for k, t in enumerate(leaves)])
        rows = []
        for n, (leaves, spec) in flat.items():
            found = tuple(self._of_input(t) or among.get((n, k)) for k, t in enumerate(leaves))
            if id(values[n]) in self._inside:
                raise NeedsEager(
                    "a result is a wrapper that is inside of an input", fix="take it out of the input outside"
                )
            if not any(found):
                continue
            row = ValueAlias(n, spec, found)
            if values[n].grad_fn is not None:
                if not any(self.recorder.was_written(t) for t, a in zip(leaves, found, strict=True) if a is not None):
                    if not values[n].is_nested:
                        continue  # nothing is written: what the graph returns lies in that memory already
                    # Two jagged tensors go together only if their offsets are one object.
                    row = replace(row, leaves=tuple(a if a is not None and a.same else None for a in found))
                row = replace(row, within=True)
            rows.append(row)
        return rows

    def _of_input(self, t: Tensor) -> LeafAlias | None:
        if id(t) in self._same:
            return LeafAlias(None, self._same[id(t)], 0, True)
        return self._within_input(t)

    def _within_input(self, t: Tensor) -> LeafAlias | None:
        there = self._leaves_in.get(torch_api.storage_ref(t), []) if t.layout is torch.strided else []
        if not there:
            return None
        # Arguments in one memory may share a counter; their stand-ins do not, and ``t`` shares that of one of them.
        by_counter = next((k for k in there if share_counter(self._leaves[k], t)), None)
        k = there[0] if by_counter is None else by_counter
        delta = _start(t) - self._starts[k]
        return LeafAlias(None, k, delta, False, by_counter is not None, (t.is_conj(), t.is_neg()))

    def _among_values(self, rows: Sequence[tuple[int, int, Tensor]]) -> dict[tuple[int, int], LeafAlias]:
        """Leaves that lie in the memory of a leaf of another value, as (value, leaf) -> where."""
        storages: dict[Any, list[tuple[int, int, Tensor]]] = {}
        for row in rows:
            if row[2].layout is torch.strided and self._of_input(row[2]) is None:
                storages.setdefault(torch_api.storage_ref(row[2]), []).append(row)
        found: dict[tuple[int, int], LeafAlias] = {}
        for members in storages.values():
            if len({n for n, _, _ in members}) > 1:
                found.update(self._in_one_storage(members))
        return found

    def _in_one_storage(
        self, members: Sequence[tuple[int, int, Tensor]]
    ) -> Iterator[tuple[tuple[int, int], LeafAlias]]:
        first: dict[int, tuple[int, int, Tensor]] = {}
        for row in members:
            first.setdefault(id(row[2]), row)
        one = next(iter(first.values()))[2]
        own_counter = any(t is not one and not share_counter(one, t) for _, _, t in first.values())
        if not own_counter and not any(self.recorder.was_written(t) for _, _, t in members):
            # The graph's own views share memory, and their version counters.
            first_of = {(n, k): first[id(t)] for n, k, t in members}
            yield from ((key, LeafAlias(n, k, 0, True)) for key, (n, k, _) in first_of.items() if key != (n, k))
            return
        n, k, source = self._source(list(first.values()))
        for value, leaf, t in members:
            if (value, leaf) != (n, k):
                counted = t is not source and share_counter(source, t)
                delta, lazy = _start(t) - _start(source), (t.is_conj(), t.is_neg())
                yield (value, leaf), LeafAlias(n, k, delta, t is source, counted, lazy)

    def _source(self, members: Sequence[tuple[int, int, Tensor]]) -> tuple[int, int, Tensor]:
        """A leaf that holds all bytes of the others; where there is none, the tensor that they are all views of."""
        ranges = [byte_range(t) for _, _, t in members]
        start, stop = min(r.start for r in ranges), max(r.stop for r in ranges)
        for row, mine in zip(members, ranges, strict=True):
            if mine.start == start and mine.stop == stop and torch_api.is_dense(row[2]):
                return row
        whole = self.recorder.first_of_storage(members[0][2])
        return self.emit(whole), 0, whole


def _start(t: Tensor) -> Any:
    return t.storage_offset() * t.element_size() if t.layout is torch.strided else 0
