"""Broken subclasses for the rules of the family compiled."""

from __future__ import annotations

import torch
from broken import breaks
from sound import Sound
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

aten = torch.ops.aten


def traced(x):
    """Is the inner tensor of a `Sound` that of a tracer?"""
    return isinstance(x.data_, (FakeTensor, FunctionalTensor))


@breaks("ST701")
class OtherWhenTraced(Sound):
    """While it is traced, adding a number adds another one."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.add.Tensor and not isinstance(args[1], torch.Tensor) and traced(args[0]):
            out.data_ = out.data_ + 1
        return out


@breaks("ST702")
class OtherBackwardWhenTraced(Sound):
    """While it is traced, the backward of sigmoid is another one."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.sigmoid_backward.default and traced(args[1]):
            out.data_ = out.data_ + 1
        return out


@breaks("ST703")
class FixedWhenSymbolic(Sound):
    """The sine is another one if sizes are symbols."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.sin.default and any(isinstance(n, torch.SymInt) for n in args[0].shape):
            out.data_ = out.data_ + 1
        return out


def replace(x, value):
    """Put a new tensor in place of the inner one."""
    x.data_ = value
    return x


@breaks("ST704")
class ReplacesInner(Sound):
    """While it is traced, sub_ puts a new tensor in place of the old one, and forgets what it subtracts."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.sub_.Tensor and traced(args[0]):
            return replace(args[0], args[0].data_ - 0)
        return super().compute(func, args, kwargs)


@breaks("ST705")
class ReplacesForOne(Sound):
    """While it is traced, neg_ puts a new tensor in place of the old one: other views of that do not see it."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.neg_.default and traced(args[0]):
            return replace(args[0], -args[0].data_)
        return super().compute(func, args, kwargs)


@breaks("ST701")
class ValueInContext(Sound):
    """The context holds a value that guards do not compare, and sinh uses it."""

    def __init__(self, data, extra=None, tag="tag", size=None, stride=None):
        if tag == "tag" and not isinstance(data, FakeTensor) and type(data) is torch.Tensor and data.numel():
            self.tag = Value(data.flatten()[0].item() if data.device.type == "cpu" else 0)

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.sinh.default and isinstance(args[0].tag, Value):
            out.data_ = out.data_ + args[0].tag.value
        return out


class Value:
    """Equal to every other one."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Value)

    def __hash__(self):
        return 1


@breaks("ST702")
class TangentsOfTheClass(Sound):
    """While it is traced, a product with a dense tensor is another one."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.mul.Tensor and not isinstance(args[0], cls) and isinstance(args[0], FakeTensor):
            out.data_ = out.data_ + 1
        return out
