"""``default="weight"``: what models, optimizers and FSDP2 ask of a weight, from one declared
``dequantize``.

>>> import torch
>>> from torch import Tensor
>>> from subclass_trace.authoring import Outer, WrapperTensor
>>> class Rows(WrapperTensor, default="weight"):
...     codes: Tensor  # (m, n)
...     scale: Tensor  # (m, 1)
...     def dequantize(self) -> Tensor:
...         return self.codes * self.scale
>>> w = Rows(torch.ones(3, 2), torch.full((3, 1), 2.0))
>>> torch.nn.functional.linear(torch.ones(1, 2), w)
tensor([[4., 4., 4.]])
>>> w[1:].shape
torch.Size([2, 2])

Products and layers compute on the dense value, above autograd, so that a weight needs no transpose
of its own. Its rows are
those of the inner tensors, if each of them has as many: cut together, they are a view (FSDP2 asks
for it). A transpose is derived where each inner tensor has the sizes of the weight, or 1. So
``dequantize`` must treat rows and columns alike, as ``codes * scale`` does; for packed columns
transposes are refused, and rows are right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ..errors import UnsupportedError
from .defaults import dequantized
from .effects import Run, aten, substitute
from .fields import like

#: functions that are computed on the dense value above autograd, where they would be taken apart
# into views
FUNCTIONS = (
    torch.nn.functional.linear, torch.nn.functional.bilinear, torch.matmul, torch.Tensor.matmul,
    torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.einsum, torch.tensordot,
)  # fmt: skip
#: class methods that quantise a dense tensor, by convention; `requantize_` is derived from the
# first that a class has
CONSTRUCTORS = ("quantize", "from_dense", "from_hp", "from_float")


def weight(cls: type[Any], func: Any) -> Run:
    """The rule for an operation: rows and transposes of the inner tensors, or the dense value."""
    otherwise = dequantized(cls, func)
    made = _RULES.get(func)
    if made is None:
        return otherwise

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = made(func, *args, **kwargs) if isinstance(args[0], cls) else NotImplemented
        return otherwise(args, kwargs) if out is NotImplemented else out

    return run


def function_rules(cls: type[Any]) -> dict[Any, Callable[..., Any]]:
    """Rules of torch functions: the dense value in place of each weight, whose gradient is that of
    the dense value."""

    def rule(func: Any, *args: Any, **kwargs: Any) -> Any:
        return func(*substitute(cls, _dense, args), **substitute(cls, _dense, kwargs))

    return dict.fromkeys(FUNCTIONS, rule)


def _dense(x: Any) -> torch.Tensor:
    value: torch.Tensor = x.dequantize()
    return value


def requantizer(cls: type[Any]) -> Callable[[Any, torch.Tensor], None] | None:
    """``requantize_`` of a class that can quantise: quantise anew, and copy each inner tensor. None
    if it cannot."""
    name = next(
        (n for n in CONSTRUCTORS if isinstance(vars(cls).get(n), (classmethod, staticmethod))), None
    )
    if name is None:
        return None

    def requantize_(self: Any, value: torch.Tensor) -> None:
        new = getattr(type(self), name)(value)
        names = self.__tensor_flatten__()[0]
        sizes = [[tuple(getattr(x, n).shape) for n in names] for x in (self, new)]
        if sizes[0] != sizes[1]:
            raise UnsupportedError(
                f"{type(self).__name__}.{name}() gives other inner tensors than those that would "
                "be written",
                code="wrapper-form",
                path=type(self).__name__,
                expected=dict(zip(names, sizes[0], strict=True)),
                got=dict(zip(names, sizes[1], strict=True)),
                fix=f"write requantize_(self, value) in {type(self).__name__}, or write to the "
                "weight, not to its transpose",
            )
        for n in names:
            getattr(self, n).copy_(getattr(new, n))

    return requantize_


# ---- rules
def _inner(x: Any) -> dict[str, torch.Tensor]:
    return {n: getattr(x, n) for n in x.__tensor_flatten__()[0]}


def _rowed(x: Any) -> bool:
    """Does each inner tensor have a row for each row of the weight?"""
    return x.dim() > 0 and all(t.dim() > 0 and t.shape[0] == x.shape[0] for t in _inner(x).values())


def _cut(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows: slice, split."""
    at = 0 if func is aten.slice.Tensor else 1
    dim = kwargs.get("dim", args[at] if len(args) > at else 0)
    if dim not in (0, -x.dim()) or not _rowed(x):
        return NotImplemented
    rest = [v for k, v in enumerate(args) if k != at]
    rest.insert(at, 0)  # (of an inner tensor with other dimensions, too)
    how = {k: v for k, v in kwargs.items() if k != "dim"}
    cut = {n: func(t, *rest, **how) for n, t in _inner(x).items()}
    first = next(iter(cut.values()))
    if isinstance(first, torch.Tensor):
        return like(x, cut, (first.shape[0], *x.shape[1:]), x.stride())
    pieces = [{n: parts[k] for n, parts in cut.items()} for k in range(len(first))]
    return [
        like(x, piece, (p.shape[0], *x.shape[1:]), x.stride())
        for piece, p in zip(pieces, first, strict=True)
    ]


def _transpose(func: Any, x: Any, *dims: int) -> Any:
    if x.dim() != 2 or (dims and {d % 2 for d in dims} != {0, 1}):
        return NotImplemented
    for t in _inner(x).values():
        if t.dim() != 2 or any(n not in (1, m) for n, m in zip(t.shape, x.shape, strict=True)):
            return NotImplemented
    return like(
        x, {n: func(t, *dims) for n, t in _inner(x).items()}, x.shape[::-1], x.stride()[::-1]
    )


def _view(func: Any, x: Any, size: Any) -> Any:
    """Its own sizes; and flat for FSDP2, which keeps that of a shard and does not read it: its
    value could not be told."""
    flat = len(size) == 1 and _rowed(x) and x.is_contiguous()
    if tuple(size) != tuple(x.shape) and not (flat and _of_fsdp()):
        return NotImplemented
    sizes = ((x.numel(),), (1,)) if flat else (x.shape, x.stride())
    return like(x, {n: aten.alias.default(t) for n, t in _inner(x).items()}, *sizes)


def _of_fsdp() -> bool:
    """Is it FSDP2 that asks?"""
    name, frame = (
        "torch.distributed.fsdp",
        sys._getframe() if "torch.distributed.fsdp" in sys.modules else None,
    )
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(name):
        frame = frame.f_back
    return frame is not None


def _new_zeros(func: Any, x: Any, size: Any, **kwargs: Any) -> Any:
    """The memory of a shard: as many rows of each inner tensor."""
    same = len(size) == x.dim() and tuple(size[1:]) == tuple(x.shape[1:])
    if not (same and _rowed(x) and kwargs.get("dtype") in (None, x.dtype)):
        return NotImplemented
    how = {k: v for k, v in kwargs.items() if k == "device"}
    made = {n: func(t, (size[0], *t.shape[1:]), **how) for n, t in _inner(x).items()}
    return like(x, made, tuple(size))


_RULES: dict[Any, Callable[..., Any]] = {
    aten.slice.Tensor: _cut,
    aten.split.Tensor: _cut,
    aten.split_with_sizes.default: _cut,
    aten.t.default: _transpose,
    aten.transpose.int: _transpose,
    aten.view.default: _view,
    aten.new_zeros.default: _new_zeros,
}
