"""Broken subclasses for the rules of the family gradients."""

from __future__ import annotations

import itertools

import torch
from broken import breaks
from sound import Sound

from subclass_trace.testing.subject import subject_of

aten = torch.ops.aten


@breaks("ST401")
class DetachesAbove(Sound):
    """float() is done on a detached tensor, in __torch_function__."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
            return out.detach() if func is torch.Tensor.float else out


@breaks("ST402")
class ReluBackward(Sound):
    """The backward of relu lets everything through."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.threshold_backward.default:
            return cls(args[0].data_ * 0 + 7, args[0].extra, args[0].tag)
        return super().compute(func, args, kwargs)


@breaks("ST402")
class TanhBackward(Sound):
    """The backward of tanh forgets a square."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.tanh_backward.default:
            grad, out = args
            return cls(grad.data_ * (1 - out.data_), out.extra, out.tag)
        return super().compute(func, args, kwargs)


@breaks("ST404")
class NegatesNothingToo(Sound):
    """neg, which the second derivative of sin needs, does nothing."""

    @classmethod
    def compute(cls, func, args, kwargs):
        return args[0].clone() if func is aten.neg.default else super().compute(func, args, kwargs)


@breaks(
    "ST405", also=dict.fromkeys(("ST402", "ST402", "ST404"), "the gradients of a value that is used twice are added")
)
class AddsFirst(Sound):
    """The sum of two wrappers is the first one."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.add.Tensor and isinstance(args[0], cls) and isinstance(args[1], cls):
            return args[0].clone()
        return super().compute(func, args, kwargs)


@breaks("ST406")
class DropsDense(Sound):
    """A product of a dense tensor and a wrapper is the wrapper."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if (
            func is aten.mul.Tensor
            and type(args[0]) is torch.Tensor
            and args[0].shape == args[1].shape
            and args[0].dim()
        ):
            return args[1].clone()
        return super().compute(func, args, kwargs)


@breaks("ST407")
class HiddenState(Sound):
    """A rebuilt instance does not know that it is exact, and a product with it is another one."""

    exact = True

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        out = super().__tensor_unflatten__(inner, context, size, stride)
        out.exact = False
        return out

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.detach.default:
            out.exact = args[0].exact
        if func is aten.mul.Tensor and all(isinstance(a, cls) for a in args) and not all(a.exact for a in args):
            out.data_ = out.data_ + 1
        return out


class _Of(torch.autograd.Function):
    @staticmethod
    def forward(ctx, data):
        return WrongConstructor(data.detach().clone())

    @staticmethod
    def backward(ctx, grad):
        return grad.data_ * 2


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.data_.clone()

    @staticmethod
    def backward(ctx, grad):
        return WrongConstructor(grad)


@breaks("ST408", make=lambda cls: subject_of(cls, cls.of, to_dense="{0}.dense()"))
class WrongConstructor(Sound):
    """The constructor multiplies the gradient by two."""

    @classmethod
    def of(cls, data):
        return _Of.apply(data)

    def dense(self):
        return _Dense.apply(self)


_calls = itertools.count()


@breaks("ST409")
class Alternates(Sound):
    """Each third cosh is another one."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        return out * 2 if func is aten.cosh.default and next(_calls) % 3 == 2 else out


@breaks("ST410")
class EmptyShares(Sound):
    """new_empty_strided gives the memory of its argument."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.new_empty_strided.default and out.shape == args[0].shape:
            out.data_ = args[0].data_
        return out
