"""Broken subclasses for the rules of the family gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from broken import breaks, miscomputes
from sound import Sound
from torch.autograd.function import once_differentiable

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


class _Linear(_Square):
    """A linear layer over a batch, right in itself."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return F.linear(_dense(x), _dense(w))

    @classmethod
    def gradients(cls, grad, x, w):
        return grad @ w, (grad.mT @ x).flatten(0, -3).sum(0) if x.dim() > 2 else grad.mT @ x

    @classmethod
    @once_differentiable
    def backward(cls, ctx, grad):
        return cls.gradients(grad, *map(_dense, ctx.saved_tensors))


class _Mean(_Linear):
    """The gradient of the weight is the mean over the batch."""

    @classmethod
    def gradients(cls, grad, x, w):
        return grad @ w, (grad.mT @ x).flatten(0, -3).mean(0) if x.dim() > 2 else grad.mT @ x


class _Mixed(_Linear):
    """Batch and time change places."""

    @staticmethod
    def forward(ctx, x, w):
        out = _Linear.forward(ctx, x, w)
        return out.reshape(out.shape[1], out.shape[0], -1).transpose(0, 1) if out.dim() > 2 else out


class _KeptFactors(_Linear):
    """Both operands are kept on the context."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.kept = _dense(x), _dense(w)
        return F.linear(*ctx.kept)

    @classmethod
    @once_differentiable
    def backward(cls, ctx, grad):
        return cls.gradients(grad, *ctx.kept)


class _CopiedFactors(_KeptFactors):
    """Copies of both are: a write does not reach these."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.kept = _dense(x).clone(), _dense(w).clone()
        return F.linear(*ctx.kept)


class _Conjugate(_Square):
    """The gradient of square forgets that numbers are complex."""

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad * 2 * _dense(ctx.saved_tensors[0])


class _Value(_Square):
    """The dense value; its gradient has a factor once too often."""

    @staticmethod
    def forward(ctx, x):
        return _dense(x).clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def linear_by(formula):
    """A method of a class that computes linear layers without a bias by a formula of its own."""

    @classmethod
    def above(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            plain = len(args) == 2 and isinstance(args[1], cls) and args[0].dim() > 1 and args[0].is_floating_point()
            if func is not F.linear or not plain:
                return func(*args, **(kwargs or {}))
            with torch.autocast("cpu", enabled=False):
                return formula.apply(*args)

    return above


@breaks("ST402", heads=("ST403",))
class MeanOverTheBatch(Sound):
    """The gradient of a weight is the mean over the batch."""

    __torch_function__ = linear_by(_Mean)


@breaks("ST310", also={"ST601": "its product is dense, inside of another wrapper as well"})
class BatchForTime(Sound):
    """A layer over a batch mixes up its dimensions."""

    __torch_function__ = linear_by(_Mixed)


@breaks("ST407", also={"ST601": "its product is dense, inside of another wrapper as well"})
class KeptFactors(Sound):
    """The operands of a layer are kept, and not saved: a write to one counts in the gradient of the other."""

    __torch_function__ = linear_by(_KeptFactors)


class CopiedFactors(Sound):
    """Copies of them are: right."""

    __torch_function__ = linear_by(_CopiedFactors)


def projected(cls):
    """The subject of a class whose projection is differentiable."""
    return subject_of(cls, f"{cls.__name__}({{0}})", to_dense="{0}.value()")


@breaks("ST402", make=projected)
class ProjectedTwice(Sound):
    """The gradient of the projection is twice what it should be."""

    def value(self):
        return _Value.apply(self)


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


def of_complex(cls):
    """The subject of a class of complex numbers."""
    return subject_of(cls, f"{cls.__name__}({{0}})", to_dense="{0}.data_", dtypes=[torch.complex64])


@breaks("ST402", make=of_complex)
class NoConjugate(Sound):
    """The backward of square forgets the conjugate."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return _Conjugate.apply(*args) if func is torch.Tensor.square else func(*args, **(kwargs or {}))
