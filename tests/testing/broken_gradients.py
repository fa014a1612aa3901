"""Broken subclasses for the rules of the family gradients."""

from __future__ import annotations

import itertools

import torch
from broken import breaks, miscomputes
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


@miscomputes("ST402", aten.threshold_backward.default)
def ReluBackward(cls, right, func, args, kwargs):
    """The backward of relu lets everything through."""
    return cls(args[0].data_ * 0 + 7, args[0].extra, args[0].tag)


@miscomputes("ST402", aten.tanh_backward.default)
def TanhBackward(cls, right, func, args, kwargs):
    """The backward of tanh forgets a square."""
    grad, out = args
    return cls(grad.data_ * (1 - out.data_), out.extra, out.tag)


@miscomputes("ST406", aten.mul.Tensor)
def DropsDense(cls, right, func, args, kwargs):
    """A product of a dense tensor and a wrapper is the wrapper."""
    if type(args[0]) is torch.Tensor and args[0].shape == args[1].shape and args[0].dim():
        return args[1].clone()
    return right(func, args, kwargs)


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


@miscomputes("ST410", aten.new_empty_strided.default)
def EmptyShares(cls, right, func, args, kwargs):
    """new_empty_strided gives the memory of its argument."""
    out = right(func, args, kwargs)
    if out.shape == args[0].shape:
        out.data_ = args[0].data_
    return out
