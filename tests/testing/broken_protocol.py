"""Broken subclasses for the rules of the family protocol."""

from __future__ import annotations

import itertools

import torch
from broken import breaks
from sound import Sound


@breaks("ST101")
class ForgetsOffset(Sound):
    """Unflatten gives another storage offset."""

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        self = torch.Tensor._make_wrapper_subclass(cls, size, strides=stride, dtype=inner["data_"].dtype)
        self.data_, self.extra, self.tag = inner["data_"], inner["extra"], context
        return self


_turn = itertools.count()


@breaks("ST102", heads=("ST113",))
class SwapsNames(Sound):
    """The order of the names changes from call to call."""

    def __tensor_flatten__(self):
        names = ["data_", "extra"]
        return (names if next(_turn) % 2 else names[::-1]), self.tag


@breaks("ST103")
class CopiesInner(Sound):
    """Unflatten stores another object for one inner tensor."""

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], inner["extra"].as_subclass(torch.Tensor), context, size, stride)


@breaks("ST101")
class InventsGrad(Sound):
    """What unflatten returns requires grad."""

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        out = cls(inner["data_"], inner["extra"], context, size, stride)
        return out.requires_grad_() if out.is_floating_point() else out


@breaks("ST101")
class LosesContext(Sound):
    """Unflatten ignores the context."""

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], inner["extra"], context + "'", size, stride)


class Owner:
    """Compared by identity."""

    def __deepcopy__(self, memo):
        return Owner()


OWNER = Owner()


@breaks("ST106")
class ContextOfObjects(Sound):
    """The context holds an object that is not equal to its copy."""

    def __tensor_flatten__(self):
        return ["data_", "extra"], (self.tag, OWNER)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], inner["extra"], context[0], size, stride)


CACHE = torch.ones(1)


class Box:
    """Holds a tensor; equal to any other box."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Box)

    __hash__ = None


@breaks("ST107")
class ContextOfTensors(Sound):
    """The context holds a tensor."""

    def __tensor_flatten__(self):
        return ["data_", "extra"], (self.tag, Box(CACHE))

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], inner["extra"], context[0], size, stride)


@breaks("ST109")
class GradInside(Sound):
    """requires_grad_ reaches the idle inner tensor."""

    def requires_grad_(self, requires_grad=True):
        self.extra.requires_grad_(requires_grad)
        return super().requires_grad_(requires_grad)


@breaks("ST110")
class HidesGrad(Sound):
    """The constructor keeps a tensor that requires grad."""

    check_grad = False


@breaks("ST111", also={"ST205": "sizes of the context are numbers, also where the leaves have symbols"})
class SizesInContext(Sound):
    """The outer size is taken from the context."""

    def __tensor_flatten__(self):
        return ["data_", "extra"], (self.tag, tuple(self.shape), tuple(self.stride()))

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], inner["extra"], *context)


@breaks("ST102")
class FreshInner(Sound):
    """One inner tensor is a new object for each look."""

    @property
    def extra(self):
        return self.hidden[0].as_subclass(torch.Tensor)

    @extra.setter
    def extra(self, value):
        self.hidden = [value]


@breaks("ST107")
class Forgotten(Sound):
    """An attribute holds a tensor that flatten does not name."""

    def __init__(self, *args, **kwargs):
        self.cache = CACHE
