"""Views whose place in a tensor is a number in C++: ``x.diagonal(n - 1)``, ``x.unfold(0, n // 2, 1)``; and diagonal matrices.

Of dense tensors they are made by operations that take symbols, with the sizes, strides and offset that they have in eager mode.
A wrapper's class would see other operations than there: each size has a specialization. `PARTS` maps the name of a function to
its steps, which are NotImplemented where torch's is to be called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from ..subclass.protocol import Kind, kind_of
from .counts import counts
from .own_operations import derive, differentiable, holds_symbols
from .recorder import Recorder
from .windows import may_be_ours

Tensor = torch.Tensor
aten = torch.ops.aten


def parts_by_sizes(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A call of one of these functions (see `composites.COMPOSITES`)."""
    if func is F.unfold:
        return counts(recorder, func, args, kwargs)
    first = args[0] if args else kwargs.get("input", kwargs.get("A"))
    dense = isinstance(first, Tensor) and kind_of(type(first)) is Kind.LEAF and first.layout is torch.strided
    if dense and kwargs.get("out") is None and any(map(holds_symbols, (*args, *kwargs.values()))):
        try:
            out = PARTS[func.__name__](*args, **{k: v for k, v in kwargs.items() if k != "out"})
        except TypeError:  # eager's own says what it takes
            out = NotImplemented
        if out is not NotImplemented:
            return out
    return func(*args, **kwargs)


def _are_dims(x: Tensor, *dims: Any) -> bool:
    """Are these different dimensions?"""
    known = all(type(d) is int and -x.dim() <= d < x.dim() for d in dims)
    return known and len({d % x.dim() for d in dims}) == len(dims)


# ---------------------------------------------------------------------------------------------- diagonals
def _rest(x: Tensor, offset: Any, dim1: int, dim2: int) -> Any:
    """The part of which a diagonal is the main one; NotImplemented where there is none."""
    if not _are_dims(x, dim1, dim2) or not isinstance(offset, torch.SymInt):
        return NotImplemented
    dim, start = (dim2, offset) if offset >= 0 else (dim1, -offset)
    return aten.slice.Tensor(x, dim, start, x.shape[dim]) if start < x.shape[dim] else NotImplemented


def _diagonal(input: Tensor, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> Any:
    rest = _rest(input, offset, dim1, dim2)
    return rest if rest is NotImplemented else rest.diagonal(0, dim1, dim2)


def _linalg_diagonal(A: Tensor, *, offset: Any = 0, dim1: int = -2, dim2: int = -1) -> Any:
    return _diagonal(A, offset, dim1, dim2)


def _diag(input: Tensor, diagonal: Any = 0) -> Any:
    if input.dim() != 2:
        return _diag_embed(input, diagonal, 0, 1) if input.dim() == 1 else NotImplemented
    rest = _rest(input, diagonal, 0, 1)
    return rest if rest is NotImplemented else aten.diagonal_copy.default(rest)


def _diagflat(input: Tensor, offset: Any = 0) -> Any:
    return _diag(input.contiguous().view(-1), offset)


def _diag_embed(input: Tensor, offset: Any = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """The main diagonal of a smaller matrix, with zeros around it."""
    dims = input.dim() + 1
    known = all(type(d) is int and -dims <= d < dims for d in (dim1, dim2)) and (dim1 - dim2) % dims != 0
    if not known or input.dim() < 1 or not isinstance(offset, torch.SymInt):
        return NotImplemented
    if torch.is_grad_enabled() and input.requires_grad and may_be_ours(input, range(1, 16)):
        return matrices()(input, offset, dim1, dim2)
    above = offset >= 0
    width = offset if above else -offset
    before = (dim2 if above else dim1) % dims
    pads: list[Any] = [0] * (2 * dims)
    pads[2 * (dims - 1 - before)] = width
    pads[2 * (dims - 1 - (dim1 if above else dim2) % dims) + 1] = width
    return aten.constant_pad_nd.default(torch.diag_embed(input, 0, dim1, dim2), pads)


@functools.cache
def matrices() -> Any:
    """``diag_embed``, whose gradient is a view of the matrix's gradient, as in eager mode: padding's is a copy."""

    def fake(input: Tensor, offset: Any = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
        *sizes, width = input.shape
        for dim in sorted(d % (input.dim() + 1) for d in (dim1, dim2)):
            sizes.insert(dim, width + abs(offset))
        return input.new_empty(sizes)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.place = inputs[1:]

    def differentiate(ctx: Any, grad: Tensor) -> Any:
        found = _diagonal(grad, *ctx.place)
        return grad.diagonal(*ctx.place) if found is NotImplemented else found, None, None, None

    op = aten.diag_embed.default
    forward = derive(op, op, fake)
    differentiable(forward, differentiate, keep)
    return forward


# ---------------------------------------------------------------------------------------------- windows
def _unfold(input: Tensor, dimension: int, size: Any, step: Any) -> Any:
    """By their place in memory: they may overlap."""
    if not _are_dims(input, dimension) or not all(type(n) in (int, torch.SymInt) for n in (size, step)):
        return NotImplemented
    if step <= 0 or size < 0 or size > input.shape[dimension]:
        return NotImplemented
    sizes, strides = list(input.shape), list(input.stride())
    sizes[dimension] = (sizes[dimension] - size) // step + 1
    strides[dimension] = step * strides[dimension]
    return input.as_strided([*sizes, size], [*strides, input.stride(dimension)], input.storage_offset())


#: name of a function -> its steps
PARTS: Mapping[str, Callable[..., Any]] = {
    "diag": _diag,
    "diag_embed": _diag_embed,
    "diagflat": _diagflat,
    "diagonal": _diagonal,
    "linalg_diagonal": _linalg_diagonal,
    "unfold": _unfold,
}
