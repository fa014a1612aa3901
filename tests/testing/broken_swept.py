"""Broken subclasses for the rules that the sweep alone judges."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from broken import breaks, miscomputes
from sound import Sound
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

from subclass_trace.testing.subject import subject_of

aten = torch.ops.aten


def scaled(cls):
    """The subject of a class whose value is data * scale."""
    return subject_of(cls, f"{cls.__name__}({{0}})", to_dense="{0}.dense()", dtypes=[torch.float32, torch.float64])


class Scaled(Sound):
    """value = data * scale; everything but what stays linear is computed densely."""

    @staticmethod
    def __new__(cls, data, scale=2.0, extra=None):
        return Sound.__new__(cls, data, extra, scale)

    scale = property(lambda self: self.tag)

    def dense(self):
        return self.data_ * self.scale

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], context, inner["extra"])

    @classmethod
    def compute(cls, func, args, kwargs):
        x, floating = args[0], kwargs.get("dtype", torch.float32).is_floating_point
        if floating and (func.is_view or func in (aten.clone.default, aten._to_copy.default)):
            fresh = func in (aten.clone.default, aten._to_copy.default)

            def wrap(data):
                return cls(data, x.scale, x.extra.to(data.device, copy=fresh))

            out = tree_map_only(torch.Tensor, wrap, func(x.data_, *args[1:], **kwargs))
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func._schema.is_mutable:
            raise NotImplementedError("in place")
        dense = tree_map_only(cls, lambda x: x.dense(), (args, kwargs))
        return func(*dense[0], **dense[1])


@breaks("ST112", make=scaled)
class EqualContexts(Scaled):
    """Contexts compare by their names, and hold a scale as well."""

    def __tensor_flatten__(self):
        return ["data_", "extra"], Named(self.scale)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], context.scale, inner["extra"])


@breaks("ST112", make=scaled)
class EqualResults(Scaled):
    """A product with a number has another context, which is equal to that of its operand."""

    @staticmethod
    def __new__(cls, data, scale=None, extra=None):
        return Sound.__new__(cls, data, extra, scale or Named(2.0))

    def dense(self):
        return self.data_ * self.tag.scale

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.mul.Tensor and isinstance(args[1], (int, float)) and args[0].is_floating_point():
            x, y = args
            return cls(x.data_.clone(), Named(x.tag.scale * y), x.extra.clone())
        return super().compute(func, args, kwargs)


@breaks("ST310", make=scaled)
class ReluOfCodes(Scaled):
    """relu keeps the scale, which a product with a negative number has made negative."""

    @classmethod
    def compute(cls, func, args, kwargs):
        x = args[0]
        if func is aten.mul.Tensor and isinstance(x, cls) and isinstance(args[1], (int, float)):
            return cls(x.data_.clone(), x.scale * args[1], x.extra.clone())
        if func is aten.relu.default:
            return cls(func(x.data_), x.scale, x.extra.clone())
        return super().compute(func, args, kwargs)


@breaks("ST311", make=scaled)
class LeftBusy(Scaled):
    """A mark of the class stays where an operation raises, and exp looks at it."""

    busy = False

    @classmethod
    def compute(cls, func, args, kwargs):
        if cls.busy and func is aten.exp.default:
            cls.busy = False
            return args[0].dense()
        cls.busy = True
        out = super().compute(func, args, kwargs)
        cls.busy = False
        return out


@miscomputes("ST113", aten.add_.Tensor)
def CountsWrites(cls, right, func, args, kwargs):
    """add_ counts in the context."""
    out = right(func, args, kwargs)
    if isinstance(args[0], cls):
        args[0].tag += "+"
    return out


class Named:
    """Equal to every other one."""

    def __init__(self, scale):
        self.scale = scale

    def __eq__(self, other):
        return isinstance(other, Named)

    def __hash__(self):
        return 1


@miscomputes("ST113", aten.cos.default)
def CountsInTheContext(cls, right, func, args, kwargs):
    """An operation leaves a mark in the context of its operand."""
    args[0].tag = args[0].tag + "'"
    return right(func, args, kwargs)


LAST = {}


@breaks("ST114", make=scaled)
class SharesItsScale(Scaled):
    """The scale is in a dict that all instances have."""

    def __init__(self, data, scale=2.0, extra=None):
        LAST["scale"] = scale

    scale = property(lambda self: LAST["scale"])

    def __tensor_flatten__(self):
        return ["data_", "extra"], LAST["scale"]


class Loose:
    """Equal by value, hashed by identity."""

    def __init__(self, tag):
        self.tag = tag

    def __eq__(self, other):
        return isinstance(other, Loose) and self.tag == other.tag

    __hash__ = object.__hash__


@breaks("ST115")
class HashedByIdentity(Sound):
    """The context has a hash of its own."""

    def __tensor_flatten__(self):
        return ["data_", "extra"], Loose(self.tag)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], inner["extra"], context.tag, size, stride)


@breaks("ST306")
class OtherWithGrad(Sound):
    """tanh is another one where gradients are on."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
            return out * 2 if func is torch.Tensor.tanh and torch.is_grad_enabled() else out


_calls = []


@miscomputes("ST311", aten.exp2.default)
def AnotherEachTime(cls, right, func, args, kwargs):
    """Each second exp2 is another one."""
    _calls.append(1)
    out = right(func, args, kwargs)
    out.data_ = out.data_ + len(_calls) % 2
    return out


@miscomputes("ST312", aten.erf.default)
def PlainErf(cls, right, func, args, kwargs):
    """erf gives a dense tensor."""
    return func(args[0].data_)


@miscomputes("ST313", aten.ceil.default)
def CeilOfDoubles(cls, right, func, args, kwargs):
    """ceil gives float64."""
    out = right(func, args, kwargs)
    return cls(out.data_.double(), out.extra, out.tag)


@miscomputes("ST314", aten.addcmul.default)
def ForgetsValue(cls, right, func, args, kwargs):
    """addcmul ignores value=."""
    return right(func, args, {})


@miscomputes("ST315", aten.rsub.Scalar)
def TurnsAround(cls, right, func, args, kwargs):
    """2 - x is x - 2."""
    out = right(func, args, kwargs)
    out.data_ = -out.data_
    return out


@breaks("ST316", make=scaled)
class ScaleOfTheFirst(Scaled):
    """hypot takes the scale of the first operand for both."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.hypot.default and all(isinstance(a, cls) for a in args):
            return func(args[0].data_ * args[0].scale, args[1].data_ * args[0].scale)
        return super().compute(func, args, kwargs)


@miscomputes("ST317", aten.lerp.Scalar)
def NeedsTwo(cls, right, func, args, kwargs):
    """lerp looks for a scale that nobody has."""
    return right(func, (args[0], args[1].scale, args[2]), kwargs)


def weight(cls):
    """The subject of a class that is declared a weight."""
    return subject_of(cls, f"{cls.__name__}({{0}})", to_dense="{0}.data_", use="weight")


@breaks("ST318", make=weight)
class NoProducts(Sound):
    """A weight that refuses to be multiplied."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func.__name__.split(".")[0] in ("mm", "addmm", "embedding", "convolution", "bmm"):
            raise NotImplementedError("no products")
        return super().compute(func, args, kwargs)


@miscomputes("ST319", aten.log1p.default)
def SetsTheDefault(cls, right, func, args, kwargs):
    """log1p leaves another default dtype behind."""
    torch.set_default_dtype(torch.float64)
    return right(func, args, kwargs)


def programs(cls):
    """The subject of a class with programs of its author."""
    return subject_of(cls, f"{cls.__name__}({{0}})", to_dense="{0}.data_", programs=["torch.special.i0(x)"])


@breaks("ST320", make=programs)
class OwnProgram(Sound):
    """A function that the table does not have is wrong."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.special_i0.default or func is aten.i0.default:
            out.data_ = out.data_ + 1
        return out


@miscomputes("ST332", aten.split.Tensor)
def FirstChunkTwice(cls, right, func, args, kwargs):
    """Each chunk shows the first part."""
    out = right(func, args, kwargs)
    first = out[0]
    return [cls(first.data_, first.extra, first.tag) if v.shape == first.shape else v for v in out]


def masked(cls):
    """The subject of a class with elements that mean nothing."""
    return subject_of(cls, f"{cls.__name__}({{0}})", to_dense="{0}.data_", valid="{0}.data_ > -1")


@breaks("ST333", make=masked)
class CountsMissing(Sound):
    """A sum over elements of which some are said to be missing."""

    # it is Sound itself: what nobody may look at counts in each of its sums


@breaks("ST403")
class OneGradientForBoth(Sound):
    """The second gradient of hypot is the first one."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.hypot:
                return Sides.apply(*args)
            return func(*args, **(kwargs or {}))


class Sides(torch.autograd.Function):
    """hypot whose second gradient is the first one."""

    @staticmethod
    def forward(ctx, x, y):
        out = torch.hypot(x, y)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, out = ctx.saved_tensors
        return grad * (x / out), grad * (x / out)


class Third(torch.Tensor):
    """A class of its own for gradients."""

    __torch_function__ = torch._C._disabled_torch_function_impl


@breaks("ST404")
class GradientOfAnotherClass(Sound):
    """The gradient of sign is of a third class."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func is F.mish:
                return Strange.apply(args[0])
            return func(*args, **(kwargs or {}))


class Strange(torch.autograd.Function):
    """mish with a gradient of a third class."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.mish(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.data_.as_subclass(Third)


@breaks("ST517")
class LoadsNothing(Sound):
    """module_load gives the old value back."""

    def module_load(self, other, assign=False):
        return self.detach().clone()


@miscomputes("ST802", aten.asinh.default)
def NeverEnds(cls, right, func, args, kwargs):
    """asinh waits for a shape that does not come."""
    while args[0].dim() < 9:
        pass
    return right(func, args, kwargs)


@miscomputes("ST805", aten.tanh.default)
def KeepsItsOperand(cls, right, func, args, kwargs):
    """The result of tanh knows what it was made of."""
    out = right(func, args, kwargs)
    out.source = args[0]
    return out


# ---- values, sizes and keywords that are not the plainest
@breaks("ST310", make=scaled)
class EmptyIsFlat(Scaled):
    """The dense value of what has no elements has one dimension."""

    def dense(self):
        return super().dense() if self.numel() else torch.zeros(0, dtype=self.dtype)


@miscomputes("ST310", aten.mm.default)
def SwallowsNaN(cls, right, func, args, kwargs):
    """A product takes NaN for zero."""
    out = right(func, args, kwargs)
    out.data_ = out.data_.nan_to_num(0.0)
    return out


@miscomputes("ST310", aten.add.Tensor)
def NoZero(cls, right, func, args, kwargs):
    """The sum of two zeros is none, as in logarithms."""
    out = right(func, args, kwargs)
    zeros = [(v.data_ if isinstance(v, Sound) else torch.as_tensor(v)) == 0 for v in args]
    if out.is_floating_point():
        out.data_ = out.data_.masked_fill(zeros[0] & zeros[1], torch.nan)
    return out


@miscomputes("ST313", aten.mul.Tensor)
def OneElement(cls, right, func, args, kwargs):
    """A factor of one element is taken for a number, whatever dimensions it has."""
    x, y = args
    one = type(y) is torch.Tensor and y.numel() == 1 and isinstance(x, Sound) and x.numel() > 1
    return right(func, (x, y.reshape(())) if one else args, kwargs)


def complex_numbers(cls):
    """The subject of a class of complex numbers."""
    return subject_of(cls, f"{cls.__name__}({{0}})", to_dense="{0}.data_", dtypes=[torch.complex64])


@breaks("ST310", make=complex_numbers)
class HalfAngle(Sound):
    """The angle of a complex number is that of a slope."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.angle.default and args[0].is_complex():
            out.data_ = (args[0].data_.imag / args[0].data_.real).atan()
        return out


@miscomputes("ST332", aten.slice.Tensor)
def FirstBlock(cls, right, func, args, kwargs):
    """The second half of the columns is the first."""
    x, dim, start, end = (*args, 0, None, None)[:4]
    half = dim and x.shape[dim] > 3 and start == x.shape[dim] // 2 and end > x.shape[dim]
    return right(func, (x, dim, 0, x.shape[dim] - start) if half else args, kwargs)


@miscomputes("ST314", aten.index_put_.default)
def ForgetsToAccumulate(cls, right, func, args, kwargs):
    """index_put_ writes where it should add."""
    return right(func, args[:3], kwargs)


class Known(Scaled):
    """The largest number is known, in an inner tensor of its own."""

    @classmethod
    def compute(cls, func, args, kwargs):
        x = args[0]
        if func is aten.linalg_vector_norm.default and args[1:] == (torch.inf,) and isinstance(x, cls):
            return (x.extra[0] * x.scale).to(x.dtype)
        if func is aten.add_.Tensor and isinstance(x, cls):
            other = args[1].dense() if isinstance(args[1], cls) else args[1]
            x.data_.copy_(x.dense().add(other, **kwargs) / x.scale)
            cls.wrote(x)
            return return_and_correct_aliasing(func, args, kwargs, x)
        out = super().compute(func, args, kwargs)
        if isinstance(out, cls) and func is not aten.detach.default:
            out.extra = known(out.data_)
        return out

    @classmethod
    def wrote(cls, x):
        x.extra.copy_(known(x.data_))


def known(data):
    """The largest number, twice."""
    return data.abs().amax().expand(2).float() if data.numel() else torch.zeros(2)


def knowing(cls):
    """The subject of a class that knows its largest number."""
    make = f"{cls.__name__}({{0}}, 2.0, {{0}}.abs().amax().expand(2).float())"
    return subject_of(cls, make, to_dense="{0}.dense()", dtypes=[torch.float32], sizes=[(3, 5), (4, 4), (2, 3)])


@breaks("ST310", make=knowing)
class KnowsTheOld(Known):
    """A write does not change the largest number."""

    @classmethod
    def wrote(cls, x):
        pass


@breaks("ST316", make=scaled)
class EqualCodes(Scaled):
    """torch.equal compares what is inside."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.equal.default and all(isinstance(a, cls) for a in args):
            return torch.equal(args[0].data_, args[1].data_)
        return super().compute(func, args, kwargs)


@miscomputes("ST319", aten.log2.default)
def SetsDeterminism(cls, right, func, args, kwargs):
    """log2 leaves deterministic algorithms on."""
    torch.use_deterministic_algorithms(True)
    return right(func, args, kwargs)
