"""Sizes that became constants."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

import subclass_trace as st


class Checked(torch.Tensor):
    """Its outer size is in its context, and rebuilding it compares the two: no size of it can stay a symbol."""

    @staticmethod
    def __new__(cls, a: torch.Tensor) -> Checked:
        made = torch.Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype)
        made.a = a
        return made

    def __tensor_flatten__(self):
        return ["a"], (self.shape,)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Any], context: Any, size: Any, stride: Any) -> Checked:
        assert context == (torch.Size(size),)
        return Checked(inner["a"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda t: t.a if isinstance(t, Checked) else t, (args, kwargs or {}))
        return tree_map(Checked, func(*args, **kwargs))


def test_a_size_that_became_a_constant_does_not_specialize_for_ever():
    region = st.compile(lambda x: x.sin() * 2, dynamic=True)
    for n in (3, 3, 5, 5, 3):
        x = Checked(torch.linspace(0, 1, n))
        assert torch.equal(region(x).a, x.a.sin() * 2)
    assert len(region.specializations) == 2
