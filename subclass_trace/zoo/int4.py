"""`PackedInt4`: a weight matrix with two 4-bit numbers in each byte and a scale for each row.

What it is for: an inner tensor whose shape and dtype differ from the outer ones: the outer tensor
is (m, n) floating point, the inner ones are (m, n // 2) uint8 and (m, 1). Weight-only quantisation:
activations stay dense.

    >>> w = PackedInt4.quantize(torch.tensor([[7.0, -3.0], [0.25, -1.0]]))
    >>> w.shape, w.packed.shape
    (torch.Size([2, 2]), torch.Size([2, 1]))
    >>> w.dequantize()
    tensor([[ 7.0000, -3.0000],
            [ 0.2857, -1.0000]])
    >>> torch.nn.functional.linear(torch.ones(1, 2), w)
    tensor([[ 4.0000, -0.7143]])

Views that exist: detach, transposes, and slices of rows (of columns, when transposed). They alias,
and since a row has its own scale, a write through a slice quantises the rows it touches and no
others. Any other view is refused, because a dense copy would lose writes. In-place operations
compute densely and quantise again; all else dequantises.
"""

from __future__ import annotations

from typing import Any

import torch

from ..authoring import Outer, WrapperTensor

aten = torch.ops.aten


class PackedInt4(WrapperTensor, default="dequantize"):
    """Symmetric int4 in [-7, 7], packed along rows: value = int4 * scale.

    Args:
        packed: uint8 (m, n // 2); the low half of a byte is the even column.
        scale: floating (m, 1); its dtype is the dtype of the wrapper.
        transposed: the wrapper is the (n, m) transpose.
    """

    packed: torch.Tensor
    scale: torch.Tensor
    transposed: bool = False

    @classmethod
    def outer_metadata(cls, fields: Any) -> Outer:
        """Two columns in each byte."""
        rows, half = fields.packed.shape
        size, stride = (rows, 2 * half), (2 * fields.packed.stride(0), 1)
        if fields.transposed:
            size, stride = size[::-1], stride[::-1]
        return Outer(
            size, stride, fields.scale.dtype, storage_offset=2 * fields.packed.storage_offset()
        )

    @staticmethod
    def quantize(x: torch.Tensor) -> PackedInt4:
        """Quantise an (m, n) tensor, n even, with one scale for each row. Not differentiable."""
        if x.dim() != 2 or x.shape[1] % 2:
            raise ValueError(
                f"PackedInt4 holds matrices with an even number of columns, got {tuple(x.shape)}"
            )
        return PackedInt4(*_quantise(x.detach()))

    def dequantize(self) -> torch.Tensor:
        """The dense value; the gradient passes unchanged."""
        signed = self.packed.view(torch.int8)
        low, high = (signed << 4) >> 4, signed >> 4  # arithmetic shifts bring the signs back
        value = torch.stack([low, high], dim=-1).flatten(1).to(self.dtype) * self.scale
        return value.t() if self.transposed else value

    def requantize_(self, value: torch.Tensor) -> None:
        """Write a dense value: quantised again, with new scales."""
        packed, scale = _quantise((value.t() if self.transposed else value).to(self.dtype))
        self.packed.copy_(packed)
        self.scale.copy_(scale)

    def __repr__(self) -> str:  # type: ignore[override]
        return (
            f"PackedInt4(shape={tuple(self.shape)}, packed={self.packed!r}, scale={self.scale!r})"
        )


def _quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-6) / 7
    q = (x / scale).round().clamp(-7, 7).to(torch.int8) & 0xF
    # row by row, whatever x is
    return (q[:, ::2] | (q[:, 1::2] << 4)).view(torch.uint8).contiguous(), scale


# exact, without a second rounding: each row has its own scale
PackedInt4.implements_per_inner(aten.copy_.default)


@PackedInt4.implements(aten._to_copy.default)
def _to_copy(func: Any, x: PackedInt4, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    if dtype is not None and not dtype.is_floating_point:
        return NotImplemented
    to = {k: v for k, v in kwargs.items() if k in ("device", "non_blocking")}
    return x.replace(packed=func(x.packed, **to), scale=func(x.scale, dtype=dtype, **to))


@PackedInt4.implements(aten.t.default, aten.transpose.int)
def _transpose(func: Any, x: PackedInt4, *dims: int) -> PackedInt4:
    swaps = not dims or (dims[0] - dims[1]) % 2 == 1
    return x.replace(transposed=x.transposed != swaps)


@PackedInt4.implements(aten.slice.Tensor)
def _slice(func: Any, x: PackedInt4, dim: int = 0, *bounds: Any) -> Any:
    if dim % 2 != int(x.transposed):
        return NotImplemented
    return x.replace(packed=func(x.packed, 0, *bounds), scale=func(x.scale, 0, *bounds))
