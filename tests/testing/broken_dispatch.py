"""Broken subclasses for the rules of the family dispatch."""

from __future__ import annotations

import torch
from broken import breaks, miscomputes
from sound import Sound, foreign
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten


def dispatch(cls, func, args, kwargs):
    """What `Sound` does with a call, but for the look at foreign wrappers."""
    if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
        return out
    return cls.compute(func, args, kwargs)


@breaks("ST301")
class UnwrapsFirst(Sound):
    """Looks for strangers only if it is not the first argument itself."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if foreign(cls, types) and not isinstance(args[0], cls):
            return NotImplemented
        return dispatch(cls, func, args, kwargs or {})


@breaks("ST301")
class UnwrapsSecond(Sound):
    """Looks for strangers only if it is the first argument itself."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if foreign(cls, types) and (isinstance(args[0], (cls, list))):
            return NotImplemented
        return dispatch(cls, func, args, kwargs or {})


@breaks("ST301")
class LooksAtArguments(Sound):
    """Looks for strangers among the arguments, not in lists."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if foreign(cls, [type(a) for a in args]):
            return NotImplemented
        return dispatch(cls, func, args, kwargs or {})


@breaks("ST305")
class RefusesComposites(Sound):
    """Does not know operations that autograd takes apart."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if foreign(cls, types):
            return NotImplemented
        if func._can_decompose():
            raise NotImplementedError(f"{func} is not in the table")
        return cls.compute(func, args, kwargs or {})


@breaks("ST308")
class IgnoresConjugate(Sound):
    """Computes with complex inner tensors as they lie in memory."""

    keys = Sound.keys.remove(torch._C.DispatchKey.Conjugate)


@breaks("ST308")
class IgnoresNegative(Sound):
    """Computes with real inner tensors as they lie in memory."""

    @classmethod
    def compute(cls, func, args, kwargs):
        def bare(x):
            return cls(x.data_._neg_view(), x.extra, x.tag) if x.data_.is_neg() and not x.is_complex() else x

        if not func.is_view and not func._schema.is_mutable and any(isinstance(a, cls) for a in tree_leaves(args)):
            args = tree_map_only(cls, bare, args)
        return super().compute(func, args, kwargs)


@miscomputes("ST310", aten.flip.default)
def FlipsNothing(cls, right, func, args, kwargs):
    """flip is a copy."""
    return args[0].clone()
