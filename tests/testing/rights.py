"""Right classes of which the kit has once said that they are not."""

from __future__ import annotations

import torch
from broken_gradients import CopiedFactors
from broken_swept import Scaled
from sound import subject
from torch import Tensor
from torch.utils._pytree import tree_map_only

from subclass_trace.authoring import WrapperTensor
from subclass_trace.testing.subject import subject_of

aten = torch.ops.aten


class Rounds(Scaled):
    """A write divides by the scale again, and so rounds all numbers, also where it changes none (dropout_)."""

    @classmethod
    def compute(cls, func, args, kwargs):
        x = args[0]
        first = func._schema.arguments[0].alias_info
        if not isinstance(x, cls) or first is None or not first.is_write:
            return super().compute(func, args, kwargs)
        value = x.dense()
        rest = tree_map_only(cls, lambda y: y.dense(), args[1:])
        func(value, *rest, **kwargs)
        x.data_.copy_(value / x.scale)
        return x


class Present(WrapperTensor, default="refuse"):
    """Means are over what is there: so is that of a difference of two."""

    value: Tensor
    mask: Tensor

    @classmethod
    def from_dense(cls, x):
        return cls(x.detach().clone(), torch.arange(x.numel()).reshape(x.shape) % 3 != 1)

    def to_dense(self):
        return self.value.masked_fill(~self.mask, 0)


@Present.implements(aten.abs.default, aten.neg.default)
def _pointwise(func, x):
    return x.replace(value=func(x.value), mask=x.mask.clone())


@Present.implements(aten.sub.Tensor)
def _difference(func, x, y, **kwargs):
    if not (isinstance(x, Present) and isinstance(y, Present)) or x.shape != y.shape:
        return NotImplemented
    return Present(func(x.value, y.value, **kwargs), x.mask & y.mask)


@Present.implements(aten.mean.default)
def _mean(func, x, *, dtype=None):
    return x.value.masked_fill(~x.mask, 0).sum(dtype=dtype) / x.mask.sum()


RIGHT = [
    subject_of(Rounds, "Rounds({0}, 2.5)", to_dense="{0}.dense()", dtypes=[torch.float32]),
    subject_of(Present, "Present.from_dense({0})", to_dense="{0}.to_dense()", valid="{0}.mask", dtypes=[torch.float32]),
    subject(CopiedFactors),
]
