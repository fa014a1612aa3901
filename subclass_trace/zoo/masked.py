"""`Masked`: data with missing elements, closed under pointwise operations.

What it is for: an inner tensor of another dtype (bool) that has no gradient, and a rule that covers
hundreds of
operations at once: torch tags the pointwise ones.

    >>> x = Masked(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True]))
    >>> y = (x + torch.ones(3)).relu()
    >>> y.filled(0)
    tensor([2., 0., 4.])
    >>> y.sum()
    tensor(6.)
    >>> (x * Masked(torch.ones(3), torch.tensor([True, True, False]))).mask
    tensor([ True, False, False])

An element of a pointwise result is present where it is present in all operands. ``sum`` adds what
is present. Views, clone and conversions keep the mask. Everything else is refused, because there is
no one answer: say which with ``filled``. What stands in ``data_`` or in a gradient at a missing
element means nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from ..authoring import WrapperTensor, elementwise, in_place
from ..torch_api.autograd import apply_function
from ..torch_api.trees import tree_map_only

aten = torch.ops.aten

_LIKE = ("zeros", "ones", "empty", "full")


class Masked(
    WrapperTensor,
    default="refuse",
    advice="say what missing elements count as: x.filled(value); or write a Masked",
):
    """``data_`` where ``mask`` is True, missing elsewhere; both have the same size and strides."""

    data_: torch.Tensor
    mask: torch.Tensor

    def __post_init__(self) -> None:
        data, mask = self.data_, self.mask
        if (mask.shape, mask.dtype) != (data.shape, torch.bool):
            raise ValueError(
                f"mask must be bool of size {tuple(data.shape)}, got {mask.dtype} of "
                f"{tuple(mask.shape)}"
            )

    def filled(self, value: float) -> torch.Tensor:
        """The dense tensor with ``value`` at missing elements; no gradient flows into those."""
        result: torch.Tensor = apply_function(_Fill, self, value)
        return result


Masked.implements_views()


@Masked.implements(aten.sum.default, aten.sum.dim_IntList)
def _sum(func: Any, x: Masked, *args: Any, **kwargs: Any) -> Any:
    return func(_fill(x, 0), *args, **kwargs)


@Masked.implements(
    elementwise, aten._to_copy.default, *(getattr(aten, f"{n}_like").default for n in _LIKE)
)
def _pointwise(func: Any, *args: Any, **kwargs: Any) -> Any:
    data_args, data_kwargs = tree_map_only(Masked, lambda x: x.data_, (args, kwargs))
    out = func(*data_args, **data_kwargs)
    return (
        Masked(out, _common_mask(out, args, kwargs))
        if isinstance(out, torch.Tensor)
        else NotImplemented
    )


@Masked.implements(in_place)
def _in_place(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The written tensor must be Masked, and loses elements, or gets them if nothing of the old
    value is left."""
    if not isinstance(x, Masked):
        return NotImplemented
    data_args, data_kwargs = tree_map_only(Masked, lambda t: t.data_, (args, kwargs))
    func(x.data_, *data_args, **data_kwargs)
    if func in _WRITES:  # nothing of the old value is left, nor of its mask
        source = args[0] if func is aten.copy_.default else None
        x.mask.copy_(source.mask) if isinstance(source, Masked) else x.mask.fill_(True)
    else:
        tree_map_only(Masked, lambda t: x.mask.logical_and_(t.mask), (args, kwargs))
    return x


@Masked.implements(aten.new_empty_strided.default)
def _new_empty_strided(func: Any, x: Masked, size: Any, stride: Any, **kwargs: Any) -> Masked:
    """Memory to copy into: autograd asks for it when it must keep a gradient that somebody else
    holds."""
    return Masked(
        func(x.data_, size, stride, **kwargs),
        func(x.mask, size, stride, **{**kwargs, "dtype": torch.bool}),
    )


_WRITES = frozenset({aten.copy_.default, aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor})


def _fill(x: Masked, value: float) -> torch.Tensor:
    return x.data_.masked_fill(~x.mask, value)


class _Fill(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Masked, value: float) -> torch.Tensor:
        ctx.save_for_backward(x.mask)
        return _fill(x, value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grad.masked_fill(~mask, 0), None


def _common_mask(out: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """A new mask, laid out like ``out``: present where all operands are."""
    mask = torch.ones_like(out, dtype=torch.bool)
    tree_map_only(Masked, lambda x: mask.logical_and_(x.mask.to(out.device)), (args, kwargs))
    return mask
