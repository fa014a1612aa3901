"""Fake kernels that this torch lacks, or has wrong, so that a trace would believe a size or a
stride that is not so."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_impls import op_implementations_dict

from .layouts import layout_kernels

Tensor = torch.Tensor
_aten = torch.ops.aten

#: torch hands no argument on that is the default of the schema
_WHOLE: dict[str, Any] = {"dtype": torch.int64}


@functools.cache
def fake_kernels() -> dict[Any, Callable[..., Any]]:
    """Operation -> what to call in its place on fake tensors."""
    found: dict[Any, Callable[..., Any]] = {
        _aten._to_copy.default: _to_copy,
        _aten.native_dropout.default: _native_dropout,
        _aten._standard_gamma.default: lambda x, generator=None: _like_first(x),
        _aten._standard_gamma_grad.default: _like_first,
        _aten._dirichlet_grad.default: _like_first,
        _aten._sample_dirichlet.default: lambda x, generator=None: _like_first(x),
        _aten.binomial.default: lambda count, prob, generator=None: _like_first(count),
        _aten.histogram.bin_ct: _histogram,
        _aten.histogram.bins_tensor: lambda x, bins, **options: (
            x.new_empty(bins.shape[0] - 1),
            x.new_empty(bins.shape),
        ),
        _aten.fractional_max_pool3d_backward.default: lambda g, x, *windows: _like_first(x),
        _aten.rand.generator: _random,
        _aten.randn.generator: _random,
        _aten.randint.generator: lambda high, size, **options: _random(size, **_WHOLE | options),
        _aten.randint.low_generator: lambda low, high, size, **options: _random(
            size, **_WHOLE | options
        ),
        _aten.upsample_linear1d_backward.default: _interpolation_backward,
        _aten.upsample_bilinear2d_backward.default: _keeping_order,
        _aten.upsample_trilinear3d_backward.default: _keeping_order,
        _aten.upsample_bicubic2d_backward.default: _interpolation_backward,
        _aten._upsample_bicubic2d_aa_backward.default: _interpolation_backward,
        **layout_kernels(),
    }
    if _aten._unique.default not in op_implementations_dict:
        found[_aten._unique.default] = _unique
    if not _fft_dims_are_sorted():
        found |= {
            _aten._fft_c2c.default: _fft_c2c,
            _aten._fft_r2c.default: _fft_r2c,
            _aten._fft_c2r.default: _fft_c2r,
        }
    return found


def _to_copy(x: Tensor, **options: Any) -> Tensor:
    """Where the device is named, and is that of ``x``, torch's gives ``x`` itself."""
    if (device := options.get("device")) is not None and torch.device(device) == x.device:
        del options["device"]
    return _aten._to_copy.default(x, **options)  # type: ignore[no-any-return]


def _interpolation_backward(
    grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], *how: Any
) -> Tensor:
    """Torch's own takes no symbolic sizes."""
    return grad.new_empty(input_size)


def _keeping_order(grad: Tensor, *how: Any) -> Tensor:
    order = torch._prims_common.suggest_memory_format(grad)
    return _interpolation_backward(grad, *how).contiguous(memory_format=order)


def _like_first(x: Tensor, *others: Tensor) -> Tensor:
    """Torch has none, or one that keeps strides. The kernels fill a contiguous tensor."""
    return x.new_empty(x.shape)


def _histogram(x: Tensor, bins: int = 100, **options: Any) -> tuple[Tensor, Tensor]:
    """How many there are, and the edges."""
    return x.new_empty(bins), x.new_empty(bins + 1)


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """That of torch returns its argument where it drops nothing."""
    if train is False or p == 0:
        return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
    return _aten.native_dropout.default(x, p, train)  # type: ignore[no-any-return]


def _random(size: Sequence[int], generator: object = None, **options: Any) -> Tensor:
    """Those of torch that take a generator do not know symbolic sizes."""
    return _aten.empty.memory_format(size, **options)  # type: ignore[no-any-return]


def _unique(x: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, ...]:
    """Torch 2.11 and 2.12 have none: FakeTensorMode runs the real kernel on zeros, and believes its
    size."""
    return _aten._unique2.default(x, sorted, return_inverse)[:2]  # type: ignore[no-any-return]


# ---- Fourier transforms
def _fft_dims_are_sorted() -> bool:
    """Do the fake kernels take dimensions in the order that the real ones take them in? From torch
    2.12 on."""
    from torch._meta_registrations import _sort_dims

    return bool(_sort_dims(torch.empty(2, 3, device="meta"), [1, 0]) == [0, 1])


def _by_stride(x: Tensor, dims: Sequence[int]) -> list[int]:
    return sorted(dims, key=lambda d: x.stride(d), reverse=True)


def _like_fft(x: Tensor, size: Sequence[int], dims: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The result on a CPU lies in memory as: the other dimensions in the order of the input, then
    those transformed."""
    order = [*_by_stride(x, [d for d in range(x.dim()) if d not in dims]), *dims]
    out = x.new_empty([size[d] for d in order], dtype=dtype)
    return out.permute([order.index(d) for d in range(x.dim())])


def _fft_c2c(x: Tensor, dim: list[int], normalization: int, forward: bool) -> Tensor:
    if x.device.type != "cpu" or not dim:
        return _aten._fft_c2c.default(x, dim, normalization, forward)  # type: ignore[no-any-return]
    return _like_fft(x, x.shape, _by_stride(x, dim), x.dtype)


def _fft_r2c(x: Tensor, dim: list[int], normalization: int, onesided: bool) -> Tensor:
    if x.device.type != "cpu":
        transform: Callable[..., Tensor] = _aten._fft_r2c.default
        return transform(x, dim, normalization, onesided)
    size = list(x.shape)
    if onesided:
        size[dim[-1]] = size[dim[-1]] // 2 + 1
    return _like_fft(x, size, [*_by_stride(x, dim[:-1]), dim[-1]], x.dtype.to_complex())


def _fft_c2r(x: Tensor, dim: list[int], normalization: int, last_dim_size: int) -> Tensor:
    if x.device.type != "cpu":
        transform: Callable[..., Tensor] = _aten._fft_c2r.default
        return transform(x, dim, normalization, last_dim_size)
    if len(dim) > 1:
        x = _fft_c2c(x, dim[:-1], normalization, False)
    size = list(x.shape)
    size[dim[-1]] = last_dim_size
    return _like_fft(x, size, dim[-1:], x.dtype.to_real())
