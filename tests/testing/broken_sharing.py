"""Broken subclasses for the rules of the family sharing."""

from __future__ import annotations

import itertools
import threading

import torch
from broken import breaks
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


@breaks("ST803")
class StateOfOneThread(Sound):
    """Needs state that exists in the importing thread only."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.view.default:
            _state.depth += 0
        return super().compute(func, args, kwargs)


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


@breaks("ST806")
class Cycle(Sound):
    """The result of a product refers to itself."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.mul.Tensor and not isinstance(args[1], torch.Tensor):
            out.me = [out]
        return out
