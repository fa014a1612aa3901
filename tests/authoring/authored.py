"""The wrappers that these tests declare: one for each kind of field and each default."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear

from subclass_trace import authoring
from subclass_trace.authoring import Outer, WrapperTensor

if TYPE_CHECKING:
    from collections.abc import Hashable

aten = torch.ops.aten


class Rounding(enum.Enum):
    """An enum as context."""

    NEAREST = "nearest"
    DOWN = "down"


@dataclasses.dataclass(frozen=True)
class Grid:
    """A frozen dataclass as context."""

    steps: int = 16
    rounding: Rounding = Rounding.NEAREST


class Pair(WrapperTensor, default="per_inner"):
    """Two tensors through one program."""

    a: Tensor
    b: Tensor


class TaggedPair(Pair):
    """A derived class that adds context, and a rule."""

    tag: int = 0
    note: Hashable = "none"


@TaggedPair.implements(aten.cos.default)
def _cos(func, x):
    return x.replace(a=func(x.a), b=func(x.b), tag=x.tag + 1)


class Scaled(WrapperTensor, default="dequantize"):
    """codes * scale, shown in another dtype; written by dividing."""

    codes: Tensor
    scale: Tensor
    shown: torch.dtype = torch.float32

    @classmethod
    def outer_metadata(cls, fields) -> Outer:
        return Outer(dtype=fields.shown)

    def dequantize(self) -> Tensor:
        return (self.codes * self.scale).to(self.shown)

    def requantize_(self, value: Tensor) -> None:
        self.codes.copy_(value / self.scale)


Scaled.implements_views(inner=["codes"])


@Scaled.implements(aten.mul.Tensor)
def _mul(func, x, y):
    if isinstance(x, Scaled) and isinstance(y, (int, float)):
        return x.replace(codes=x.codes.clone(), scale=x.scale * y)
    return NotImplemented


class FunctionScaled(Scaled):
    """A rule above autograd."""


@FunctionScaled.implements_torch_function(linear)
def _linear(func, x, weight, bias=None):
    if not isinstance(weight, FunctionScaled) or isinstance(x, FunctionScaled):
        return NotImplemented
    out = ScaledLinear.apply(x, weight)
    return out if bias is None else out + bias


class ScaledLinear(torch.autograd.Function):
    """x @ w.t() with a gradient that is ten times too large, so that a test can see who made it."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.dequantize().t()

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.dequantize() * 10, grad.t() @ x * 10


class Shifted(WrapperTensor, default="dequantize"):
    """data_ + shift, where shift may be absent."""

    data_: Tensor
    shift: Tensor | None = None
    grid: Grid = Grid()

    def dequantize(self) -> Tensor:
        return self.data_ * 1 if self.shift is None else self.data_ + self.shift

    def requantize_(self, value: Tensor) -> None:
        self.data_.copy_(value if self.shift is None else value - self.shift)


Shifted.implements_views()
Shifted.implements_per_inner(aten.neg.default)


class Strict(WrapperTensor):
    """Refuses all but what it lists."""

    data_: Tensor


Strict.implements_per_inner(authoring.elementwise)
Strict.implements_per_inner(aten.add_.Tensor, aten.mul_.Tensor)


class Halves(WrapperTensor, default="dequantize"):
    """(m, 2n) outside, (m, n) inside, twice."""

    left: Tensor
    right: Tensor

    @classmethod
    def outer_metadata(cls, fields) -> Outer:
        rows, columns = fields.left.shape
        return Outer(size=(rows, 2 * columns))

    def dequantize(self) -> Tensor:
        return torch.cat([self.left, self.right], dim=1)

    def requantize_(self, value: Tensor) -> None:
        left, right = value.chunk(2, dim=1)
        self.left.copy_(left)
        self.right.copy_(right)


class Empty(WrapperTensor):
    """No inner tensor at all."""

    rows: int

    @classmethod
    def outer_metadata(cls, fields) -> Outer:
        return Outer(size=(fields.rows, 2), dtype=torch.float64, device=torch.device("cpu"))


def randn(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


MAKERS = {
    "pair": lambda: Pair(randn(4, 4), randn(4, 4, seed=1)),
    "tagged": lambda: TaggedPair(randn(4, 4), randn(4, 4, seed=1), 3, note=("x", 1)),
    "scaled": lambda: Scaled(randn(4, 4), torch.tensor(2.0)),
    "scaled double": lambda: Scaled(randn(4, 4), torch.tensor(2.0), torch.float64),
    "function": lambda: FunctionScaled(randn(4, 4), torch.tensor(2.0)),
    "shifted": lambda: Shifted(randn(4, 4), randn(4, 4, seed=1), grid=Grid(8, Rounding.DOWN)),
    "unshifted": lambda: Shifted(randn(4, 4)),
    "strict": lambda: Strict(randn(4, 4)),
    "halves": lambda: Halves(randn(4, 2), randn(4, 2, seed=1)),
    "empty": lambda: Empty(4),
    "pair of scaled": lambda: Pair(Scaled(randn(4, 4), torch.tensor(2.0)), Scaled(randn(4, 4), torch.tensor(3.0))),
    "scaled pair": lambda: Scaled(Pair(randn(4, 4), randn(4, 4, seed=1)), torch.tensor(2.0)),
}


def leaves(x: Tensor) -> list[Tensor]:
    """The dense tensors inside, found without the package."""
    if not hasattr(x, "__tensor_flatten__"):
        return [x]
    return [leaf for name in x.__tensor_flatten__()[0] for leaf in leaves(getattr(x, name))]


def structure(x: Tensor):
    """Everything that can be compared of a value, found without the package."""
    facts = (type(x), tuple(x.shape), tuple(x.stride()), x.dtype, x.device, x.layout, x.requires_grad)
    if not hasattr(x, "__tensor_flatten__"):
        return facts
    names, context = x.__tensor_flatten__()
    return (*facts, context, {n: structure(getattr(x, n)) for n in names})


def assert_equal(got: Tensor, want: Tensor) -> None:
    """The same types, metadata, context and numbers, to the leaves."""
    assert structure(got) == structure(want)
    for a, b in zip(leaves(got), leaves(want), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
