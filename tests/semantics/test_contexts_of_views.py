"""Views of wrappers whose operations make tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

import subclass_trace as st

Tensor = torch.Tensor


class Masked(torch.Tensor):
    """Makes a tensor of its shape in each of its operations."""

    @staticmethod
    def __new__(cls, value: Tensor) -> Masked:
        return Tensor._make_wrapper_subclass(cls, value.shape, strides=value.stride(), dtype=value.dtype)

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["value"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Masked:
        return cls(inner["value"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert torch.ones(args[0].value.shape).shape == args[0].shape
        out = cls(func(args[0].value, *args[1:], **(kwargs or {})))
        return return_and_correct_aliasing(func, args, kwargs, out) if func.is_view else out


def test_view_operations_that_make_tensors_of_changing_sizes() -> None:
    compiled = st.compile(lambda x: (x[None], x[1:]))
    for n in (4, 6, 9):
        x = Masked(torch.ones(n))
        first, second = compiled(x)
        assert first.value.shape == (1, n) and second.value.shape == (n - 1,) and first._base is x
    assert len(compiled.specializations) == 2
