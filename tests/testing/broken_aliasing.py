"""Broken subclasses for the rules of the family aliasing."""

from __future__ import annotations

import torch
from broken import breaks
from sound import Sound
from torch.utils._python_dispatch import return_and_correct_aliasing

aten = torch.ops.aten


def replaced(x, func, args, kwargs):
    """The new inner tensor that an in-place operation would have written."""
    data = x.data_.clone()
    func(data, *(a.data_ if isinstance(a, Sound) else a for a in args[1:]), **kwargs)
    return data


@breaks("ST321")
class CopiesSlices(Sound):
    """A slice is a copy."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.slice.Tensor:
            out.data_, out.extra = out.data_.clone(), out.extra.clone()
        return out


@breaks("ST322")
class ForgetsStorage(Sound):
    """A transpose has a storage of its own."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        return cls(out.data_, out.extra, out.tag) if func is aten.transpose.int else out


@breaks("ST323")
class AnotherSelf(Sound):
    """mul_ writes, and returns another wrapper of the same tensor."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        return cls(out.data_, out.extra, out.tag) if func is aten.mul_.Tensor else out


@breaks("ST324")
class ReplacesInViews(Sound):
    """In views, add_ puts a new tensor in place of the old one."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.add_.Tensor and args[0]._is_view():
            args[0].data_ = replaced(args[0], func, args, kwargs)
            return args[0]
        return super().compute(func, args, kwargs)


@breaks("ST324")
class ReplacesInBases(Sound):
    """In what is no view, zero_ puts a new tensor in place of the old one."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.zero_.default and not args[0]._is_view():
            args[0].data_ = replaced(args[0], func, args, kwargs)
            return args[0]
        return super().compute(func, args, kwargs)


@breaks("ST326")
class NegatesNothing(Sound):
    """neg_ does nothing."""

    @classmethod
    def compute(cls, func, args, kwargs):
        return args[0] if func is aten.neg_.default else super().compute(func, args, kwargs)


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


@breaks("ST326")
class IgnoresOut(Sound):
    """sub with out= computes, and writes nothing."""

    @classmethod
    def compute(cls, func, args, kwargs):
        return kwargs["out"] if func is aten.sub.out else super().compute(func, args, kwargs)


@breaks("ST330")
class KeepsOuterSize(Sound):
    """squeeze_ changes the inner tensor and not the wrapper."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.squeeze_.dim:
            args[0].data_.squeeze_(*args[1:])
            return args[0]
        return super().compute(func, args, kwargs)


@breaks("ST331")
class SharesAbs(Sound):
    """The absolute value of something positive is the same tensor."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.abs.default and bool((args[0].data_ >= 0).all()):
            return cls(args[0].data_, args[0].extra, args[0].tag)
        return super().compute(func, args, kwargs)


@breaks("ST332")
class SharesInfo(Sound):
    """Clones share a dict, in which abs_ writes down that it was here."""

    def __init__(self, data, extra=None, tag="tag", size=None, stride=None):
        self.tag = tag if isinstance(tag, dict) else {"calls": 0}

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.abs_.default:
            args[0].tag["calls"] += 1
        return super().compute(func, args, kwargs)
