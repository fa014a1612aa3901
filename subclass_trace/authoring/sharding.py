"""FSDP2's two hooks, where they follow from the declaration.

FSDP2 cuts a parameter into rows, one piece for each rank, and gathers the pieces before use. That
can be derived when
each inner tensor has the rows of the wrapper: piece by piece, and inner tensor by inner tensor. A
scale of a whole tensor has no rows; what becomes of it is for the author to say.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UnsupportedError
from .fields import like


def pre_all_gather(x: Any, ranks: int, outer_size: Any) -> tuple[tuple[torch.Tensor, ...], Any]:
    """What this rank sends: its inner tensors, with as many rows as the first rank has.

    Args:
        ranks: among how many the parameter is cut.
        outer_size: the shape of the whole parameter.

    Raises:
        UnsupportedError: an inner tensor does not have the rows of the wrapper.
    """
    names = list(x.__tensor_flatten__()[0])
    for name in names:
        t = getattr(x, name)
        if t.dim() == 0 or x.dim() == 0 or t.shape[0] != x.shape[0]:
            cls = type(x).__name__
            raise UnsupportedError(
                f"the all-gather of {cls} cannot be derived: {name} does not have one row for "
                "each row of the wrapper",
                code="wrapper-form",
                path=f"{cls}.{name}",
                expected=f"{x.shape[0] if x.dim() else 'no'} rows",
                got=f"shape {tuple(t.shape)}",
                fix=f"define fsdp_pre_all_gather and fsdp_post_all_gather in {cls}; see "
                "docs/authoring.md",
            )
    own = {n: getattr(x, n) for n in names}
    rows = -(-outer_size[0] // ranks)
    # A group of one rank gathers nothing, and torch 2.13 hands back the first tensor only.
    alone = own if ranks == 1 else None
    return tuple(_padded(t, rows) for t in own.values()), (names, tuple(outer_size), alone)


def _padded(t: torch.Tensor, rows: int) -> torch.Tensor:
    missing = rows - t.shape[0]
    return torch.cat([t, t.new_zeros(missing, *t.shape[1:])]) if missing else t.contiguous()


def post_all_gather(
    x: Any, gathered: tuple[torch.Tensor, ...], metadata: Any, out: Any
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
    """The whole parameter, and the tensors that FSDP may free between uses; nothing when ``out`` is
    given.

    ``out`` already holds the gathered tensors as its inner ones: FSDP gathers into the memory of
    the first time.
    """
    names, size, alone = metadata
    if out is None:
        tensors = alone or {n: t[: size[0]] for n, t in zip(names, gathered, strict=True)}
        return like(x, tensors), ()
    for n, t in (alone or {}).items():
        target = getattr(out, n)
        if target.data_ptr() != t.data_ptr():  # the parameter of this rank has other tensors now
            target.copy_(t)
    return None
