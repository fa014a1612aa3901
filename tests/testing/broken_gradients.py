"""Broken subclasses for the rules of the family gradients."""

from __future__ import annotations

import torch
from broken import breaks, miscomputes
from sound import Sound
from torch.autograd.function import once_differentiable

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


@miscomputes("ST406", aten.mul.Tensor, heads=("ST310",))
def DropsDense(cls, right, func, args, kwargs):
    """A product of a dense tensor and a wrapper is the wrapper."""
    if type(args[0]) is torch.Tensor and args[0].shape == args[1].shape and args[0].dim():
        return args[1].clone()
    return right(func, args, kwargs)


@miscomputes("ST410", aten.new_empty_strided.default, heads=("ST331",))
def EmptyShares(cls, right, func, args, kwargs):
    """new_empty_strided gives the memory of its argument."""
    out = right(func, args, kwargs)
    if out.shape == args[0].shape:
        out.data_ = args[0].data_
    return out


def _dense(x):
    return x.data_ if isinstance(x, Sound) else x


class _Square(torch.autograd.Function):
    """A formula above autograd, right in itself: what it saves is the wrapper, which backward computes with."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _dense(x).square()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * (x * 1).detach() * grad


class _Kept(_Square):
    """It keeps the inner tensor itself."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = _dense(x)
        return ctx.x.square()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return 2 * ctx.x * grad


class _Product(_Square):
    """A product that gives no gradient to the second where the first needs none."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return _dense(x) * _dense(y)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return (grad * _dense(y), grad * _dense(x)) if ctx.needs_input_grad[0] else (None, None)


class _Writes(_Square):
    """Its backward multiplies into the gradient that it was given."""

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.mul_(2 * _dense(x))


def with_formula(formula, *functions):
    """A method of a class that computes some functions by a formula of its own."""

    @classmethod
    def above(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            same = all(
                isinstance(a, torch.Tensor) and a.shape == args[0].shape and a.dtype.is_floating_point for a in args
            )
            if func in functions and not kwargs and same:
                return formula.apply(*args)
            return func(*args, **(kwargs or {}))

    return above


@breaks("ST405")
class DetachedBackward(Sound):
    """The backward of square computes on a detached operand: the second derivative is lost."""

    __torch_function__ = with_formula(_Square, torch.Tensor.square)


@breaks("ST407")
class KeptOperand(Sound):
    """The operand of square is kept, and not saved."""

    __torch_function__ = with_formula(_Kept, torch.Tensor.square)


@breaks("ST403", also={"ST601": "its product is dense, inside of another wrapper as well"})
class OneAlone(Sound):
    """The second operand of a product has a gradient where the first has one as well."""

    __torch_function__ = with_formula(_Product, torch.Tensor.mul)


@breaks("ST331")
class WrittenGradient(Sound):
    """The backward of square writes into the gradient that it was given."""

    __torch_function__ = with_formula(_Writes, torch.Tensor.square)
