"""Which results lead to which inputs, where they do not all lead to all of them."""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class Reach:
    """For each differentiable result the places, among ``inputs`` differentiated inputs, of those it is computed from."""

    rows: tuple[tuple[int, ...], ...]
    inputs: int

    @functools.cached_property
    def alike_inputs(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """(numbers of results, the inputs that these alone depend on), for each such set of results."""
        found: dict[tuple[int, ...], tuple[int, ...]] = {}
        for k in self.needed:
            numbers = tuple(n for n, row in enumerate(self.rows) if k in row)
            found[numbers] = (*found.get(numbers, ()), k)
        return tuple(found.items())

    @functools.cached_property
    def alike_results(self) -> tuple[tuple[int, ...], ...]:
        """Results by their numbers, those together that depend on the same inputs."""
        found: dict[tuple[int, ...], tuple[int, ...]] = {}
        for n, row in enumerate(self.rows):
            found[row] = (*found.get(row, ()), n)
        return tuple(found.values())

    @functools.cached_property
    def needed(self) -> tuple[int, ...]:
        """The inputs that some result depends on."""
        return tuple(sorted({k for row in self.rows for k in row}))

    @functools.cached_property
    def partly_needed(self) -> tuple[int, ...]:
        """The inputs that some results depend on, and others do not."""
        return tuple(k for numbers, row in self.alike_inputs if len(numbers) < len(self.rows) for k in row)
