"""Broken subclasses for the rules of the family compiled."""

from __future__ import annotations

import torch
from broken import breaks, miscomputes
from sound import Sound
from torch._subclasses.fake_tensor import FakeTensor, is_fake
from torch._subclasses.functional_tensor import FunctionalTensor

aten = torch.ops.aten


def traced(x):
    """Is the inner tensor of a `Sound` that of a tracer?"""
    return isinstance(x.data_, (FakeTensor, FunctionalTensor))


@miscomputes("ST701", aten.add.Tensor)
def OtherWhenTraced(cls, right, func, args, kwargs):
    """While it is traced, adding a number adds another one."""
    out = right(func, args, kwargs)
    if not isinstance(args[1], torch.Tensor) and traced(args[0]):
        out.data_ = out.data_ + 1
    return out


@miscomputes("ST702", aten.sigmoid_backward.default)
def OtherBackwardWhenTraced(cls, right, func, args, kwargs):
    """While it is traced, the backward of sigmoid is another one."""
    out = right(func, args, kwargs)
    if traced(args[1]):
        out.data_ = out.data_ + 1
    return out


@miscomputes("ST703", aten.sin.default)
def FixedWhenSymbolic(cls, right, func, args, kwargs):
    """The sine is another one if sizes are symbols."""
    out = right(func, args, kwargs)
    if any(isinstance(n, torch.SymInt) for n in args[0].shape):
        out.data_ = out.data_ + 1
    return out


def replace(x, value):
    """Put a new tensor in place of the inner one."""
    x.data_ = value
    return x


@miscomputes("ST704", aten.sub_.Tensor)
def ReplacesInner(cls, right, func, args, kwargs):
    """While it is traced, sub_ puts a new tensor in place of the old one, and forgets what it subtracts."""
    if isinstance(args[0], cls) and traced(args[0]):
        return replace(args[0], args[0].data_ - 0)
    return right(func, args, kwargs)


@breaks("ST701", heads=("ST310",))
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


@miscomputes("ST702", aten.mul.Tensor)
def TangentsOfTheClass(cls, right, func, args, kwargs):
    """While it is traced, a product with a dense tensor is another one."""
    out = right(func, args, kwargs)
    if not isinstance(args[0], cls) and is_fake(args[0]):
        out.data_ = out.data_ + 1
    return out
