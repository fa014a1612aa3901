"""Broken subclasses for the rules of the family aliasing."""

from __future__ import annotations

import torch
from broken import breaks, miscomputes
from sound import Sound
from torch.utils._python_dispatch import return_and_correct_aliasing

aten = torch.ops.aten


def replaced(x, func, args, kwargs):
    """The new inner tensor that an in-place operation would have written."""
    data = x.data_.clone()
    func(data, *(a.data_ if isinstance(a, Sound) else a for a in args[1:]), **kwargs)
    return data


@miscomputes("ST321", aten.slice.Tensor, heads=("ST326",))
def CopiesSlices(cls, right, func, args, kwargs):
    """A slice is a copy."""
    out = right(func, args, kwargs)
    out.data_, out.extra = out.data_.clone(), out.extra.clone()
    return out


@miscomputes("ST322", aten.transpose.int)
def ForgetsStorage(cls, right, func, args, kwargs):
    """A transpose has a storage of its own."""
    out = right(func, args, kwargs)
    return cls(out.data_, out.extra, out.tag)


@miscomputes("ST323", aten.mul_.Tensor)
def AnotherSelf(cls, right, func, args, kwargs):
    """mul_ writes, and returns another wrapper of the same tensor."""
    out = right(func, args, kwargs)
    return cls(out.data_, out.extra, out.tag)


@miscomputes("ST324", aten.add_.Tensor)
def ReplacesInViews(cls, right, func, args, kwargs):
    """In views, add_ puts a new tensor in place of the old one."""
    if args[0]._is_view():
        args[0].data_ = replaced(args[0], func, args, kwargs)
        return args[0]
    return right(func, args, kwargs)


@miscomputes("ST324", aten.zero_.default)
def ReplacesInBases(cls, right, func, args, kwargs):
    """In what is no view, zero_ puts a new tensor in place of the old one."""
    if not args[0]._is_view():
        args[0].data_ = replaced(args[0], func, args, kwargs)
        return args[0]
    return right(func, args, kwargs)


@miscomputes("ST326", aten.neg_.default)
def NegatesNothing(cls, right, func, args, kwargs):
    """neg_ does nothing."""
    return args[0]


@breaks("ST327")
class WritesAboveAutograd(Sound):
    """neg_ is done in __torch_function__, behind the back of autograd."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.Tensor.neg_:
                args[0].data_.neg_()
                return args[0]
            return func(*args, **(kwargs or {}))


@breaks("ST327")
class ViewsAboveAutograd(Sound):
    """unsqueeze is done in __torch_function__: autograd does not know that the result is a view."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.Tensor.unsqueeze and not args[0].requires_grad:
                x = args[0]
                out = cls(x.data_.detach().unsqueeze(*args[1:]), x.extra, x.tag)
                return return_and_correct_aliasing(aten.unsqueeze.default, args, kwargs or {}, out)
            return func(*args, **(kwargs or {}))


@miscomputes("ST326", aten.sub.out)
def IgnoresOut(cls, right, func, args, kwargs):
    """sub with out= computes, and writes nothing."""
    return kwargs["out"]


@miscomputes("ST331", aten.abs.default)
def SharesAbs(cls, right, func, args, kwargs):
    """The absolute value of something positive is the same tensor."""
    if bool((args[0].data_ >= 0).all()):
        return cls(args[0].data_, args[0].extra, args[0].tag)
    return right(func, args, kwargs)
