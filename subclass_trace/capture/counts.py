"""Operations that take a count for a number in C++: groups of channels, bins, the window of ``F.unfold``, a factor.

    F.group_norm(x, x.shape[1] // 16)        torch.histc(x, bins=n)        F.pixel_shuffle(x, h // x.shape[2])

A graph has operations of ours in their place (`own_operations`), and so has their backward. `COUNTS` maps the name of a
function to the call of ours, which is NotImplemented where torch's is to be called: for what eager refuses, too.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .. import _torch
from ..subclass.protocol import Kind, kind_of
from .own_operations import derive, differentiable, holds_symbols, own
from .recorder import Recorder
from .windows import may_be_ours

Tensor = torch.Tensor
aten = torch.ops.aten
#: names of functions in Python that functions in C++ have, too, which give more
_OTHERS_IN_CPP = ("adaptive_max_pool1d", "adaptive_max_pool2d")


def counts(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A call of one of these functions (see `composites.COMPOSITES`)."""
    in_cpp = isinstance(func, types.BuiltinFunctionType)
    plain = kwargs.get("out") is None and not (in_cpp and func.__name__ in _OTHERS_IN_CPP)
    if plain and any(map(holds_symbols, (*args, *kwargs.values()))):
        try:
            out = COUNTS[func.__name__](*args, **{k: v for k, v in kwargs.items() if k != "out"})
        except (TypeError, RuntimeError):  # eager's own says what it takes, in numbers
            out = NotImplemented
        if out is not NotImplemented:
            return out
    return func(*args, **kwargs)


def _pair(value: Any) -> list[Any]:
    found = list(value) if isinstance(value, (tuple, list)) else [value, value]
    return found * 2 if len(found) == 1 else found


# ---------------------------------------------------------------------------------------------- groups
def _group_norm(
    input: Tensor, num_groups: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = True
) -> Any:
    if not may_be_ours(input, range(2, 16)):
        return NotImplemented
    batch, channels, *inner = input.shape
    fits = num_groups > 0 and channels % num_groups == 0 and 0 not in input.shape
    if not fits or batch * (channels // num_groups) * math.prod(inner) == 1:
        return NotImplemented
    if any(t is not None and (t.dim() != 1 or t.shape[0] != channels) for t in (weight, bias)):
        return NotImplemented
    if input.dim() > 3 and not input.is_contiguous():  # eager keeps channels last
        return NotImplemented
    x, weight, bias = (None if t is None else t.contiguous() for t in (input, weight, bias))
    return groups()(x, weight, bias, batch, channels, math.prod(inner), num_groups, eps)[0]


@functools.cache
def groups() -> Any:
    """``native_group_norm``. What is differentiated again is torch's own, of numbers."""
    forward, backward = own(aten.native_group_norm.default), own(aten.native_group_norm_backward.default)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:3], *output[1:])
        ctx.rest = inputs[3:]

    def differentiate(ctx: Any, grad: Tensor, *_: Any) -> Any:
        x, weight, bias, mean, deviation = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        if torch.is_grad_enabled():
            chosen = [t for t, w in zip((x, weight, bias), wanted, strict=True) if w]
            *sizes, count, eps = ctx.rest
            again = aten.native_group_norm.default(x, weight, bias, *sizes, int(count), eps)[0]
            made = iter(torch.autograd.grad(again, chosen, grad, create_graph=True))
            found: Any = [next(made) if w else None for w in wanted]
        else:
            found = backward(grad.contiguous(), x, mean, deviation, weight, *ctx.rest[:-1], wanted)
            found = [g if w else None for g, w in zip(found, wanted, strict=True)]
        return *found, *[None] * len(ctx.rest)

    differentiable(forward, differentiate, keep)
    return forward


# ---------------------------------------------------------------------------------------------- windows side by side
def _im2col(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    if not may_be_ours(input, (3, 4)):
        return NotImplemented
    return columns()[0](input, *map(_pair, (kernel_size, dilation, padding, stride)))


def _col2im(
    input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Any:
    if not may_be_ours(input, (2, 3)):
        return NotImplemented
    return columns()[1](input, *map(_pair, (output_size, kernel_size, dilation, padding, stride)))


@functools.cache
def columns() -> tuple[Any, Any]:
    """``im2col`` and ``col2im``: each is the backward of the other."""
    taken, put = own(aten.im2col.default), own(aten.col2im.default)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.sizes, ctx.window = inputs[0].shape[-2:], inputs[1:]

    def differentiate(ctx: Any, grad: Tensor) -> Any:
        return put(grad, list(ctx.sizes), *ctx.window), *[None] * len(ctx.window)

    def again(ctx: Any, grad: Tensor) -> Any:
        return taken(grad, *ctx.window[1:]), *[None] * len(ctx.window)

    differentiable(taken, differentiate, keep)
    differentiable(put, again, keep)
    return taken, put


# ---------------------------------------------------------------------------------------------- factors
def _shuffled(way: int) -> Callable[..., Any]:
    def shuffle(input: Tensor, factor: Any = None, upscale_factor: Any = None, downscale_factor: Any = None) -> Any:
        (number,) = (n for n in (factor, upscale_factor, downscale_factor) if n is not None)
        if number <= 0 or not may_be_ours(input, range(3, 16)):
            return NotImplemented
        return shuffles()[way](input, number)

    return shuffle


@functools.cache
def shuffles() -> tuple[Any, Any]:
    """``pixel_shuffle`` and its inverse: each is the backward of the other."""
    both = own(aten.pixel_shuffle.default), own(aten.pixel_unshuffle.default)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]

    for op, other in (both, both[::-1]):
        differentiable(op, lambda ctx, grad, other=other: (other(grad, ctx.factor), None), keep)
    return both


# ---------------------------------------------------------------------------------------------- bins
def _histc(input: Tensor, bins: Any = 100, min: Any = 0, max: Any = 0) -> Any:
    asks = torch.is_grad_enabled() and isinstance(input, Tensor) and input.requires_grad
    if bins <= 0 or asks or not may_be_ours(input, range(16)):
        return NotImplemented
    return bin_counts()(input, bins, min, max)


@functools.cache
def bin_counts() -> Any:
    """``histc``, which has no gradient."""
    return own(aten.histc.default)


def _histogram(input: Tensor, bins: Any = 100, **options: Any) -> Any:
    asks = torch.is_grad_enabled() and isinstance(input, Tensor) and input.requires_grad
    if not isinstance(bins, torch.SymInt) or bins <= 0 or asks or not may_be_ours(input, range(16)):
        return NotImplemented
    return torch.return_types.histogram(edged_counts()(input, bins, **options))


@functools.cache
def edged_counts() -> Any:
    """``histogram``, which has no gradient."""
    op = aten.histogram.bin_ct
    return derive(op, lambda *args, **kwargs: op(*args, **kwargs), _torch.histogram_without_data)


# ---------------------------------------------------------------------------------------------- maxima of so many parts
def _adaptive(dims: int) -> Callable[..., Any]:
    """The values, and where they are."""

    def pool(input: Tensor, output_size: Any, return_indices: bool = True) -> Any:
        sizes = list(output_size) if isinstance(output_size, (tuple, list)) else [output_size] * dims
        if None in sizes or len(sizes) != dims or not may_be_ours(input, (dims + 1, dims + 2)):
            return NotImplemented
        if dims == 2:
            return parts()(input, sizes)
        return tuple(t.squeeze(-2) for t in parts()(input.unsqueeze(-2), [1, *sizes]))

    return pool


def _values(pool: Callable[..., Any]) -> Callable[..., Any]:
    def values(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        found = NotImplemented if return_indices else pool(input, output_size)
        return found if found is NotImplemented else found[0]

    return values


@functools.cache
def parts() -> Any:
    """``adaptive_max_pool2d``."""
    forward = own(aten.adaptive_max_pool2d.default)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.mark_non_differentiable(output[1])

    def differentiate(ctx: Any, grad: Tensor, _: Any) -> Any:
        return aten.adaptive_max_pool2d_backward.default(grad, *ctx.saved_tensors), None

    differentiable(forward, differentiate, keep)
    return forward


# ---------------------------------------------------------------------------------------------- blocks
def block_diag(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Its backward in C++ takes the sizes of the blocks for numbers."""
    tensors = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
    ours = not kwargs and any(isinstance(t, Tensor) and holds_symbols(t.shape) for t in tensors)
    if ours and torch.is_grad_enabled() and all(may_be_ours(t, range(3)) for t in tensors):
        if all(t.dtype == tensors[0].dtype and t.device == tensors[0].device for t in tensors):
            return blocks()(list(tensors))
    return func(*args, **kwargs)


@functools.cache
def blocks() -> Any:
    """``block_diag``."""
    op = aten.block_diag.default
    forward = own(op)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.shapes = [t.shape for t in inputs[0]]

    def differentiate(ctx: Any, grad: Tensor) -> Any:
        found, row, column = [], 0, 0
        for shape in ctx.shapes:
            rows, columns = (1, 1, *shape)[-2:] if len(shape) < 2 else shape
            part = aten.slice.Tensor(aten.slice.Tensor(grad, 0, row, row + rows), 1, column, column + columns)
            for _ in range(2 - len(shape)):
                part = part.squeeze(-1) if len(shape) == 0 else part.squeeze(0)
            found.append(part)
            row, column = row + rows, column + columns
        return (found,)

    differentiable(forward, differentiate, keep)
    return forward


# ---------------------------------------------------------------------------------------------- products
def cumprod(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Its backward in C++ takes the sizes for numbers, where it is traced, and else looks whether there are zeros."""
    named = dict(zip(("input", "dim"), args, strict=False)) | kwargs
    x, dim = named.get("input"), named.get("dim")
    if len(args) <= 2 and named.keys() == {"input", "dim"} and type(dim) is int and may_be_ours(x, range(1, 16)):
        dense = kind_of(type(x)) is Kind.LEAF and -x.dim() <= dim < x.dim() and holds_symbols(x.shape)
        if dense and torch.is_grad_enabled() and x.requires_grad:
            return products()(x, dim)
    return func(*args, **kwargs)


@functools.cache
def products() -> Any:
    """``cumprod``. What is differentiated again is torch's own."""
    op = aten.cumprod.default
    forward = derive(op, op, op)
    op_backward = aten.cumprod_backward.default
    backward = derive(op_backward, op_backward, lambda grad, x, dim, out: torch.empty_like(grad))

    def keep(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.dim = inputs[1]

    def differentiate(ctx: Any, grad: Tensor) -> Any:
        x, out = ctx.saved_tensors
        again = op_backward if torch.is_grad_enabled() else backward
        return again(grad, x, ctx.dim, out), None

    differentiable(forward, differentiate, keep)
    return forward


#: name of a function -> the call of ours
COUNTS: Mapping[str, Callable[..., Any]] = {
    "adaptive_max_pool1d": _values(_adaptive(1)),
    "adaptive_max_pool2d": _values(_adaptive(2)),
    "adaptive_max_pool1d_with_indices": _adaptive(1),
    "adaptive_max_pool2d_with_indices": _adaptive(2),
    "fold": _col2im,
    "group_norm": _group_norm,
    "histc": _histc,
    "histogram": _histogram,
    "unfold": _im2col,
    "pixel_shuffle": _shuffled(0),
    "pixel_unshuffle": _shuffled(1),
}
