"""Pooling with a window that is a size, and grids: ``F.max_pool1d(x, x.shape[2])``, ``F.affine_grid(theta, x.shape)``.

Torch's schemas take a window of numbers; the backward of a grid takes numbers in C++. A graph has operations of ours in their
place (`own_operations`), which compute what those of torch do; and so do their backwards. The sizes of what is pooled are those
that torch's own Python code for tensors without data makes of symbols.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .. import _torch
from .indexing import sees_functions
from .own_operations import derive, differentiable, holds_symbols, own
from .recorder import Recorder

Tensor = torch.Tensor
aten = torch.ops.aten


# ---------------------------------------------------------------------------------------------- calls
def windows(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A call of one of these functions (see `composites.COMPOSITES`)."""
    out = of_symbols(func, args, kwargs)
    return func(*args, **kwargs) if out is NotImplemented else out


def of_symbols(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The same with our operation; NotImplemented where torch's is to be called."""
    if not any(map(holds_symbols, (*args, *kwargs.values()))):
        return NotImplemented
    try:
        return WINDOWS[func.__name__](*args, **kwargs)
    except (TypeError, RuntimeError):  # eager's own says what it takes, in numbers
        return NotImplemented


def may_be_ours(input: Any, dims: Sequence[int]) -> bool:
    """May ours be called? A class that sees functions, and a transform of ``torch.func``, would see another one."""
    if not isinstance(input, Tensor) or input.dim() not in dims or sees_functions(type(input)):
        return False
    transformed = _torch.functorch_active() or _torch.forward_ad_level() >= 0
    return not transformed and not torch.is_autocast_enabled(input.device.type)


def _numbers(value: Any, default: Any, count: int) -> list[Any]:
    """One for each dimension.

    Raises:
        TypeError: these are more or less.
    """
    given = default if value is None or (isinstance(value, (tuple, list)) and not value) else value
    found = list(given) if isinstance(given, (tuple, list)) else [given]
    found = found * count if len(found) == 1 else found
    if len(found) != count:
        raise TypeError(f"{count} numbers")
    return found


def _averaged(dims: int) -> Callable[..., Any]:
    def pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Any:
        if not may_be_ours(input, (dims + 1, dims + 2)):
            return NotImplemented
        window = [_numbers(n, kernel_size, dims) for n in (kernel_size, stride, padding)]
        return averages(dims)(input, *window, ceil_mode, count_include_pad, divisor_override)

    return pool


def _avg_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    if not may_be_ours(input, (2, 3)):
        return NotImplemented
    kernel, step, border = (_numbers(n, kernel_size, 1) for n in (kernel_size, stride, padding))
    window = [1, *kernel], [1, *step], [0, *border]
    return averages(2)(input.unsqueeze(-2), *window, ceil_mode, count_include_pad, None).squeeze(-2)


def _most(dims: int) -> Callable[..., Any]:
    """The values, and where they are."""

    def pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = True,
    ) -> Any:
        if not may_be_ours(input, (dims + 1, dims + 2)):
            return NotImplemented
        window = [_numbers(n, kernel_size, dims) for n in (kernel_size, stride, padding, dilation)]
        return maxima(dims)(input, *window, ceil_mode)

    return pool


def _values(pool: Callable[..., Any]) -> Callable[..., Any]:
    def values(*args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
        found = NotImplemented if return_indices else pool(*args, **kwargs)
        return found if found is NotImplemented else found[0]

    return values


def _affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Any:
    known = [_torch.value_in_trace(n) for n in (*theta.shape, *size)]
    if None in known or not may_be_ours(theta, (3,)):
        return NotImplemented
    with _torch.no_modes():  # its checks and warnings
        F.affine_grid(theta.new_empty(known[:3], device="meta"), type(size)(known[3:]), align_corners)
    for n in size:
        torch._check(n > 0)  # type: ignore[no-untyped-call]
    torch._check(theta.shape[0] == size[0])  # type: ignore[no-untyped-call]
    return grids()(theta, list(size), bool(align_corners))


WINDOWS: Mapping[str, Callable[..., Any]] = {
    "affine_grid": _affine_grid,
    "avg_pool1d": _avg_pool1d,
    **{f"avg_pool{dims}d": _averaged(dims) for dims in (2, 3)},
    **{f"max_pool{dims}d": _values(_most(dims)) for dims in (2, 3)},
    **{f"max_pool{dims}d_with_indices": _most(dims) for dims in (2, 3)},
}


# ---------------------------------------------------------------------------------------------- operations
@functools.cache
def averages(dims: int) -> Any:
    """``avg_pool2d`` and its sibling, which may be differentiated any number of times."""
    forward, backward = (own(getattr(aten, f"avg_pool{dims}d{part}").default) for part in ("", "_backward"))

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.window = inputs[1:]

    def differentiate(ctx: Any, grad: Tensor) -> Any:
        return backward(grad, *ctx.saved_tensors, *ctx.window), *[None] * len(ctx.window)

    def keep_window(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.window = inputs[2:]

    def again(ctx: Any, grad: Tensor) -> Any:
        return forward(grad, *ctx.window), None, *[None] * len(ctx.window)

    differentiable(forward, differentiate, keep)
    differentiable(backward, again, keep_window)
    return forward


@functools.cache
def maxima(dims: int) -> Any:
    """``max_pool2d_with_indices``, the same."""
    name = f"max_pool{dims}d_with_indices"
    forward, backward = (own(getattr(aten, name + part).default) for part in ("", "_backward"))

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.window = inputs[1:]

    def differentiate(ctx: Any, grad: Tensor, _: Any) -> Any:
        x, places = ctx.saved_tensors
        return backward(grad, x, *ctx.window, places), *[None] * len(ctx.window)

    def keep_places(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[-1])
        ctx.count = len(inputs) - 1

    def again(ctx: Any, grad: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        found = grad.flatten(-dims).gather(-1, places.flatten(-dims)).view(places.shape)
        return found, *[None] * ctx.count

    differentiable(forward, differentiate, keep)
    differentiable(backward, again, keep_places)
    return forward


@functools.cache
def grids() -> Any:
    """``affine_grid_generator``, the same."""
    forward = derive(aten.affine_grid_generator.default, lambda *args: aten.affine_grid_generator.default(*args), _grid)
    backward = derive(
        aten.affine_grid_generator_backward.default,
        lambda *args: aten.affine_grid_generator_backward.default(*args),
        lambda grad, size, align_corners: grad.new_empty((size[0], len(size) - 1, len(size) - 2)).transpose(1, 2),
    )

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.rest = inputs[1:]

    differentiable(forward, lambda ctx, grad: (backward(grad, *ctx.rest), None, None), keep)
    differentiable(backward, lambda ctx, grad: (forward(grad, *ctx.rest), None, None), keep)
    return forward


def _grid(theta: Tensor, size: Sequence[Any], align_corners: bool) -> Tensor:
    return theta.new_empty((size[0], *size[2:], len(size) - 2))
