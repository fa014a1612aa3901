"""Broken subclasses whose fault shows in another argument, mode or moment than the usual one."""

from __future__ import annotations

import torch
from broken import breaks, miscomputes
from broken_swept import Scaled, scaled
from sound import Sound

aten = torch.ops.aten


@miscomputes("ST310", aten.cumprod.default)
def ScansTheLast(cls, right, func, args, kwargs):
    """cumprod runs along the last dimension, whatever is asked."""
    return right(func, (args[0], -1), kwargs)


@miscomputes("ST313", aten.sum.dim_IntList)
def CountsFromOne(cls, right, func, args, kwargs):
    """A negative dimension is counted wrong but for the last one."""
    x, dims, *rest = args
    return right(func, (x, [-1 if d < -1 else d for d in dims], *rest), kwargs)


@miscomputes("ST314", aten.clamp.default)
def ClampsAtZero(cls, right, func, args, kwargs):
    """A lower bound above 0 is taken for 0."""
    x, low, *rest = [*args, None]
    low = kwargs.get("min", low)
    return right(func, (x, min(low, 0) if isinstance(low, (int, float)) else low, *rest[:1]), {})


@miscomputes("ST310", aten._foreach_norm.Scalar)
def AlwaysTwo(cls, right, func, args, kwargs):
    """_foreach_norm knows the Euclidean norm alone."""
    return right(func, args[:1], {})


@miscomputes("ST310", aten.relu.default)
def MasksInfinity(cls, right, func, args, kwargs):
    """relu as a product with a mask: of minus infinity that is NaN."""
    x = args[0]
    if not x.is_floating_point():
        return right(func, args, kwargs)
    return (
        right(aten.mul.Tensor, (x, (x.data_ > 0).to(x.dtype)), {})
        if x.data_.isneginf().any()
        else right(func, args, kwargs)
    )


@breaks("ST306")
class Differentiates(Sound):
    """What a product gives requires grad where an operand does, also under no_grad."""

    __torch_function__ = classmethod(
        lambda cls, func, types, args=(), kwargs=None: cls.called(func, args, kwargs or {})
    )

    @classmethod
    def called(cls, func, args, kwargs):
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **kwargs)
            if func is torch.Tensor.exp and args[0].requires_grad and not torch.is_grad_enabled():
                out.requires_grad_()
            return out


@breaks("ST507", heads=("ST401",))
class ForgetsHistory(Sound):
    """What is pickled does not require grad any more."""

    def __reduce_ex__(self, protocol):
        make, (cls, inner, context, size, stride, requires_grad, parameter) = super().__reduce_ex__(protocol)
        return make, (cls, inner, context, size, stride, requires_grad and parameter, parameter)


@breaks("ST331", make=scaled, also={"ST308": "a sum of lazy bits is added when its value is asked for"})
class Lazy(Scaled):
    """A sum keeps the dense addend, and adds it when the value is asked for: written since, it counts."""

    addend = None

    def dense(self):
        value = super().dense()
        return value if self.addend is None else value + self.addend

    @classmethod
    def compute(cls, func, args, kwargs):
        x, *rest = args
        if func is aten.add.Tensor and isinstance(x, cls) and type(rest[0]) is torch.Tensor:
            if rest[0].shape == x.shape and rest[0].dtype == x.dtype and not kwargs and x.addend is None:
                out = cls(x.data_.clone(), x.scale, x.extra.clone())
                out.addend = rest[0]
                return out
        return super().compute(func, args, kwargs)
