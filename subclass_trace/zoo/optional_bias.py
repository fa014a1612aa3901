"""`OptionalBias`: data, and perhaps a correction: value = data + bias.

What it is for: an inner tensor that some instances have and others do not (a zero point, a second
scale), so that the attribute list of ``__tensor_flatten__`` varies per instance and a
specialisation must guard it.

    >>> x = OptionalBias(torch.ones(2, 2))
    >>> y = OptionalBias(torch.ones(2, 2), torch.full((2, 2), 0.5))
    >>> x.__tensor_flatten__()[0], y.__tensor_flatten__()[0]
    (['data_'], ['data_', 'bias'])
    >>> (x + y)[0]
    OptionalBias(data_=tensor([2., 2.]), bias=tensor([0.5000, 0.5000]))
    >>> y @ torch.ones(2)
    tensor([3., 3.])

Views, clone, neg, add and sub of two, and multiplication by a number stay wrapped; in-place
operations keep the attribute list (they write the value to ``data_`` and zero to ``bias``);
everything else gives the dense tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from ..authoring import WrapperTensor
from .two import same_strides

aten = torch.ops.aten


class OptionalBias(WrapperTensor, default="dequantize"):
    """``data_ + bias``, where ``bias`` (same size, strides and dtype) may be missing."""

    data_: torch.Tensor
    bias: torch.Tensor | None = None

    def __post_init__(self) -> None:
        data, bias = self.data_, self.bias
        if bias is not None and not (
            (bias.shape, bias.dtype) == (data.shape, data.dtype) and same_strides(bias, data)
        ):
            raise ValueError(
                f"bias must be like data: {tuple(data.shape)}, {data.stride()}, {data.dtype}; "
                f"got {tuple(bias.shape)}, {bias.stride()}, {bias.dtype}"
            )

    def dequantize(self) -> torch.Tensor:
        """The dense value; the gradient passes unchanged."""
        return self.data_.clone() if self.bias is None else self.data_ + self.bias

    def requantize_(self, value: torch.Tensor) -> None:
        """Write a dense value: to ``data_``, and zero to ``bias``."""
        self.data_.copy_(value)
        # it stays: the attribute list must not change under a view or a caller
        if self.bias is not None:
            self.bias.zero_()


OptionalBias.implements_views()
OptionalBias.implements_per_inner(aten.neg.default)


@OptionalBias.implements(aten.mul.Tensor, aten.div.Tensor)
def _scalar_product(func: Any, x: Any, y: Any) -> Any:
    if not (
        isinstance(x, OptionalBias) and x.dtype.is_floating_point and isinstance(y, (int, float))
    ):
        return NotImplemented
    return x.replace(data_=func(x.data_, y), bias=None if x.bias is None else func(x.bias, y))


@OptionalBias.implements(aten.add.Tensor, aten.sub.Tensor)
def _sum(func: Any, x: Any, y: Any, *, alpha: float = 1) -> Any:
    if not (isinstance(x, OptionalBias) and isinstance(y, OptionalBias)):
        return NotImplemented
    data = func(x.data_, y.data_, alpha=alpha)
    if x.bias is None and y.bias is None:
        return OptionalBias(data)
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    bias = func(zero if x.bias is None else x.bias, zero if y.bias is None else y.bias, alpha=alpha)
    return OptionalBias(data, torch.empty_like(data).copy_(bias))
