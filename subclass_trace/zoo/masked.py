"""`Masked`: data with missing elements, closed under pointwise operations.

What it is for: an inner tensor of another dtype (bool) that has no gradient, and a rule that covers hundreds of
operations at once: torch tags the pointwise ones.

    >>> x = Masked(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True]))
    >>> y = (x + torch.ones(3)).relu()
    >>> y.filled(0)
    tensor([2., 0., 4.])
    >>> y.sum()
    tensor(6.)
    >>> (x * Masked(torch.ones(3), torch.tensor([True, True, False]))).mask
    tensor([ True, False, False])

An element of a pointwise result is present where it is present in all operands. ``sum`` adds what is present. Views,
clone and conversions keep the mask. Everything else is refused, because there is no one answer: say which with
``filled``. What stands in ``data_`` or in a gradient at a missing element means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _torch
from ._common import apply, aten, foreign, is_mutable, is_view, refuse, unwrap, view, written


class Masked(torch.Tensor):
    """``data_`` where ``mask`` is True, missing elsewhere; both have the same size and strides."""

    data_: torch.Tensor
    mask: torch.Tensor
    __torch_function__ = _torch.disabled_torch_function

    @staticmethod
    def __new__(
        cls: type[Masked],
        data: torch.Tensor,
        mask: torch.Tensor,
        *,
        outer_size: Sequence[int] | None = None,
        outer_stride: Sequence[int] | None = None,
    ) -> Masked:
        if (mask.shape, mask.dtype) != (data.shape, torch.bool):
            raise ValueError(f"mask must be bool of size {tuple(data.shape)}, got {mask.dtype} of {tuple(mask.shape)}")
        self: Masked = _torch.make_wrapper_subclass(
            cls,
            data.shape if outer_size is None else outer_size,
            strides=data.stride() if outer_stride is None else outer_stride,
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            device=data.device,
        )
        self.data_, self.mask = data, mask
        return self

    def filled(self, value: float) -> torch.Tensor:
        """The dense tensor with ``value`` at missing elements; no gradient flows into those."""
        result: torch.Tensor = apply(_Fill, self, value)
        return result

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["data_", "mask"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], context: None, outer_size: Sequence[int], outer_stride: Sequence[int]
    ) -> Masked:
        return Masked(inner["data_"], inner["mask"], outer_size=outer_size, outer_stride=outer_stride)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Masked(data={self.data_!r}, mask={self.mask!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if foreign(cls, types):
            return NotImplemented
        if (result := func.decompose(*args, **kwargs)) is not NotImplemented:  # inference mode: composites come here
            return result
        if is_mutable(func):
            return _in_place(func, args, kwargs)
        if is_view(cls, func):
            return view(func, args, kwargs, _both)
        if func is aten._unsafe_view.default:
            return _both(func, *args, **kwargs)
        if func in _SUMS:
            return func(_fill(args[0], 0), *args[1:], **kwargs)
        if func in _LIKE or torch.Tag.pointwise in func.tags:
            data_args, data_kwargs = unwrap(cls, lambda x: x.data_, (args, kwargs))
            out = func(*data_args, **data_kwargs)
            if isinstance(out, torch.Tensor):
                return cls(out, _common_mask(out, args, kwargs))
        raise refuse(cls, func, fix="say what missing elements count as: x.filled(value)")


_SUMS = frozenset({aten.sum.default, aten.sum.dim_IntList})
_LIKE = frozenset(
    {
        aten._to_copy.default,
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.empty_like.default,
        aten.full_like.default,
    }
)


def _fill(x: Masked, value: float) -> torch.Tensor:
    return x.data_.masked_fill(~x.mask, value)


class _Fill(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Masked, value: float) -> torch.Tensor:
        ctx.save_for_backward(x.mask)
        return _fill(x, value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grad.masked_fill(~mask, 0), None


def _both(func: Any, x: Masked, *args: Any, **kwargs: Any) -> Any:
    """A change of shape, applied to data and mask."""
    data, mask = func(x.data_, *args, **kwargs), func(x.mask, *args, **kwargs)
    if isinstance(data, (list, tuple)):
        return [Masked(d, m) for d, m in zip(data, mask, strict=True)]
    return Masked(data, mask)


def _common_mask(out: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """A new mask, laid out like ``out``: present where all operands are."""
    mask = torch.ones_like(out, dtype=torch.bool)
    unwrap(Masked, lambda x: mask.logical_and_(x.mask.to(out.device)), (args, kwargs))
    return mask


def _in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pointwise in-place operations and copy_, fill_, zero_: the written tensor must be Masked, and loses elements."""
    x = next(written(func, args, kwargs))
    allowed = torch.Tag.pointwise in func.tags or func in _WRITES
    if not (allowed and isinstance(x, Masked) and x is args[0]):
        raise refuse(Masked, func, fix="write to a Masked tensor with a pointwise operation, or use x.filled(value)")
    data_args, data_kwargs = unwrap(Masked, lambda t: t.data_, (args, kwargs))
    out = func(*data_args, **data_kwargs)
    if func in _WRITES:  # nothing of the old value is left, nor of its mask
        source = args[1] if func is aten.copy_.default else None
        x.mask.copy_(source.mask) if isinstance(source, Masked) else x.mask.fill_(True)
    else:
        unwrap(Masked, lambda t: x.mask.logical_and_(t.mask), (args, kwargs))
    return _torch.return_and_correct_aliasing(func, args, kwargs, out)


_WRITES = frozenset({aten.copy_.default, aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor})
