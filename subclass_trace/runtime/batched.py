"""Backwards for tangents that stand for several ones at once (``is_grads_batched``, vectorized jacobians).

Operations of our own back end take such tangents as they are. Programs of compilers do not, and a wrapper is inside of the
batched tensor, where its inner tensors would have to be outside. There the backward runs once for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .. import torch_api

Tensor = torch.Tensor
Gradients = Sequence[Tensor | None]


def row_by_row(run: Callable[[Gradients], Gradients], tangents: Gradients) -> Gradients:
    """Gradients of batched tangents: ``run`` for those of each row. Some may be batched by several vmaps."""
    with torch_api.outside_of_vmap() as level:
        rows = [None if t is None else torch_api.without_batch(t, level) for t in tangents]
        count = max(len(t) for t in rows if t is not None)
        if not count:  # one row of zeros tells what gradients look like
            rows = [None if t is None else t.new_zeros((1, *t.shape[1:])) for t in rows]
        found = [run([None if t is None else t[min(k, len(t) - 1)] for t in rows]) for k in range(max(count, 1))]
        together = [None if own[0] is None else torch.stack(own) for own in zip(*found, strict=True)]
        if not count:
            together = [None if g is None else g[:0] for g in together]
    return [None if g is None else torch_api.with_batch(g, level) for g in together]
