"""Broken subclasses for the rules of the family gradients."""

from __future__ import annotations

import torch
from broken import breaks, miscomputes
from sound import Sound

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
