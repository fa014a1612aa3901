"""To which rank a description belongs."""

from __future__ import annotations

from typing import Any

from ..errors import Reason, Unlike
from ..torch_api.ranks import rank_and_size


def ranks_of(reads: tuple[str, ...]) -> list[Any]:
    """How many ranks there are; the one that it belongs to, if any, and why."""
    here = rank_and_size()
    rank, size = (None, None) if here is None else here
    return [size, rank if reads else None, [*reads]]


def compare_ranks(known: Any) -> None:
    """May what belongs to these serve here?

    Raises:
        Unlike: no.
    """
    size, rank, why = known
    here = rank_and_size()
    now, count = (None, None) if here is None else here
    if size != count:
        raise Unlike(Reason(f"ranks: expected {size} of them, got {count}"))
    if rank is not None and rank != now:
        raise Unlike(
            Reason(
                f"ranks: expected rank {rank}, since the trace has read {'; '.join(map(str, why))}"
                f", got rank {now}"
            )
        )
