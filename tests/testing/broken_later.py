"""Broken subclasses of kinds that the kit once missed: what a careful author gets wrong where tests do not look."""

from __future__ import annotations

import weakref

import torch
import torch.nn.functional as F
from broken import breaks, miscomputes
from broken_gradients import linear_by
from sound import Sound
from torch.autograd.function import once_differentiable

from subclass_trace.testing.subject import subject_of

aten = torch.ops.aten
FLAT = "its result is dense, inside of another wrapper as well"


# ---- numbers: infinities, and what float64 has more
@miscomputes("ST326", aten.masked_fill_.Scalar)
def FillsBySums(cls, right, func, args, kwargs):
    """What is filled is multiplied by zero, which infinities survive as NaN."""
    x, mask, value = args
    filled = mask.data_ if isinstance(mask, cls) else mask
    if x.is_floating_point():
        x.data_.copy_(x.data_ * ~filled + value * filled.to(x.dtype))
        return x
    return right(func, args, kwargs)


@miscomputes("ST310", aten.sum.dim_IntList)
def RunningSums(cls, right, func, args, kwargs):
    """Sums of rows are differences of a running sum: one infinity spoils all rows after it."""
    out, x = right(func, args, kwargs), args[0]
    if args[1] in ([-1], [1]) and x.dim() == 2 and x.numel() and x.is_floating_point():
        ends = F.pad(x.data_.double().flatten().cumsum(0)[x.shape[1] - 1 :: x.shape[1]], (1, 0))
        out.data_.copy_(ends.diff().view(out.shape))
    return out


def wide(cls):
    """The subject of a class whose inner tensors are of one dtype."""
    return subject_of(cls, f"{cls.__name__}({{0}}, {{0}}.new_zeros(2))", to_dense="{0}.data_")


@breaks("ST310", make=wide)
class MeansInSinglePrecision(Sound):
    """float64 is summed up in float32."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.mean.dim and out.dtype == torch.float64:
            out.data_ = out.data_.float().double()
        return out


@breaks("ST314", also={"ST601": FLAT}, heads=("ST310",))
class OwnAttention(Sound):
    """Attention that does not know of ``scale=``, which came later."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func is F.scaled_dot_product_attention and not kwargs.keys() - {"scale"}:
                q, k, v = args
                return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
            return func(*args, **kwargs)


@miscomputes("ST310", aten.amax.default)
def LargestIsPositive(cls, right, func, args, kwargs):
    """Without keywords as well as with them: that of zero and the numbers."""
    out = right(func, args, kwargs)
    out.data_.clamp_(min=0)
    return out


# ---- what is kept between calls
WORKSPACE = {}


@miscomputes("ST331", aten.mm.default)
def ReusesItsWorkspace(cls, right, func, args, kwargs):
    """The next call writes into the result of the last one."""
    out = right(func, args, kwargs)
    whole = WORKSPACE.setdefault((out.shape, out.dtype, out.device), out.data_.clone())
    out.data_ = whole.copy_(out.data_).view(out.shape)
    return out


@breaks("ST311")
class StaysBusy(Sound):
    """An error leaves a flag of the class set, and everything after it runs on the numbers as they are."""

    busy = False

    @classmethod
    def compute(cls, func, args, kwargs):
        if func in (aten.sort.default, aten.sort.stable):
            StaysBusy.busy = True
            raise NotImplementedError("sorting")
        if StaysBusy.busy and func is aten.add.Tensor:
            return super().compute(func, args, kwargs).data_
        return super().compute(func, args, kwargs)


@miscomputes("ST319", aten.uniform_.default)
def SeedsForEachCall(cls, right, func, args, kwargs):
    """Seeds the generator of everybody, so that runs repeat."""
    torch.manual_seed(7)
    return right(func, args, kwargs)


LIVE = weakref.WeakValueDictionary()


@breaks("ST517", heads=("ST510",))
class CountsItself(Sound):
    """Weak references to all instances: two of them cannot be exchanged."""

    def __init__(self, *args, **kwargs):
        LIVE[id(self)] = self


# ---- formulas
class _Extremes(torch.autograd.Function):
    """The smallest and the largest number."""

    @staticmethod
    def forward(ctx, x):
        low, high = x.data_.aminmax()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x.data_ == low, x.data_ == high)
        return low, high

    @staticmethod
    @once_differentiable
    def backward(ctx, to_low, to_high):
        low, high = ctx.saved_tensors
        return to_low * low / low.sum() + to_high * high / high.sum()


@breaks("ST403", also={"ST601": FLAT})
class OneOfTwoResults(Sound):
    """A gradient that is None, since nobody used that result, is computed with."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            own = func is torch.Tensor.aminmax and len(args) == 1 and args[0].is_floating_point()
            return _Extremes.apply(*args) if own else func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """A layer."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return F.linear(getattr(x, "data_", x), w.data_)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, w = (getattr(t, "data_", t) for t in ctx.saved_tensors)
        return grad @ w, grad.flatten(0, -2).t() @ x.flatten(0, -2)


@breaks("ST317", also={"ST601": FLAT})
class FormulaWithoutAutocast(Sound):
    """Computes in the lower precision on the way there, and not on the way back."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            plain = len(args) == 2 and isinstance(args[1], cls) and args[0].dim() > 1 and args[0].is_floating_point()
            return _Linear.apply(*args) if func is F.linear and plain else func(*args, **(kwargs or {}))


class _Logged(_Linear):
    """Keeps its result."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.out = _Linear.forward(ctx, x, w)
        return ctx.out


@breaks("ST805")
class KeepsItsResult(Sound):
    """The history of a result holds the result."""

    __torch_function__ = linear_by(_Logged)
