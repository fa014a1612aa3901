"""Wrappers of the test programs that are not in the zoo, and short constructors that print well in a program.

`Scaled` stands for quantised tensors: two inner tensors of different shape and a context, closed under a few operations,
dense for all others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

from subclass_trace.zoo import Masked, OptionalBias, TwoTensor

aten = torch.ops.aten
_KEEP = {aten.clone.default, aten.detach.default, aten.alias.default, aten.neg.default}


class Scaled(torch.Tensor):
    """value = data * scale (scale is 0-dim); ``tag`` is context."""

    data_: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor, tag: str = "t", size: Any = None, stride: Any = None):
        size, stride = size or data.shape, stride or data.stride()
        kwargs = dict(strides=stride, storage_offset=data.storage_offset(), dtype=data.dtype, device=data.device)
        self = torch.Tensor._make_wrapper_subclass(cls, size, **kwargs)
        self.data_, self.scale, self.tag = data, scale, tag
        return self

    def __tensor_flatten__(self):
        return ["data_", "scale"], {"tag": self.tag}

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], inner["scale"], context["tag"], size, stride)

    def __repr__(self):
        return f"Scaled({self.data_!r}, {self.scale!r}, {self.tag!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        kwargs = kwargs or {}
        if any(t not in (cls, torch.Tensor, torch.nn.Parameter) and hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented
        x = args[0] if args else None
        if isinstance(x, cls) and (func in _KEEP or func.is_view):
            out = tree_map_only(torch.Tensor, lambda d: cls(d, x.scale, x.tag), func(x.data_, *args[1:], **kwargs))
            if func is aten.clone.default:
                return cls(out.data_, x.scale.clone(), x.tag)
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.mul.Tensor and isinstance(x, cls) and not isinstance(args[1], torch.Tensor):
            return cls(x.data_.clone(), x.scale * args[1], x.tag)
        if func is aten.mul_.Tensor and isinstance(x, cls) and not isinstance(args[1], torch.Tensor):
            x.scale.mul_(args[1])
            return x
        plain = lambda s: s.data_ * s.scale
        if func._schema.is_mutable and isinstance(x, cls):
            if torch.Tag.inplace_view in func.tags:
                raise NotImplementedError(f"{func} on Scaled")
            dense = plain(x)
            func(dense, *tree_map_only(cls, plain, args[1:]), **tree_map_only(cls, plain, kwargs))
            x.data_.copy_(dense / x.scale)
            return x
        return func(*tree_map_only(cls, plain, args), **tree_map_only(cls, plain, kwargs))


def dense(*size: int, seed: int) -> torch.Tensor:
    """Small random numbers, the same for each call."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def two(*size: int, seed: int) -> TwoTensor:
    """A TwoTensor."""
    return TwoTensor(dense(*size, seed=seed), dense(*size, seed=seed + 100))


def nested(*size: int, seed: int) -> TwoTensor:
    """A TwoTensor of TwoTensors."""
    return TwoTensor(two(*size, seed=seed), two(*size, seed=seed + 200))


def masked(*size: int, seed: int) -> Masked:
    """A Masked tensor with about a third missing."""
    return Masked(dense(*size, seed=seed), dense(*size, seed=seed + 300) > -0.5)


def scaled(*size: int, seed: int) -> Scaled:
    """A Scaled tensor."""
    return Scaled(dense(*size, seed=seed), torch.tensor(0.5 + seed % 3))


def biased(*size: int, seed: int) -> OptionalBias:
    """An OptionalBias; odd seeds have no bias."""
    return OptionalBias(dense(*size, seed=seed), None if seed % 2 else dense(*size, seed=seed + 400))
