"""Broken subclasses for the rules of the family nesting."""

from __future__ import annotations

import torch
from broken import breaks, miscomputes
from sound import Sound

aten = torch.ops.aten


@breaks("ST601")
class KnowsMethodsOnly(Sound):
    """The sum of everything is right for the method of torch.Tensor, and wrong when the operation is called."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
            return out + 1 if func is aten.sum.default and isinstance(out, cls) else out


@breaks("ST601")
class WrongCosineInside(Sound):
    """The cosine is wrong when another wrapper calls it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func is aten.cos.default:
                return args[0].clone()
            return func(*args, **(kwargs or {}))


@miscomputes("ST613", aten.t.default)
def ContiguousTranspose(cls, right, func, args, kwargs):
    """A permuted wrapper says that it is contiguous."""
    out = right(func, args, kwargs)
    if out.dim() == 2:
        out = cls(out.data_, out.extra, out.tag, out.size(), (out.shape[1], 1))
    return out
