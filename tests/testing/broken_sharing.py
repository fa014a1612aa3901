"""Broken subclasses for the rules of the family sharing."""

from __future__ import annotations

import itertools
import threading

import torch
from broken import breaks, miscomputes
from sound import Sound

aten = torch.ops.aten
_count = itertools.count()
_state = threading.local()
_state.depth = 0


@breaks("ST801")
class UnstableHash(Sound):
    """Each hash for caches is another one."""

    def _stable_hash_for_caching(self):
        return f"{next(_count)}"


@breaks("ST802")
class HashOfContents(Sound):
    """Hashed by identity and version."""

    def __hash__(self):
        return hash((id(self), self._version))


@miscomputes("ST803", aten.view.default)
def StateOfOneThread(cls, right, func, args, kwargs):
    """Needs state that exists in the importing thread only."""
    _state.depth += 0
    return right(func, args, kwargs)


@breaks("ST804")
class ReprOfWhole(Sound):
    """Cannot be printed when it is empty."""

    def __repr__(self):
        return f"first element {self.data_.flatten()[:1].detach()}" if self.data_.numel() else 1 / 0


@breaks("ST805")
class ReprReads(Sound):
    """Reads a value to print it."""

    def __repr__(self):
        return f"{self.extra.sum().item()}"


@miscomputes("ST806", aten.mul.Tensor)
def Cycle(cls, right, func, args, kwargs):
    """The result of a product refers to itself."""
    out = right(func, args, kwargs)
    if not isinstance(args[1], torch.Tensor):
        out.me = [out]
    return out
