"""A wrapper with an object in its context, which its operations read."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

Tensor = torch.Tensor


class Quantised(Tensor):
    """One inner tensor; ``q`` in the context. ``sin`` is multiplied with what ``q.use`` gives, ``cos`` (the backward of
    ``sin``) with what ``q.late`` gives."""

    a: Tensor
    q: Any

    @staticmethod
    def __new__(cls, a: Tensor, q: Any) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a: Tensor, q: Any) -> None:
        self.a, self.q = a, q

    def __tensor_flatten__(self) -> Any:
        return ["a"], {"q": self.q}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context["q"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        q = next(t.q for t in tree_leaves((args, kwargs)) if isinstance(t, cls))
        dense_args, dense_kwargs = tree_map_only(cls, lambda t: t.a, (args, kwargs or {}))
        out = func(*dense_args, **dense_kwargs)
        if func is torch.ops.aten.sin.default:
            out = out * q.use()
        if func is torch.ops.aten.cos.default and hasattr(type(q), "late"):
            out = out * q.late()
        out = tree_map_only(Tensor, lambda t: cls(t, q), out)
        return return_and_correct_aliasing(func, args, kwargs or {}, out)


class Plain:
    def __init__(self) -> None:
        self.scale, self.step, self.table = 2.0, 0, [1.0, 2.0]

    def use(self) -> Any:
        return self.scale


def sine(x: Any) -> Any:
    return x.sin()
