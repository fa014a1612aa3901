"""Right wrapper classes that keep numbers in another form: scales, weights, rounding, declared rows."""

from __future__ import annotations

#: codes and a scale in the context; everything is computed densely, but what is cheap on the codes
SCALED = '''\
class Scaled(torch.Tensor):
    """codes * scale, with the scale as a number of the context."""

    @staticmethod
    def __new__(cls, codes, scale=1.5):
        return torch.Tensor._make_wrapper_subclass(
            cls, codes.shape, strides=codes.stride(), dtype=codes.dtype, device=codes.device)

    def __init__(self, codes, scale=1.5):
        plain(codes)
        assert codes.is_floating_point()
        self.codes = codes
        self.scale = scale

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"Scaled({self.codes}, {self.scale})"

    def dequantize(self):
        return self.codes * self.scale

    def __tensor_flatten__(self):
        return ["codes"], (self.scale,)

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Scaled(inner["codes"], context[0])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not all(issubclass(cls, t) or not hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        if func in TABLE:
            out = TABLE[func](func, *args, **kwargs)
            if out is not NotImplemented:
                return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.copy_.default and isinstance(args[0], Scaled):
            value = args[1].dequantize() if isinstance(args[1], Scaled) else args[1]
            args[0].codes.copy_(value / args[0].scale)
            return args[0]
        if func._schema.is_mutable:
            return mutate(func, args, kwargs)
        if func.is_view:
            raise NotImplementedError(f"{func}: no such view")
        dense = lambda t: t.dequantize()
        return func(*tree_map_only(Scaled, dense, args), **tree_map_only(Scaled, dense, kwargs))


def mutate(func, args, kwargs):
    copies = {}
    def dense(t):
        return copies.setdefault(id(t), t.dequantize())
    out = func(*tree_map_only(Scaled, dense, args), **tree_map_only(Scaled, dense, kwargs))
    written = args[0] if "out" not in kwargs else kwargs["out"]
    for t in tree_leaves(written):
        if isinstance(t, Scaled):
            t.codes.copy_(copies[id(t)] / t.scale)
    return out if out is None else written


def view(func, x, *args, **kwargs):
    return tree_map_only(torch.Tensor, lambda c: Scaled(c, x.scale), func(x.codes, *args, **kwargs))


def convert(func, x, *args, **kwargs):
    if "dtype" in kwargs and not kwargs["dtype"].is_floating_point:
        return NotImplemented
    return Scaled(func(x.codes, *args, **kwargs), x.scale)


def add(func, x, y, *, alpha=1):
    if isinstance(x, Scaled) and isinstance(y, Scaled) and x.scale == y.scale:
        return Scaled(x.codes + y.codes * alpha, x.scale)
    return NotImplemented


def mul(func, x, y):
    if isinstance(y, Scaled):
        x, y = y, x
    if isinstance(y, (int, float)):
        return Scaled(x.codes * y, x.scale)
    return NotImplemented


TABLE = {op: view for op in (
    aten.detach.default, aten.t.default, aten.transpose.int, aten.slice.Tensor, aten.select.int, aten.view.default,
    aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.permute.default, aten.alias.default,
    aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.as_strided.default)}
TABLE.update({aten.clone.default: convert, aten._to_copy.default: convert, aten.neg.default: convert,
              aten.add.Tensor: add, aten.mul.Tensor: mul})
'''

#: an int8 weight with a scale for each row, for inference
WEIGHT = '''\
class Weight(torch.Tensor):
    """int8 weight of a linear layer: rows of codes with a scale each."""

    @staticmethod
    def __new__(cls, codes, scale, shape=None):
        shape = codes.shape if shape is None else shape
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=scale.dtype, device=codes.device)

    def __init__(self, codes, scale, shape=None):
        plain(codes, scale)
        self.codes, self.scale = codes, scale

    @classmethod
    def from_float(cls, w):
        assert w.dim() == 2, "matrices only"
        scale = w.detach().abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
        return cls((w.detach() / scale).round().to(torch.int8), scale)

    def dequantize(self):
        return self.codes.to(self.scale.dtype) * self.scale

    def __repr__(self):
        return f"Weight(shape={tuple(self.shape)})"

    def __tensor_flatten__(self):
        return ["codes", "scale"], {}

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["codes"], inner["scale"], outer_size)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.linear:
            x, w, bias = args[0], args[1], args[2] if len(args) > 2 else kwargs.get("bias")
            if isinstance(w, Weight) and not isinstance(x, Weight):
                return Linear.apply(x, w, bias)
        if func is F.embedding and isinstance(args[1], Weight) and kwargs.get("padding_idx") is None:
            return Embedding.apply(args[0], args[1])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, Weight) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        if func is aten.detach.default:
            out = Weight(args[0].codes, args[0].scale)
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.clone.default:
            return Weight(args[0].codes.clone(), args[0].scale.clone())
        if func is aten._to_copy.default:
            dtype = kwargs.get("dtype") or args[0].dtype
            device = kwargs.get("device")
            if not dtype.is_floating_point:
                return args[0].dequantize().to(dtype)
            return Weight(args[0].codes.to(device=device, copy=True), args[0].scale.to(device=device, dtype=dtype, copy=True))
        if func is aten.copy_.default and isinstance(args[0], Weight) and isinstance(args[1], Weight):
            args[0].codes.copy_(args[1].codes)
            args[0].scale.copy_(args[1].scale)
            return args[0]
        if func is aten.slice.Tensor and (len(args) < 2 or args[1] == 0):
            bounds = args[2:]
            out = Weight(args[0].codes[slice(*bounds)], args[0].scale[slice(*bounds)])
            return return_and_correct_aliasing(func, args, kwargs, out)
        raise NotImplementedError(f"Weight: {func}")


class Linear(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, w, bias):
        ctx.save_for_backward(x, w)
        out = x @ w.dequantize().t()
        return out if bias is None else out + bias

    @staticmethod
    @torch.autograd.function.once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        g, flat = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        bias = g.sum(0) if ctx.needs_input_grad[2] else None
        return grad @ w.dequantize(), g.t() @ flat, bias


class Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, index, w):
        ctx.save_for_backward(index)
        ctx.rows = w.shape[0]
        return w.codes[index].to(w.dtype) * w.scale[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        out = grad.new_zeros(ctx.rows, grad.shape[-1])
        return None, out.index_add(0, index.reshape(-1), grad.reshape(-1, grad.shape[-1]))
'''

#: declared with this package: two bytes of codes, a scale for each row
DECLARED = """\
import subclass_trace as st


class Rows(st.WrapperTensor, default="dequantize"):
    codes: torch.Tensor
    scale: torch.Tensor

    @classmethod
    def outer_metadata(cls, fields):
        return st.authoring.Outer(dtype=fields.scale.dtype)

    @classmethod
    def from_dense(cls, x):
        assert x.dim() == 2
        scale = x.detach().abs().amax(1, keepdim=True).clamp(min=1e-6) / 32000
        return cls((x.detach() / scale).round().to(torch.int16), scale)

    def dequantize(self):
        return self.codes * self.scale

    def requantize_(self, value):
        new = Rows.from_dense(value)
        self.codes.copy_(new.codes)
        self.scale.copy_(new.scale)


@Rows.implements(aten._to_copy.default)
def _convert(func, x, *, dtype=None, **kwargs):
    if dtype is not None and not dtype.is_floating_point:
        return NotImplemented
    to = {k: v for k, v in kwargs.items() if k in ("device", "non_blocking")}
    return x.replace(codes=func(x.codes, **to), scale=func(x.scale, dtype=dtype, **to))


@Rows.implements(aten.slice.Tensor)
def _slice(func, x, dim=0, *bounds):
    if dim != 0:
        return NotImplemented
    return x.replace(codes=func(x.codes, 0, *bounds), scale=func(x.scale, 0, *bounds))


@Rows.implements(aten.neg.default)
def _neg(func, x):
    return x.replace(codes=-x.codes, scale=x.scale.clone())


@Rows.implements(aten.mul.Tensor)
def _mul(func, x, y):
    if isinstance(x, Rows) and isinstance(y, (int, float)) and y > 0:
        return x.replace(codes=x.codes.clone(), scale=x.scale * y)
    return NotImplemented


Rows.implements_per_inner(aten.copy_.default)
"""

#: stochastic rounding to multiples of 1/64
DITHERED = '''\
class Dithered(torch.Tensor):
    """Numbers that are rounded by chance to multiples of 1/64 by every operation."""

    @staticmethod
    def __new__(cls, steps, shown):
        return torch.Tensor._make_wrapper_subclass(cls, steps.shape, strides=steps.stride(), dtype=shown, device=steps.device)

    def __init__(self, steps, shown):
        plain(steps)
        self.steps, self.shown = steps, shown

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def from_dense(cls, x):
        return cls((x.detach() * 64 + torch.rand_like(x)).floor() / 64, x.dtype)

    def __repr__(self):
        return f"Dithered({self.steps})"

    def to_dense(self):
        return self.steps.to(self.shown)

    def __tensor_flatten__(self):
        return ["steps"], self.shown

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["steps"], context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        x = args[0] if args else None
        if isinstance(x, cls) and (func.is_view or func is aten.clone.default):
            out = tree_map_only(torch.Tensor, lambda s: cls(s, x.shown), func(x.steps, *args[1:], **kwargs))
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func._schema.is_mutable:
            if func is aten.copy_.default and isinstance(x, cls):
                new = args[1] if isinstance(args[1], cls) else cls.from_dense(args[1].to(x.shown))
                x.steps.copy_(new.steps)
                return x
            raise NotImplementedError(f"{func} is not done in place")
        dense = lambda t: t.to_dense()
        out = func(*tree_map_only(cls, dense, args), **tree_map_only(cls, dense, kwargs))
        rounded = isinstance(out, torch.Tensor) and out.is_floating_point() and torch.Tag.pointwise in func.tags
        return cls.from_dense(out) if rounded else out
'''
