"""Broken subclasses for the rules of the family sharing."""

from __future__ import annotations

from broken import breaks
from sound import Sound


@breaks("ST804")
class ReprOfWhole(Sound):
    """Cannot be printed when it is empty."""

    def __repr__(self):
        return f"first element {self.data_.flatten()[:1].detach()}" if self.data_.numel() else 1 / 0
