"""How kernels lay out their results where torch's fake kernels say something else.

A wrong stride decides what is a view: ``y.reshape(-1)`` is one where the strides allow it, and a
write through it reaches ``y``, or not. `tests/opinfo/test_layouts.py` compares all operations over
several layouts; what differs on a CPU has a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format

from ..kinds import contiguous_strides

Tensor = torch.Tensor
Kernel = Callable[..., Any]
#: the arguments of a call -> the strides of each result; None: as the fake kernel says
Rule = Callable[..., Sequence[Sequence[int] | None]]
_aten = torch.ops.aten


def _elementwise(*tensors: Any) -> Sequence[int]:
    """Of what is computed element by element of these operands, in the kernel's order."""
    operands = [t for t in tensors if isinstance(t, Tensor)]
    if not operands:  # of numbers alone
        return ()
    shapes = [t.shape for t in operands]
    size = torch.functional.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return compute_elementwise_output_strides(*(t.expand(size) for t in operands))


def _like(t: Tensor) -> Sequence[int]:
    return torch.empty_like(t).stride()


def _suggested(t: Tensor) -> Sequence[int]:
    """Channels last where the tensor is so; else contiguous."""
    return torch.empty_like(t, memory_format=suggest_memory_format(t)).stride()


def _of(layout: Callable[..., Sequence[int]], *numbers: int, results: int = 1) -> Rule:
    """``layout`` of the arguments with these numbers, for the first ``results``."""
    return lambda *args, **_: [layout(*(args[n] for n in numbers))] * results


def _addr(x: Tensor, a: Tensor, b: Tensor, **_: Any) -> list[Sequence[int]]:
    return [_elementwise(x.expand(a.shape[0], b.shape[0]), a.reshape(-1, 1), b)]


_BATCH_NORMS = (
    _aten.native_batch_norm.default,
    _aten._native_batch_norm_legit.default,
    _aten._native_batch_norm_legit.no_stats,
    _aten._native_batch_norm_legit_functional.default,
    _aten._native_batch_norm_legit_no_training.default,
    _aten._batch_norm_with_update.default,
    _aten._batch_norm_with_update_functional.default,
    _aten._batch_norm_no_update.default,
)
_PADS = (
    _aten.reflection_pad2d_backward.default,
    _aten.replication_pad2d_backward.default,
)


def _rrelu_backward(
    g: Tensor,
    x: Tensor,
    noise: Tensor,
    lower: float,
    upper: float,
    training: bool,
    *_: Any,
) -> list[Sequence[int]]:
    drawn = training and upper - lower > 1e-6
    return [_elementwise(noise, g) if drawn else _elementwise(x, g)]


#: all results are contiguous
_CONTIGUOUS = (
    _aten._log_softmax_backward_data.default,
    _aten.glu_backward.default,
    _aten.huber_loss_backward.default,
    _aten.isin.Tensor_Tensor,
    _aten.log_sigmoid_forward.default,
    _aten.mse_loss_backward.default,
    _aten.native_layer_norm_backward.default,
    _aten.normal.Tensor_Tensor,
    _aten.pow.Scalar,
    _aten.rrelu_with_noise.default,
)
_RULES: dict[Any, Rule] = {
    _aten.addr.default: _addr,
    _aten.rrelu_with_noise_backward.default: _rrelu_backward,
    **dict.fromkeys(
        (
            _aten.copysign.Tensor,
            _aten.div.Tensor_mode,
            _aten.floor_divide.default,
            _aten.elu_backward.default,
            _aten.hardsigmoid_backward.default,
            _aten.hardswish_backward.default,
            _aten.hardtanh_backward.default,
            _aten.logit_backward.default,
            _aten.native_dropout_backward.default,
            _aten.softplus_backward.default,
            _aten.special_xlog1py.default,
            _aten.xlogy.Tensor,
        ),
        _of(_elementwise, 0, 1),
    ),
    _aten.leaky_relu_backward.default: _of(_elementwise, 1, 0),
    _aten.threshold_backward.default: _of(_elementwise, 1, 0),
    _aten._prelu_kernel_backward.default: _of(_elementwise, 1, 2, 0, results=2),
    _aten.binary_cross_entropy.default: _of(_like, 0),
    _aten.binary_cross_entropy_backward.default: _of(_like, 1),
    **dict.fromkeys(_BATCH_NORMS, _of(_suggested, 0)),
    _aten.native_batch_norm_backward.default: _of(_suggested, 1),
    _aten.batch_norm_backward.default: _of(_suggested, 1),
    _aten.channel_shuffle.default: _of(_suggested, 0),
    _aten.native_channel_shuffle.default: _of(_suggested, 0),
    **dict.fromkeys(_PADS, _of(_suggested, 1)),
}


def _relaid(t: Any, strides: Sequence[int] | None) -> Any:
    if strides is None or not isinstance(t, Tensor) or len(strides) != t.dim():
        return t
    strides = tuple(strides)
    if t.stride() == strides:
        return t
    return torch.empty_strided(t.shape, strides, dtype=t.dtype, device=t.device)


def _kernel(op: Any, rule: Rule | None) -> Kernel:
    """Torch's fake kernel, and then strides by the rule; contiguous ones where there is none."""

    def fake(*args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        results = [out] if isinstance(out, Tensor) else out
        if any(t is not None and t.device.type != "cpu" for t in results):
            return out
        if rule is None:
            sizes = [None if t is None else t.shape for t in results]
            strides: Sequence[Any] = [None if n is None else contiguous_strides(n) for n in sizes]
        else:
            strides = rule(*args, **kwargs)
        if isinstance(out, Tensor):
            return _relaid(out, strides[0])
        rest = [None] * (len(out) - len(strides))
        return type(out)(map(_relaid, out, [*strides, *rest]))

    return fake


def _max_unpool2d(x: Tensor, indices: Tensor, size: Sequence[int]) -> Tensor:
    out = _aten.max_unpool2d.default(x, indices, size)
    return torch.empty_like(out, memory_format=suggest_memory_format(x))


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """As the kernel puts it together."""
    if x.device.type != "cpu":
        return _aten.roll.default(x, shifts, dims)  # type: ignore[no-any-return]
    if not dims:
        return x.new_empty(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        if x.numel() == 0:
            return torch.empty_like(x)
        start = (size - shift) % size
        x = torch.cat([x.narrow(dim, start, size - start), x.narrow(dim, 0, start)], dim)
    return x


def layout_kernels() -> dict[Any, Kernel]:
    """Operation -> the fake kernel, with the strides of the real one."""
    rows = {op: _kernel(op, rule) for op, rule in _RULES.items()}
    rows |= {op: _kernel(op, None) for op in _CONTIGUOUS}
    return rows | {_aten.roll.default: _roll, _aten.max_unpool2d.default: _max_unpool2d}
