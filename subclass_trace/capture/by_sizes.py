"""Composite operations that ask for sizes as numbers in C++: the same steps in Python, where sizes stay symbols.

`BY_SIZES` maps the name of a function to its steps, which are NotImplemented for arguments that are left to torch: what eager
refuses, and what is seldom. The steps are the operations that C++ issues, in its order, so that values, gradients, views and
versions are those of eager mode, and a wrapper's class sees what it sees there. Only what C++ selects by a mask is selected by
an index: its backward would take sizes for numbers, too. Gradients are the same then, but for 0.0 in the place of -0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

from ..subclass.protocol import Kind, kind_of
from .recorder import Recorder

Tensor = torch.Tensor
aten = torch.ops.aten


def by_sizes(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A call of one of these functions (see `composites.COMPOSITES`)."""
    symbolic = func.__name__ in _ALWAYS or any(map(_has_symbols, (*args, *kwargs.values())))
    if symbolic and kwargs.get("out") is None:
        try:
            out = BY_SIZES[func.__name__](*args, **{k: v for k, v in kwargs.items() if k != "out"})
        except TypeError:  # eager's own says what it takes
            out = NotImplemented
        if out is not NotImplemented:
            return out
    return func(*args, **kwargs)


def _has_symbols(value: Any) -> bool:
    sizes = value.shape if isinstance(value, Tensor) else (value,)
    return any(isinstance(n, torch.SymInt) for n in sizes)


# ---------------------------------------------------------------------------------------------- products and powers
def _kron(input: Tensor, other: Tensor) -> Any:
    dims = max(input.dim(), other.dim())
    a, b = ([1] * (dims - t.dim()) + list(t.shape) for t in (input, other))
    ones = [1] * dims
    product = aten._unsafe_view.default(input, _mixed(a, ones)) * aten._unsafe_view.default(other, _mixed(ones, b))
    return aten._unsafe_view.default(product, [n * m for n, m in zip(a, b, strict=True)])


def _mixed(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    return [n for row in zip(a, b, strict=True) for n in row]


def _vander(x: Tensor, N: Any = None, increasing: bool = False) -> Any:
    columns = x.shape[0] if N is None and x.dim() == 1 else N
    if x.dim() != 1 or not isinstance(columns, (int, torch.SymInt)) or columns < 0:
        return NotImplemented
    dtype = torch.promote_types(x.dtype, torch.int64)
    out = torch.empty((x.shape[0], columns), dtype=dtype, layout=x.layout, device=x.device)
    if columns > 0:
        out.select(1, 0).fill_(1)
    if columns > 1:
        aten.slice.Tensor(out, 1, 1).copy_(x.unsqueeze(1))
        powers = aten.slice.Tensor(out, 1, 1)
        powers.copy_(torch.cumprod(aten.slice.Tensor(out, 1, 1), 1))
    return out if increasing else out.flip(1)


# ---------------------------------------------------------------------------------------------- statistics
def _cov(input: Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    weighted = fweights is not None or aweights is not None
    if weighted or input.dim() > 2 or input.dtype is torch.bool or type(correction) is not int:
        return NotImplemented
    x = input.view(1, -1) if input.dim() < 2 else input
    count = x.shape[1]
    if count <= correction:  # with a warning
        return NotImplemented
    mean = x.sum(1) / _whole(count, x)
    x = x - mean.unsqueeze(1)
    return (torch.mm(x, x.t().conj()) / _whole(count - correction, x)).squeeze()


def _whole(number: Any, like: Tensor) -> Tensor:
    return torch.scalar_tensor(number, dtype=torch.int64, device=like.device)


def _corrcoef(input: Tensor) -> Any:
    c = NotImplemented if input.is_complex() else _cov(input)
    if c is NotImplemented or c.dim() == 0:
        return c if c is NotImplemented else c / c
    deviation = c.diagonal().sqrt()
    return (c / deviation.view(-1, 1) / deviation.view(1, -1)).clip(-1, 1)


def _gradient(input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> Any:
    dims = range(input.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    plain = type(spacing) in (int, float) and edge_order == 1 and not input.is_complex()
    if not plain or not all(-input.dim() <= d < input.dim() and input.shape[d] >= 2 for d in dims):
        return NotImplemented
    wrapped = [d % input.dim() for d in dims]
    if len(set(wrapped)) != len(wrapped):
        return NotImplemented
    return tuple(_slope(input, d, float(spacing)) for d in wrapped)


def _slope(x: Tensor, dim: int, step: float) -> Tensor:
    parts = []
    for below, above in (((0, -2), (2,)), ((0, 1), (1, 2)), ((-2, -1), (-1,))):
        low = aten.slice.Tensor(x, dim, *below)
        parts.append((aten.slice.Tensor(x, dim, *above) - low) / step)
    middle, first, last = parts
    return torch.cat([first, middle / 2, last], dim)


# ---------------------------------------------------------------------------------------------- places
def _fill_diagonal(x: Tensor, fill_value: Any, wrap: bool = False) -> Any:
    if wrap or x.dim() != 2 or x.layout is not torch.strided:  # of a cube torch cannot say what the steps write
        return NotImplemented
    count = x.shape[0] if x.shape[0] <= x.shape[1] else x.shape[1]
    x.as_strided((count,), (sum(x.stride()),), x.storage_offset()).fill_(fill_value)
    return x


def _masked_select(input: Tensor, mask: Tensor) -> Any:
    dense = all(kind_of(type(t)) is Kind.LEAF for t in (input, mask))
    if not (dense and torch.is_grad_enabled() and input.requires_grad and mask.dtype is torch.bool):
        return NotImplemented
    x, places = torch.broadcast_tensors(input, mask)  # type: ignore[no-untyped-call]
    return aten.index.Tensor(x, [places])


def _combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Any:
    if input.dim() != 1 or type(r) is not int or r < 1 or kind_of(type(input)) is not Kind.LEAF:
        return NotImplemented
    size, order = input.shape[0], torch.le if with_replacement else torch.lt
    grids = torch.meshgrid([input] * r, indexing="ij")
    places = torch.meshgrid([torch.arange(size, device=input.device)] * r, indexing="ij")
    mask = torch.full([size] * r, True, dtype=torch.bool, device=input.device)
    for a, b in pairwise(places):
        mask.mul_(order(a, b))
    rows = math.prod(size + k if with_replacement else size - k for k in range(r)) // math.factorial(r)
    chosen = list(torch.nonzero_static(mask, size=rows).unbind(1))  # how many there are is no question of values
    return torch.stack([aten.index.Tensor(grid, chosen) for grid in grids], 1)


# ---------------------------------------------------------------------------------------------- parts
def _take_along_dim(input: Tensor, indices: Tensor, dim: Any = None) -> Any:
    """Sizes are broadcast but for those of the dimension."""
    fits = type(dim) is int and input.dim() == indices.dim() and -input.dim() <= dim < input.dim()
    if not fits or indices.dtype is not torch.int64:
        return NotImplemented
    places, source = list(indices.shape), list(input.shape)
    wanted, there = places[dim], source[dim]
    places[dim] = source[dim] = 1
    try:
        common = list(torch.broadcast_shapes(places, source))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return NotImplemented
    chosen = indices.expand([*common[: dim % len(common)], wanted, *common[dim % len(common) + 1 :]])
    return input.expand([*common[: dim % len(common)], there, *common[dim % len(common) + 1 :]]).gather(dim, chosen)


def _adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Any:
    sizes = output_size if isinstance(output_size, (tuple, list)) else (output_size,)
    if len(sizes) != 1 or input.dim() not in (2, 3) or not all(type(n) in (int, torch.SymInt) for n in sizes):
        return NotImplemented
    return F.adaptive_avg_pool2d(input.unsqueeze(-2), (1, sizes[0])).squeeze(-2)


def pieces(x: Tensor, count: int, dim: int = 0) -> Any:
    """``tensor_split`` into so many, without a branch on what remains: the first pieces have one more each."""
    if not -x.dim() <= dim < x.dim() or not isinstance(x.shape[dim], torch.SymInt):
        return NotImplemented
    each, more = x.shape[dim] // count, x.shape[dim] % count
    inner = [k * each + torch.sym_min(k, more) for k in range(1, count)]  # type: ignore[no-untyped-call]
    return tuple(aten.slice.Tensor(x, dim, start, stop) for start, stop in pairwise([0, *inner, x.shape[dim]]))


#: whatever the sizes are: their steps in C++ have sizes that depend on values
_ALWAYS = ("combinations",)
#: name of a function -> its steps
BY_SIZES: Mapping[str, Callable[..., Any]] = {
    "adaptive_avg_pool1d": _adaptive_avg_pool1d,
    "combinations": _combinations,
    "corrcoef": _corrcoef,
    "cov": _cov,
    "fill_diagonal_": _fill_diagonal,
    "gradient": _gradient,
    "kron": _kron,
    "masked_select": _masked_select,
    "take_along_dim": _take_along_dim,
    "vander": _vander,
}
