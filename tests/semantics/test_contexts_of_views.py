"""A view of a wrapper and its base, of which one gets another context in the region: each shows its own afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
aten = torch.ops.aten


class Gain(torch.Tensor):
    """``data * gain``; a multiplication in place changes the gain alone. ``label`` is an object in the context."""

    data_: Tensor

    @staticmethod
    def __new__(cls, data: Tensor, gain: float, label: Any = None) -> Gain:
        self = Tensor._make_wrapper_subclass(cls, data.shape, strides=data.stride(), dtype=data.dtype)
        self.data_, self.gain, self.label = data, gain, label
        return self

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["data_"], (self.gain, self.label)

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Gain:
        return cls(inner["data_"], *context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        x = args[0]
        if func is aten.mul_.Tensor:
            x.gain = x.gain * args[1]
            return x
        if func.is_view or func is aten.clone.default:
            out = cls(func(x.data_, *args[1:], **(kwargs or {})), x.gain, x.label)
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.mul.Tensor:
            return cls(x.data_.clone(), x.gain * args[1], x.label)
        return NotImplemented


def _view_written(x: Gain) -> Any:
    view = x[1:]
    view.mul_(2)
    return view


def _view_set(x: Gain) -> Any:
    view = x[1:]
    view.gain, view.label = 5.0, "new"
    return view, view[:, 1:]


def _alias_written(x: Gain) -> Any:
    alias = x.detach()
    alias.mul_(2)
    return alias, x * 1


def _of_a_value(x: Gain) -> Any:
    y = x * 3
    first = y[1:]
    y.mul_(2)
    second = y[1:]
    second.mul_(5)
    return y, first, second


PROGRAMS = [_view_written, _view_set, _alias_written, _of_a_value]


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
def test_each_has_its_own_context(f: Callable[..., Any], grad: bool) -> None:
    compiled = st.compile(f)
    for gain in (2.0, 3.0, 5.0, 2.0):
        shown = []
        for fn in (f, compiled):
            with torch.set_grad_enabled(grad):
                x = Gain(torch.ones(2, 2), gain, "old")
                out = fn(x)
            results = out if isinstance(out, tuple) else (out,)
            rows = [(t.gain, t.label, t.data_.tolist(), t._base is x, t._is_view()) for t in (*results, x)]
            x.data_.mul_(7)  # seen by those that share its memory
            shown.append([rows, [t.data_.tolist() for t in results]])
        assert shown[0] == shown[1]


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


def _another_scale(x: TwoTensor) -> Any:
    q = x.detach()
    q.b = q.b * 4
    return q


def _base_replaced(x: TwoTensor) -> Any:
    before = x.detach()
    x.b = x.b * 4
    return before


def _both_replaced(x: TwoTensor) -> Any:
    q = _another_scale(x)
    x.b = x.b * 3
    return q, x.detach(), q[1:]


@pytest.mark.parametrize("f", [_another_scale, _base_replaced, _both_replaced], ids=lambda f: f.__name__)
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
def test_an_inner_tensor_replaced_after_detach(f: Callable[..., Any], grad: bool) -> None:
    compiled = st.compile(f)
    for _ in range(2):
        shown = []
        for fn in (f, compiled):
            x = TwoTensor(torch.ones(2), torch.ones(2)).requires_grad_(grad)
            out = fn(x)
            results = out if isinstance(out, tuple) else (out,)
            with torch.no_grad():
                x.mul_(5)  # seen where the memory is shared
            shown.append([(t.a.tolist(), t.b.tolist(), t.a._version, t.requires_grad) for t in (*results, x)])
        assert shown[0] == shown[1]
