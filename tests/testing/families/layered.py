"""Right wrapper classes of a fourth round of strangers: LoRA and FP8 weights, and a matrix that is transposed by a flag."""

from __future__ import annotations

#: a weight and two thin factors that are added to it
LORA = '''\
class Lora(torch.Tensor):
    """base + up @ down * strength."""

    @staticmethod
    def __new__(cls, base, up, down, strength=2.0):
        return torch.Tensor._make_wrapper_subclass(
            cls, base.shape, strides=base.stride(), dtype=base.dtype, device=base.device)

    def __init__(self, base, up, down, strength=2.0):
        plain(base, up, down)
        self.base, self.up, self.down, self.strength = base, up, down, strength

    @classmethod
    def of(cls, w, strength=2.0):
        if w.dim() != 2 or not w.numel() or not w.is_floating_point():
            raise ValueError("matrices, please")
        w = w.detach()
        up, down = w[:, :1] * 0.25, w[:1] * 0.5
        return cls(w - up @ down * strength, up, down, strength)

    def extra(self):
        return self.up @ self.down * self.strength

    def to_dense(self):
        return self.base + self.extra()

    def __repr__(self):
        return f"Lora({self.to_dense()})"

    def __tensor_flatten__(self):
        return ["base", "up", "down"], (self.strength,)

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Lora(inner["base"], inner["up"], inner["down"], context[0])

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.linear and isinstance(args[1], cls) and not isinstance(args[0], cls):
            out = Product.apply(args[0], args[1])
            bias = args[2] if len(args) > 2 else kwargs.get("bias")
            return out if bias is None else out + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        x, rest = args[0], args[1:]
        if func in (aten.detach.default, aten.alias.default):
            out = cls(func(x.base), func(x.up), func(x.down), x.strength)
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.clone.default:
            return cls(func(x.base, **kwargs), func(x.up), func(x.down), x.strength)
        if func is aten._to_copy.default and kwargs.get("dtype", x.dtype).is_floating_point:
            thin = {k: v for k, v in kwargs.items() if k != "memory_format"}
            return cls(func(x.base, **kwargs), func(x.up, **thin), func(x.down, **thin), x.strength)
        if func is aten.t.default:
            out = cls(func(x.base), func(x.down), func(x.up), x.strength)
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.slice.Tensor and rest[:1] in ((), (0,), (-2,)):
            out = cls(func(x.base, *rest), func(x.up, *rest), x.down.view_as(x.down), x.strength)
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.slice.Tensor and rest[0] in (1, -1):
            out = cls(func(x.base, *rest), x.up.view_as(x.up), func(x.down, *rest), x.strength)
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func in (aten.mul.Tensor, aten.div.Tensor) and isinstance(x, cls) and isinstance(rest[0], (int, float)):
            return cls(func(x.base, rest[0]), func(x.up, rest[0]), x.down.clone(), x.strength)
        if func is aten.neg.default:
            return cls(-x.base, -x.up, x.down.clone(), x.strength)
        if func in (aten.add_.Tensor, aten.sub_.Tensor) and isinstance(x, cls):
            y = rest[0].to_dense() if isinstance(rest[0], cls) else rest[0]
            func(x.base, y, **kwargs)
            return x
        if func is aten.copy_.default and isinstance(x, cls):
            y = rest[0].to_dense() if isinstance(rest[0], cls) else rest[0]
            x.base.copy_(y - x.extra())
            return x
        if func.is_view or func._schema.is_mutable:
            raise NotImplementedError(f"{func} of LoRA weights")
        dense = lambda t: t.to_dense()
        return func(*tree_map_only(cls, dense, args), **tree_map_only(cls, dense, kwargs))


class Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.base.t() + (x @ w.down.t()) @ w.up.t() * w.strength

    @staticmethod
    @torch.autograd.function.once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        return grad @ w.to_dense(), flat.t() @ x.reshape(-1, x.shape[-1])
'''

#: declared with this package: float8 with a scale for each row (or, transposed, for each column)
FLOAT8 = """\
import subclass_trace as st


class Float8(st.WrapperTensor, default="dequantize"):
    qdata: torch.Tensor
    scale: torch.Tensor
    shown: torch.dtype = torch.float32

    @classmethod
    def outer_metadata(cls, fields):
        return st.authoring.Outer(dtype=fields.shown)

    @classmethod
    def quantize(cls, x):
        if x.dim() != 2 or not x.is_floating_point() or not x.numel():
            raise ValueError("matrices, please")
        scale = x.detach().abs().amax(1, keepdim=True).float().clamp(min=1e-9) / 448
        return cls((x.detach() / scale).to(torch.float8_e4m3fn), scale, x.dtype)

    def dequantize(self):
        return (self.qdata.float() * self.scale).to(self.shown)

    def requantize_(self, value):
        if self.scale.shape[0] == 1:
            raise NotImplementedError("write to the matrix, not to its transpose")
        new = Float8.quantize(value)
        self.scale.copy_(new.scale)
        self.qdata.copy_(new.qdata)


@Float8.implements(aten.t.default)
def _transposed(func, x):
    return x.replace(qdata=func(x.qdata), scale=func(x.scale))


Float8.implements_per_inner(aten.copy_.default)


@Float8.implements(aten._to_copy.default)
def _convert(func, x, dtype=None, device=None, **kwargs):
    if dtype is not None and not dtype.is_floating_point:
        return NotImplemented
    return x.replace(qdata=x.qdata.to(device, copy=True), scale=x.scale.to(device, copy=True), shown=dtype or x.shown)


@Float8.implements(aten.mul.Tensor)
def _mul(func, x, y):
    if not isinstance(y, (int, float)) or not isinstance(x, Float8):
        return NotImplemented
    return x.replace(qdata=x.qdata.clone(), scale=x.scale * y)


@Float8.implements(aten.slice.Tensor)
def _slice(func, x, dim=0, *bounds):
    if x.scale.shape[dim] != x.shape[dim]:
        return NotImplemented  # a write to a part would scale the rest anew
    return x.replace(qdata=func(x.qdata, dim, *bounds), scale=func(x.scale, dim, *bounds))


@Float8.implements(aten.mm.default)
def _mm(func, a, b):
    if not (isinstance(a, Float8) and isinstance(b, Float8)) or a.scale.shape[1] != 1 or b.scale.shape[0] != 1:
        return NotImplemented
    return ((a.qdata.float() @ b.qdata.float()) * (a.scale * b.scale)).to(a.shown)


class Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return Float8.quantize(x).mm(weight.t())

    @staticmethod
    @torch.autograd.function.once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        to_x = grad @ weight.dequantize() if ctx.needs_input_grad[0] else None
        return to_x, grad.t() @ x if ctx.needs_input_grad[1] else None


@Float8.implements_torch_function(F.linear)
def _linear(func, x, weight, bias=None):
    if isinstance(x, Float8) or weight.scale.shape[1] != 1 or weight.dim() != 2 or x.dtype != weight.dtype or not x.numel():
        return NotImplemented
    out = Product.apply(x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], -1)
    return out if bias is None else out + bias
"""

#: t() turns a flag, and nothing else
FLIPPED = '''\
class Flipped(torch.Tensor):
    """A tensor, or the transpose of a matrix."""

    @staticmethod
    def __new__(cls, data_, flipped=False):
        seen = data_.t() if flipped else data_
        return torch.Tensor._make_wrapper_subclass(
            cls, seen.shape, strides=seen.stride(), dtype=seen.dtype, device=seen.device)

    def __init__(self, data_, flipped=False):
        plain(data_)
        self.data_, self.flipped = data_, flipped

    @classmethod
    def from_dense(cls, x):
        x = x.detach()
        return cls(x.t(), True) if x.dim() == 2 else cls(x)

    def to_dense(self):
        return self.data_.t() if self.flipped else self.data_

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"Flipped({self.to_dense()})"

    def __tensor_flatten__(self):
        return ["data_"], bool(self.flipped)

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Flipped(inner["data_"], context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        x, y = (*args, None, None)[:2]
        both = isinstance(x, cls) and isinstance(y, cls)
        if func is aten.t.default and x.dim() == 2:
            out = cls(x.data_.view_as(x.data_), not x.flipped)
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func in UNARY and not kwargs:
            return cls(func(x.data_), x.flipped)
        if func in BINARY and both and x.flipped == y.flipped and x.data_.shape == y.data_.shape:
            return cls(func(x.data_, y.data_, **kwargs), x.flipped)
        if func is aten.mm.default and both and x.flipped and y.flipped:
            return cls((y.data_ @ x.data_).t().contiguous())
        seen = tree_map_only(cls, lambda t: t.to_dense(), (args, kwargs))
        out = tree_map_only(torch.Tensor, cls, func(*seen[0], **seen[1]))
        return return_and_correct_aliasing(func, args, kwargs, out)


UNARY = {aten.neg.default, aten.exp.default, aten.sin.default, aten.cos.default, aten.relu.default, aten.abs.default,
         aten.tanh.default, aten.sigmoid.default, aten.silu.default}
BINARY = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor}
'''
