"""`OptionalBias`: data, and perhaps a correction: value = data + bias.

What it is for: an inner tensor that some instances have and others do not (a zero point, a second scale), so that the
attribute list of ``__tensor_flatten__`` varies per instance and a specialisation must guard it.

    >>> x = OptionalBias(torch.ones(2, 2))
    >>> y = OptionalBias(torch.ones(2, 2), torch.full((2, 2), 0.5))
    >>> x.__tensor_flatten__()[0], y.__tensor_flatten__()[0]
    (['data_'], ['data_', 'bias'])
    >>> (x + y)[0]
    OptionalBias(data=tensor([2., 2.]), bias=tensor([0.5000, 0.5000]))
    >>> y @ torch.ones(2)
    tensor([3., 3.])

Views, clone, neg, add and sub of two, and multiplication by a number stay wrapped; in-place operations keep the
attribute list (they write the value to ``data_`` and zero to ``bias``); everything else gives the dense tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _torch
from ._common import aten, foreign, in_place, is_mutable, is_view, unwrap, view


class OptionalBias(torch.Tensor):
    """``data_ + bias``, where ``bias`` (same size, strides and dtype) may be missing."""

    data_: torch.Tensor
    bias: torch.Tensor | None
    __torch_function__ = _torch.disabled_torch_function

    @staticmethod
    def __new__(
        cls: type[OptionalBias],
        data: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        outer_size: Sequence[int] | None = None,
        outer_stride: Sequence[int] | None = None,
    ) -> OptionalBias:
        if bias is not None and (bias.shape, bias.stride(), bias.dtype) != (data.shape, data.stride(), data.dtype):
            raise ValueError(
                f"bias must be like data: {tuple(data.shape)}, {data.stride()}, {data.dtype}; "
                f"got {tuple(bias.shape)}, {bias.stride()}, {bias.dtype}"
            )
        self: OptionalBias = _torch.make_wrapper_subclass(
            cls,
            data.shape if outer_size is None else outer_size,
            strides=data.stride() if outer_stride is None else outer_stride,
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            device=data.device,
        )
        self.data_, self.bias = data, bias
        return self

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return (["data_"] if self.bias is None else ["data_", "bias"]), None

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], context: None, outer_size: Sequence[int], outer_stride: Sequence[int]
    ) -> OptionalBias:
        return OptionalBias(inner["data_"], inner.get("bias"), outer_size=outer_size, outer_stride=outer_stride)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OptionalBias(data={self.data_!r}, bias={self.bias!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if foreign(cls, types):
            return NotImplemented
        if (result := func.decompose(*args, **kwargs)) is not NotImplemented:  # inference mode: composites come here
            return result
        if is_view(cls, func):
            return view(func, args, kwargs, _each)
        if func in _EACH or _is_scalar_product(cls, func, args):
            return _each(func, *args, **kwargs)
        if func in _SUMS and isinstance(args[0], cls) and isinstance(args[1], cls):
            return _sum(func, *args, **kwargs)
        if func is aten.copy_.default and all(isinstance(t, cls) for t in args[:2]):
            return _copy_(args[0], args[1])
        if is_mutable(func):
            return in_place(cls, func, args, kwargs, dense=_dense, store=_store)
        dense_args, dense_kwargs = unwrap(cls, _dense, (args, kwargs))
        return func(*dense_args, **dense_kwargs)


_EACH = frozenset({aten.clone.default, aten.neg.default, aten._unsafe_view.default})
_SUMS = frozenset({aten.add.Tensor, aten.sub.Tensor})


def _dense(x: OptionalBias) -> torch.Tensor:
    return x.data_.clone() if x.bias is None else x.data_ + x.bias


def _store(x: OptionalBias, value: torch.Tensor) -> None:
    x.data_.copy_(value)
    if x.bias is not None:  # it stays: the attribute list must not change under a view or a caller
        x.bias.zero_()


def _copy_(x: OptionalBias, source: OptionalBias) -> OptionalBias:
    """Part by part as far as ``x`` has the parts."""
    if source.bias is None or x.bias is None:
        _store(x, _dense(source))
    else:
        x.data_.copy_(source.data_)
        x.bias.copy_(source.bias)
    return x


def _each(func: Any, x: OptionalBias, *args: Any, **kwargs: Any) -> Any:
    """A linear operation on data and bias alike."""
    data = func(x.data_, *args, **kwargs)
    bias = None if x.bias is None else func(x.bias, *args, **kwargs)
    if isinstance(data, (list, tuple)):
        return [OptionalBias(d, b) for d, b in zip(data, bias or [None] * len(data), strict=True)]
    return OptionalBias(data, bias)


def _is_scalar_product(cls: type[Any], func: Any, args: tuple[Any, ...]) -> bool:
    return (
        func in (aten.mul.Tensor, aten.div.Tensor)
        and isinstance(args[0], cls)
        and args[0].dtype.is_floating_point
        and isinstance(args[1], (int, float))
    )


def _sum(func: Any, x: OptionalBias, y: OptionalBias, *, alpha: float = 1) -> OptionalBias:
    data = func(x.data_, y.data_, alpha=alpha)
    if x.bias is None and y.bias is None:
        return OptionalBias(data)
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    bias = func(zero if x.bias is None else x.bias, zero if y.bias is None else y.bias, alpha=alpha)
    return OptionalBias(data, torch.empty_like(data).copy_(bias))
