"""Broken subclasses for the rules of the family fake."""

from __future__ import annotations

import torch
from broken import breaks, miscomputes
from sound import Sound
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten


def is_fake(x):
    """Is the inner tensor of a `Sound` fake?"""
    return isinstance(x.data_, FakeTensor)


@breaks("ST201")
class NeedsData(Sound):
    """Unflatten asks for data."""

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        if isinstance(inner["data_"], FakeTensor):
            raise RuntimeError("no data")
        return cls(inner["data_"], inner["extra"], context, size, stride)


@miscomputes("ST203", aten.unsqueeze.default)
def OtherSizesWhenFake(cls, right, func, args, kwargs):
    """One operation gives another size on fake tensors."""
    out = right(func, args, kwargs)
    return out.unsqueeze(0) if is_fake(args[0]) and out.dim() < 5 else out


REAL = torch.zeros(2)


@miscomputes("ST203", aten.clone.default)
def RealConstant(cls, right, func, args, kwargs):
    """One operation puts a real tensor into a fake result."""
    out = right(func, args, kwargs)
    if is_fake(args[0]):
        out.extra = REAL
    return out


@breaks("ST205")
class NumbersOnly(Sound):
    """Unflatten refuses symbolic sizes."""

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        if any(isinstance(n, torch.SymInt) for n in size):
            raise TypeError("sizes must be numbers")
        return cls(inner["data_"], inner["extra"], context, size, stride)


@breaks("ST205")
class FlattenAsks(Sound):
    """Flatten turns a size into a number."""

    def __tensor_flatten__(self):
        assert self.dim() == 0 or int(self.shape[0]) >= 0
        return ["data_", "extra"], self.tag


@miscomputes("ST205", aten.clone.default)
def OperationAsks(cls, right, func, args, kwargs):
    """An operation turns a size into a number."""
    if args[0].dim():
        assert int(args[0].shape[0]) >= 0
    return right(func, args, kwargs)
