"""Sizes inside contexts, and outer sizes that no inner tensor has: symbols like other sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import subclass_trace as st

Tensor = torch.Tensor


class Padded(Tensor):
    """The first ``count`` rows of a tensor. The context is the number; no inner tensor has it as a size."""

    @staticmethod
    def __new__(cls, rows: Tensor, count: Any, *outer: Any) -> Padded:
        size = (count, *rows.shape[1:])
        return Tensor._make_wrapper_subclass(cls, size, rows.stride(), dtype=rows.dtype, device=rows.device)

    def __init__(self, rows: Tensor, count: Any, *outer: Any) -> None:
        self.rows, self.count = rows, count

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["rows"], self.count

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Padded:
        return cls(inner["rows"], context)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        (count, *_) = [a.count for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, cls)]
        args, kwargs = pytree.tree_map_only(cls, lambda x: x.rows, (args, kwargs or {}))
        if func is torch.ops.aten.sum.default:
            return func(args[0][:count])
        return pytree.tree_map_only(Tensor, lambda t: cls(t, count), func(*args, **kwargs))


def test_a_number_of_the_context_is_compared() -> None:
    """It is no size: each has a specialization."""
    f, compiled = lambda x: x * 2, st.compile(lambda x: x * 2)
    for count in (3, 4, 6, 3):
        x = Padded(torch.randn(8, 2), count)
        found, wanted = compiled(x), f(x)
        assert found.count == wanted.count == count and torch.equal(found.rows, wanted.rows)
    assert len(compiled.specializations) == 3


class WithShape(torch.Tensor):
    """Keeps its shape in the context, and takes it from there."""

    a: torch.Tensor

    @staticmethod
    def __new__(cls, a: torch.Tensor, shape: Any, kept: Any = None) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=a.dtype)

    def __init__(self, a: torch.Tensor, shape: Any, kept: Any = None) -> None:
        self.a, self.kept = a, kept

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["a"], ("tag", tuple(self.shape) if self.kept is None else self.kept)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context[1])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        x = next(t for t in args if isinstance(t, cls))
        dense = [t.a if isinstance(t, cls) else t for t in args]
        return cls(func(*dense, **(kwargs or {})) * x._rows(), tuple(x.shape))

    def _rows(self) -> Any:
        return self.shape[0]


class ReadsItsCopy(WithShape):
    """Takes its size from outside, and reads the copy all the same."""

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], size, context[1])

    def _rows(self) -> Any:
        return (self.kept or self.shape)[0]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("cls", [WithShape, ReadsItsCopy])
def test_a_class_that_takes_its_outer_size_from_the_context(cls: type[WithShape], dynamic: bool) -> None:
    def f(x: Any) -> Any:
        return x.sin(), x.shape[0]

    region = st.compile(f, dynamic=dynamic or None)
    for n in (3, 4, 5, 6, 3):
        (y, k), (wanted, m) = (call(cls(torch.ones(8, 3), (n, 3))) for call in (region, f))
        assert y.shape == wanted.shape and y.a.equal(wanted.a) and k == m == n
