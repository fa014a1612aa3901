"""`Diagonal`: an (n, n) matrix that holds its n diagonal elements.

What it is for: an inner tensor of another rank than the outer one, and operations that are cheaper on the structure
than on the dense matrix.

    >>> d = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> m = Diagonal.of(d)
    >>> m.shape, m.diag.shape
    (torch.Size([2, 2]), torch.Size([2]))
    >>> (torch.ones(1, 2) @ (m @ m)).sum().backward()
    >>> d.grad
    tensor([2., 4.])
    >>> m + torch.ones(2, 2)
    tensor([[2., 1.],
            [1., 3.]], grad_fn=<AddBackward0>)

Transposes, clone, neg, products with numbers, and sums and products of two Diagonals stay Diagonal; a product with a
dense matrix scales its rows or columns; everything else computes on the dense matrix. In place, only what a Diagonal
can hold is written (numbers times it, another Diagonal); other views and writes are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import torch_api
from ..torch_api.dynamo import never_compiled
from ._common import apply, aten, foreign, is_mutable, is_view, refuse, unwrap, view, written


class Diagonal(torch.Tensor):
    """The matrix with ``diag`` on the diagonal and zeros elsewhere. `Diagonal.of` is the differentiable constructor."""

    diag: torch.Tensor  # type: ignore[assignment]
    __torch_function__ = torch_api.disabled_torch_function

    @staticmethod
    def __new__(
        cls: type[Diagonal],
        diag: torch.Tensor,
        *,
        outer_size: Sequence[int] | None = None,
        outer_stride: Sequence[int] | None = None,
    ) -> Diagonal:
        (n,) = diag.shape
        if diag.requires_grad:  # the gradient belongs to the wrapper: `of` connects the two
            diag = diag.detach()
        diag = diag.resolve_conj().resolve_neg()  # operations below __torch_dispatch__ do not look at lazy bits
        self: Diagonal = torch_api.make_wrapper_subclass(
            cls,
            (n, n) if outer_size is None else outer_size,
            strides=(n, 1) if outer_stride is None else outer_stride,
            dtype=diag.dtype,
            device=diag.device,
        )
        self.diag = diag
        return self

    @staticmethod
    def of(diag: torch.Tensor) -> Diagonal:
        """The Diagonal of a copy of ``diag``, connected to it by autograd."""
        result: Diagonal = apply(_Of, diag)
        return result

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["diag"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], context: None, outer_size: Sequence[int], outer_stride: Sequence[int]
    ) -> Diagonal:
        return Diagonal(inner["diag"], outer_size=outer_size, outer_stride=outer_stride)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Diagonal({self.diag!r})"

    @classmethod
    @never_compiled
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
        if func is aten.mm.default:
            return _mm(*args)
        if func in _EACH or (func in _PAIRWISE and _closed(cls, func, args)):
            diag_args, diag_kwargs = unwrap(cls, lambda x: x.diag, (args, kwargs))
            contiguous = diag_kwargs.get("memory_format") is torch.contiguous_format
            return cls(func(*diag_args, **diag_kwargs), outer_stride=None if contiguous else args[0].stride())
        if is_mutable(func) and any(isinstance(t, cls) for t in written(func, args, kwargs)):
            return _in_place(cls, func, args, kwargs)
        dense_args, dense_kwargs = unwrap(cls, _dense, (args, kwargs))
        return func(*dense_args, **dense_kwargs)


_EACH = frozenset({aten.clone.default, aten.neg.default})
_PAIRWISE = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})
_IN_PLACE = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.sub_.Tensor: aten.sub.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.div_.Tensor: aten.div.Tensor,
}


def _dense(x: Diagonal) -> torch.Tensor:
    return torch.diag_embed(x.diag)


def _closed(cls: type[Any], func: Any, args: tuple[Any, ...]) -> bool:
    """Is the result of ``func(x, other)`` diagonal?"""
    x, other = args[0], args[1]
    if not isinstance(x, cls):
        return False
    product, quotient = func is aten.mul.Tensor, func is aten.div.Tensor
    number = isinstance(other, (int, float)) and not isinstance(other, bool) and x.dtype.is_floating_point
    finite = number and other == other and abs(other) != float("inf")  # 0 * inf off the diagonal would be NaN
    return (finite and (product or (quotient and other != 0))) or (
        isinstance(other, cls) and other.shape == x.shape and not quotient
    )


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """At least one is Diagonal. (Like all structured products, it drops the NaN of 0 * inf.)"""
    if not (a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0] and a.dtype == b.dtype):
        dense_a, dense_b = unwrap(Diagonal, _dense, (a, b))
        return torch.mm(dense_a, dense_b)  # let torch say what is wrong
    if isinstance(a, Diagonal):
        return Diagonal(a.diag * b.diag) if isinstance(b, Diagonal) else a.diag.unsqueeze(1) * b
    assert isinstance(b, Diagonal)
    return a * b.diag


def _view(func: Any, x: Diagonal, *args: Any, **kwargs: Any) -> Diagonal:
    if func in (aten.detach.default, aten.alias.default, aten.lift_fresh.default):
        return Diagonal(x.diag, outer_stride=x.stride())
    if func is aten.t.default or func is aten.transpose.int:
        swaps = func is aten.t.default or (args[0] - args[1]) % 2 == 1
        return Diagonal(x.diag, outer_stride=x.stride()[::-1] if swaps else x.stride())
    raise refuse(Diagonal, func, fix="transpose, or take the dense matrix first: torch.diag_embed(x.diag)")


def _in_place(cls: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    copies = func is aten.copy_.default and isinstance(args[1], cls) and args[1].shape == x.shape
    if not (copies or func is aten.zero_.default or (func in _IN_PLACE and _closed(cls, _IN_PLACE[func], args))):
        raise refuse(cls, func, fix="write a Diagonal, or multiply by a number; or work on .diag")
    diag_args, diag_kwargs = unwrap(cls, lambda t: t.diag, (args, kwargs))
    func(*diag_args, **diag_kwargs)
    return x


class _Of(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, diag: torch.Tensor) -> Diagonal:
        return Diagonal(diag.clone())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.diag.clone() if isinstance(grad, Diagonal) else grad.diagonal().clone()
