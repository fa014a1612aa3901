"""`Constant`: a tensor that is one number everywhere, with nothing inside.

What it is for: a wrapper without leaves. ``__tensor_flatten__`` names no inner tensor, the number is context; so the
number is part of the guards, and a region of Constants has no tensor inputs at all.

    >>> c = Constant(0.5, (2, 3))
    >>> c.__tensor_flatten__()[0]
    []
    >>> -(c * 4).t()
    Constant(-2.0, shape=(3, 2))
    >>> c + torch.ones(2, 3)
    tensor([[1.5000, 1.5000, 1.5000],
            [1.5000, 1.5000, 1.5000]])

Views, clone, detach, conversions of dtype and device, and arithmetic with numbers (floating dtypes; folded in double
precision) stay wrapped. Everything else computes on the dense tensor. A Constant has no memory, so writing is refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import torch_api
from ..torch_api.dynamo import never_compiled
from ._common import aten, foreign, is_mutable, is_view, refuse, unwrap, view, written


class Constant(torch.Tensor):
    """A tensor of ``size`` that holds ``value`` everywhere."""

    value: float
    __torch_function__ = torch_api.disabled_torch_function

    @staticmethod
    def __new__(
        cls: type[Constant],
        value: float,
        size: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        stride: Sequence[int] | None = None,
    ) -> Constant:
        if stride is None:  # contiguous
            stride, step = [], 1
            for n in reversed(size):
                stride, step = [step, *stride], step * max(n, 1)
        self: Constant = torch_api.make_wrapper_subclass(
            cls, size, strides=stride, dtype=dtype, device=torch.device(device)
        )
        too_large = dtype.is_floating_point and abs(value) > torch.finfo(dtype).max
        self.value = math.copysign(math.inf, value) if too_large else value
        return self

    def __tensor_flatten__(self) -> tuple[list[str], tuple[float, torch.dtype, torch.device]]:
        return [], (self.value, self.dtype, self.device)

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor],
        context: tuple[float, torch.dtype, torch.device],
        outer_size: Sequence[int],
        outer_stride: Sequence[int],
    ) -> Constant:
        value, dtype, device = context
        return Constant(value, outer_size, dtype=dtype, device=device, stride=outer_stride)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Constant({self.value!r}, shape={tuple(self.shape)})"

    @classmethod
    @never_compiled
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if foreign(cls, types):
            return NotImplemented
        if (result := func.decompose(*args, **kwargs)) is not NotImplemented:  # inference mode: composites come here
            return result
        if is_view(cls, func):
            return view(func, args, kwargs, _like)
        if func is aten.clone.default or (
            func is aten._to_copy.default and kwargs.get("dtype", torch.float32).is_floating_point
        ):
            return _like(func, *args, **kwargs)
        folded = _fold(cls, func, args, kwargs)
        if folded is not None:
            return folded
        if is_mutable(func) and any(isinstance(t, cls) for t in written(func, args, kwargs)):
            raise refuse(cls, func, fix="a Constant has no memory to write to; use torch.full for a tensor that has")
        dense_args, dense_kwargs = unwrap(cls, _dense, (args, kwargs))
        return func(*dense_args, **dense_kwargs)


def _dense(x: Constant) -> torch.Tensor:
    return torch.full(tuple(x.shape), x.value, dtype=x.dtype, device=x.device)


def _like(func: Any, x: Constant, *args: Any, **kwargs: Any) -> Any:
    """The constants that ``func`` gives: sizes and strides come from running it on a meta tensor."""
    device = torch.device(kwargs.pop("device", None) or x.device)
    with torch_api.no_modes():  # a tracer should not see this
        meta = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        out = func(meta, *args, **kwargs)

    def wrap(m: torch.Tensor) -> Constant:
        return Constant(x.value, m.shape, dtype=m.dtype, device=device, stride=m.stride())

    return [wrap(m) for m in out] if isinstance(out, (list, tuple)) else wrap(out)


def _fold(cls: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Constant | None:
    """Arithmetic of a Constant and a number."""
    x = args[0] if args else None
    if not (isinstance(x, Constant) and x.dtype.is_floating_point) or kwargs:
        return None
    if func is aten.neg.default:
        value = -x.value
    elif func in _ARITHMETIC and len(args) == 2 and isinstance(args[1], (int, float)):
        if func is aten.div.Tensor and args[1] == 0:
            return None
        value = _ARITHMETIC[func](x.value, args[1])
    else:
        return None
    return Constant(value, x.shape, dtype=x.dtype, device=x.device, stride=x.stride())


_ARITHMETIC: dict[Any, Callable[[float, float], float]] = {
    aten.add.Tensor: operator.add,
    aten.sub.Tensor: operator.sub,
    aten.mul.Tensor: operator.mul,
    aten.div.Tensor: operator.truediv,
}
