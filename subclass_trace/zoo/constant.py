"""`Constant`: a tensor that is one number everywhere, with nothing inside.

What it is for: a wrapper without leaves. ``__tensor_flatten__`` names no inner tensor, the number
is context; so the number is part of the guards, and a region of Constants has no tensor inputs at
all.

    >>> c = Constant(0.5, (2, 3))
    >>> c.__tensor_flatten__()[0]
    []
    >>> -(c * 4).t()
    Constant(-2.0, shape=(3, 2))
    >>> c + torch.ones(2, 3)
    tensor([[1.5000, 1.5000, 1.5000],
            [1.5000, 1.5000, 1.5000]])

Views, clone, detach, conversions of dtype and device, and arithmetic with numbers (floating dtypes;
folded in double precision) stay wrapped. Everything else computes on the dense tensor. A Constant
has no memory, so writing is refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..authoring import Outer, WrapperTensor, views
from ..authoring.fields import build
from ..torch_api.modes import no_modes

aten = torch.ops.aten


class Constant(
    WrapperTensor,
    default="dequantize",
    advice="a Constant has no memory to write to: use torch.full",
):
    """A tensor of ``size`` that holds ``value`` everywhere."""

    value: float
    shown: torch.dtype
    place: torch.device

    def __new__(
        cls,
        value: float,
        size: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        stride: Sequence[int] | None = None,
    ) -> Constant:
        """Contiguous, if there is no ``stride``."""
        if dtype.is_floating_point and abs(value) > torch.finfo(dtype).max:
            value = math.copysign(math.inf, value)
        fields = {"value": value, "shown": dtype, "place": torch.device(device)}
        made: Constant = build(cls, fields, size, stride)
        return made

    @classmethod
    def outer_metadata(cls, fields: Any) -> Outer:
        """Sizes and strides are given; these are the rest."""
        return Outer(dtype=fields.shown, device=fields.place)

    def dequantize(self) -> torch.Tensor:
        """The dense value; the gradient passes unchanged."""
        return torch.full(tuple(self.shape), self.value, dtype=self.shown, device=self.place)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Constant({self.value!r}, shape={tuple(self.shape)})"


_make: Any = Constant  # type checkers take the fields for the arguments of its constructor


@Constant.implements(views, aten.clone.default, aten._to_copy.default)
def _like(func: Any, x: Constant, *args: Any, **kwargs: Any) -> Any:
    """The constants that ``func`` gives: sizes and strides come from running it on a meta
    tensor."""
    if not kwargs.get("dtype", torch.float32).is_floating_point:
        return NotImplemented
    device = torch.device(kwargs.pop("device", None) or x.device)
    with no_modes():  # a tracer should not see this
        meta = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        out = func(meta, *args, **kwargs)

    def wrap(m: torch.Tensor) -> Any:
        return _make(x.value, m.shape, dtype=m.dtype, device=device, stride=m.stride())

    return [wrap(m) for m in out] if isinstance(out, (list, tuple)) else wrap(out)


_ARITHMETIC: dict[Any, Callable[..., float]] = {
    aten.neg.default: operator.neg,
    aten.add.Tensor: operator.add,
    aten.sub.Tensor: operator.sub,
    aten.mul.Tensor: operator.mul,
    aten.div.Tensor: operator.truediv,
}


@Constant.implements(*_ARITHMETIC)
def _fold(func: Any, x: Any, *others: Any, **kwargs: Any) -> Any:
    """Arithmetic of a Constant and a number."""
    numbers = all(isinstance(y, (int, float)) for y in others) and not (
        func is aten.div.Tensor and others[0] == 0
    )
    if kwargs or not numbers or not isinstance(x, Constant) or not x.dtype.is_floating_point:
        return NotImplemented
    value = _ARITHMETIC[func](x.value, *others)
    return _make(value, x.shape, dtype=x.dtype, device=x.device, stride=x.stride())
