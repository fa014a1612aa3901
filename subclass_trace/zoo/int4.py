"""`PackedInt4`: a weight matrix with two 4-bit numbers in each byte and a scale for each row.

What it is for: an inner tensor whose shape and dtype differ from the outer ones: the outer tensor is (m, n) floating
point, the inner ones are (m, n // 2) uint8 and (m, 1). Weight-only quantisation: activations stay dense.

    >>> w = PackedInt4.quantize(torch.tensor([[7.0, -3.0], [0.25, -1.0]]))
    >>> w.shape, w.packed.shape
    (torch.Size([2, 2]), torch.Size([2, 1]))
    >>> w.dequantize()
    tensor([[ 7.0000, -3.0000],
            [ 0.2857, -1.0000]])
    >>> torch.nn.functional.linear(torch.ones(1, 2), w)
    tensor([[ 4.0000, -0.7143]])

Views that exist: detach, transposes, and slices of rows (of columns, when transposed). They alias, and since a row has
its own scale, a write through a slice quantises the rows it touches and no others. Any other view is refused, because
a dense copy would lose writes. In-place operations compute densely and quantise again; all else dequantises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _torch
from ._common import apply, aten, foreign, in_place, is_mutable, is_view, refuse, unwrap, view


class PackedInt4(torch.Tensor):
    """Symmetric int4 in [-7, 7], packed along rows: value = int4 * scale.

    Args:
        packed: uint8 (m, n // 2); the low half of a byte is the even column.
        scale: floating (m, 1); its dtype is the dtype of the wrapper.
        transposed: the wrapper is the (n, m) transpose.
    """

    packed: torch.Tensor
    scale: torch.Tensor
    transposed: bool
    __torch_function__ = _torch.disabled_torch_function

    @staticmethod
    def __new__(
        cls: type[PackedInt4],
        packed: torch.Tensor,
        scale: torch.Tensor,
        transposed: bool = False,
        *,
        outer_size: Sequence[int] | None = None,
        outer_stride: Sequence[int] | None = None,
    ) -> PackedInt4:
        rows, half = packed.shape
        size, stride = (rows, 2 * half), (2 * packed.stride(0), 1)
        if transposed:
            size, stride = size[::-1], stride[::-1]
        self: PackedInt4 = _torch.make_wrapper_subclass(
            cls,
            size if outer_size is None else outer_size,
            strides=stride if outer_stride is None else outer_stride,
            storage_offset=2 * packed.storage_offset(),
            dtype=scale.dtype,
            device=packed.device,
        )
        self.packed, self.scale, self.transposed = packed, scale, transposed
        return self

    @staticmethod
    def quantize(x: torch.Tensor) -> PackedInt4:
        """Quantise an (m, n) tensor, n even, with one scale for each row. Not differentiable."""
        if x.dim() != 2 or x.shape[1] % 2:
            raise ValueError(f"PackedInt4 holds matrices with an even number of columns, got {tuple(x.shape)}")
        return PackedInt4(*_quantise(x.detach()))

    def dequantize(self) -> torch.Tensor:
        """The dense value; the gradient passes unchanged."""
        result: torch.Tensor = apply(_Dequantise, self)
        return result

    def __tensor_flatten__(self) -> tuple[list[str], bool]:
        return ["packed", "scale"], self.transposed

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], context: bool, outer_size: Sequence[int], outer_stride: Sequence[int]
    ) -> PackedInt4:
        packed, scale = inner["packed"], inner["scale"]
        return PackedInt4(packed, scale, context, outer_size=outer_size, outer_stride=outer_stride)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PackedInt4(shape={tuple(self.shape)}, packed={self.packed!r}, scale={self.scale!r})"

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
            return view(func, args, kwargs, _view)
        if func is aten.clone.default:
            return cls(args[0].packed.clone(), args[0].scale.clone(), args[0].transposed)
        if func is aten._to_copy.default and kwargs.get("dtype", torch.float32).is_floating_point:
            to = {k: v for k, v in kwargs.items() if k in ("device", "non_blocking")}
            scale = func(args[0].scale, dtype=kwargs.get("dtype"), **to)
            return cls(func(args[0].packed, **to), scale, args[0].transposed)
        if func is aten.copy_.default and isinstance(args[0], cls):
            x, source = args[0], args[1]
            if isinstance(source, cls) and (x.shape, x.transposed) == (source.shape, source.transposed):
                x.packed.copy_(source.packed)  # exact: no second rounding
                x.scale.copy_(source.scale)
            else:
                _store(x, (_dense(source) if isinstance(source, cls) else source).expand(x.shape))
            return x
        if is_mutable(func):
            return in_place(cls, func, args, kwargs, dense=_dense, store=_store)
        dense_args, dense_kwargs = unwrap(cls, _dense, (args, kwargs))
        return func(*dense_args, **dense_kwargs)


def _quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-6) / 7
    q = (x / scale).round().clamp(-7, 7).to(torch.int8) & 0xF
    return (q[:, ::2] | (q[:, 1::2] << 4)).view(torch.uint8), scale


def _dense(x: PackedInt4) -> torch.Tensor:
    signed = x.packed.view(torch.int8)
    low, high = (signed << 4) >> 4, signed >> 4  # arithmetic shifts bring the signs back
    value = torch.stack([low, high], dim=-1).flatten(1).to(x.dtype) * x.scale
    return value.t() if x.transposed else value


def _store(x: PackedInt4, value: torch.Tensor) -> None:
    packed, scale = _quantise((value.t() if x.transposed else value).to(x.dtype))
    x.packed.copy_(packed)
    x.scale.copy_(scale)


class _Dequantise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: PackedInt4) -> torch.Tensor:
        return _dense(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def _view(func: Any, x: PackedInt4, *args: Any, **kwargs: Any) -> PackedInt4:
    if func in (aten.detach.default, aten.alias.default, aten.lift_fresh.default):
        return PackedInt4(x.packed, x.scale, x.transposed)
    if func is aten.t.default:
        return PackedInt4(x.packed, x.scale, not x.transposed)
    if func is aten.transpose.int:
        swaps = (args[0] - args[1]) % 2 == 1
        return PackedInt4(x.packed, x.scale, x.transposed != swaps)
    if func is aten.slice.Tensor:
        dim, *bounds = (*args, 0)[: max(len(args), 1)]
        if dim % 2 == int(x.transposed):
            return PackedInt4(func(x.packed, 0, *bounds), func(x.scale, 0, *bounds), x.transposed)
    raise refuse(PackedInt4, func, fix="slice rows, transpose, or call .dequantize() first")
