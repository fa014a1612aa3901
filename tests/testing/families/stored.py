"""Right wrapper classes of a third round of strangers: four bits in groups, the state of an optimizer, rows of a sparse matrix."""

from __future__ import annotations

#: an int4 weight: two codes in a byte; groups of columns have a scale and a smallest number
GROUPS = '''\
class Groups(torch.Tensor):
    """A matrix in four bits; each group of columns has a scale and a smallest number."""

    @staticmethod
    def __new__(cls, packed, scale, zero, group=4):
        shape = (packed.shape[0], packed.shape[1] * 2)
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=scale.dtype, device=packed.device)

    def __init__(self, packed, scale, zero, group=4):
        plain(packed, scale, zero)
        self.packed, self.scale, self.zero, self.group = packed, scale, zero, group

    @classmethod
    def from_dense(cls, x, group=4):
        if x.dim() != 2 or not x.numel() or x.shape[1] % group or not x.is_floating_point():
            raise ValueError("rows of whole groups, please")
        parts = x.detach().unflatten(1, (-1, group))
        zero = parts.amin(2)
        scale = ((parts.amax(2) - zero) / 15).clamp(min=1e-6)
        codes = ((parts - zero[..., None]) / scale[..., None]).round().clamp(0, 15).to(torch.uint8).flatten(1)
        return cls(codes[:, ::2] | (codes[:, 1::2] << 4), scale, zero, group)

    def dequantize(self):
        codes = torch.stack([self.packed & 15, self.packed >> 4], 2).flatten(1)
        parts = codes.unflatten(1, (-1, self.group)).to(self.scale.dtype)
        return (parts * self.scale[..., None] + self.zero[..., None]).flatten(1)

    def __repr__(self):
        return f"Groups(shape={tuple(self.shape)}, group={self.group})"

    def __tensor_flatten__(self):
        return ["packed", "scale", "zero"], (self.group,)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["packed"], inner["scale"], inner["zero"], context[0])

    def each(self, call, **kwargs):
        return Groups(call(self.packed), call(self.scale, **kwargs), call(self.zero, **kwargs), self.group)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.linear and isinstance(args[1], Groups) and not isinstance(args[0], Groups):
            return Product.apply(args[0], args[1], args[2] if len(args) > 2 else kwargs.get("bias"))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, Groups) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        if func in OPS and isinstance(args[0], Groups):
            out = OPS[func](func, *args, **kwargs)
            if out is not NotImplemented:
                return return_and_correct_aliasing(func, args, kwargs, out)
        if func.is_view or func._schema.is_mutable:
            raise NotImplementedError(f"{func} of four bits")
        dense = lambda t: t.dequantize()
        return func(*tree_map_only(Groups, dense, args), **tree_map_only(Groups, dense, kwargs))


OPS = {}


def implements(*ops):
    def register(rule):
        OPS.update(dict.fromkeys(ops, rule))
        return rule
    return register


@implements(aten.detach.default, aten.alias.default)
def _same(func, x):
    return x.each(func)


@implements(aten.clone.default)
def _clone(func, x, memory_format=None):
    return x.each(func)


@implements(aten._to_copy.default)
def _convert(func, x, dtype=None, device=None, **kwargs):
    if dtype is not None and not dtype.is_floating_point:
        return NotImplemented
    moved = Groups(*(func(t, device=device) for t in (x.packed, x.scale, x.zero)), x.group)
    return moved if dtype is None else Groups(moved.packed, moved.scale.to(dtype), moved.zero.to(dtype), x.group)


@implements(aten.slice.Tensor)
def _rows(func, x, dim=0, *bounds):
    if dim not in (0, -2):
        return NotImplemented
    return Groups(func(x.packed, 0, *bounds), func(x.scale, 0, *bounds), func(x.zero, 0, *bounds), x.group)


@implements(aten.mul.Tensor)
def _mul(func, x, y):
    if not isinstance(y, (int, float)):
        return NotImplemented
    return Groups(x.packed.clone(), x.scale * y, x.zero * y, x.group)


@implements(aten.embedding.default)
def _embedding(func, x, index, *args, **kwargs):
    flat = index.reshape(-1)
    return Groups(x.packed[flat], x.scale[flat], x.zero[flat], x.group).dequantize().view(*index.shape, x.shape[1])


@implements(aten.copy_.default)
def _copy(func, x, y, non_blocking=False):
    y = y if isinstance(y, Groups) and y.group == x.group else Groups.from_dense(
        (y.dequantize() if isinstance(y, Groups) else y).to(x.dtype).expand(x.shape), x.group)
    x.packed.copy_(y.packed)
    x.scale.copy_(y.scale)
    x.zero.copy_(y.zero)
    return x


class Product(torch.autograd.Function):
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
        flat = grad.reshape(-1, grad.shape[-1])
        to_x = grad @ w.dequantize() if ctx.needs_input_grad[0] else None
        to_w = flat.t() @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[1] else None
        to_bias = flat.sum(0) if ctx.needs_input_grad[2] else None
        return to_x, to_w, to_bias
'''

#: the state of an optimizer in eight bits; each write rounds anew
STATE = '''\
class State8(torch.Tensor):
    """int8 codes in blocks of numbers that have a scale each."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype, device=codes.device)

    def __init__(self, codes, scale):
        plain(codes, scale)
        self.codes, self.scale = codes, scale

    @classmethod
    def from_dense(cls, x, block=2):
        if not x.numel() or x.numel() % block or not x.is_floating_point():
            raise ValueError("whole blocks, please")
        parts = x.detach().reshape(-1, block)
        scale = parts.abs().amax(1).clamp(min=1e-8) / 127
        return cls((parts / scale[:, None]).round().clamp(-127, 127).to(torch.int8).view(x.shape), scale)

    def dequantize(self):
        parts = self.codes.reshape(self.scale.shape[0], -1).to(self.scale.dtype)
        return (parts * self.scale[:, None]).view(self.codes.shape)

    def store(self, value):
        new = State8.from_dense(value.to(self.dtype), self.codes.numel() // self.scale.numel())
        self.codes.copy_(new.codes)
        self.scale.copy_(new.scale)
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"State8({self.dequantize()})"

    def __deepcopy__(self, memo):
        out = State8(self.codes.clone(), self.scale.clone())
        if isinstance(self, torch.nn.Parameter):
            out = torch.nn.Parameter(out, self.requires_grad)
        out.requires_grad_(self.requires_grad)
        memo[id(self)] = out
        return out

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, State8) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        x, rest = args[0], args[1:]
        if func in (aten.detach.default, aten.alias.default):
            out = State8(func(x.codes), func(x.scale))
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.view.default:
            out = State8(x.codes.view(rest[0]), x.scale.view(-1))
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.clone.default:
            return State8(x.codes.clone(), x.scale.clone())
        if func is aten._to_copy.default and (kwargs.get("dtype") or x.dtype).is_floating_point:
            device = kwargs.get("device")
            scale = x.scale.to(device=device, dtype=kwargs.get("dtype"), copy=True)
            return State8(x.codes.to(device=device, copy=True), scale)
        if func is aten.zeros_like.default and not kwargs:
            return State8(torch.zeros_like(x.codes), torch.ones_like(x.scale))
        if func is aten.copy_.default and isinstance(x, State8):
            y = rest[0]
            if isinstance(y, State8) and y.scale.shape == x.scale.shape and y.shape == x.shape:
                x.codes.copy_(y.codes)
                x.scale.copy_(y.scale)
                return x
            return x.store((y.dequantize() if isinstance(y, State8) else y).expand(x.shape))
        if func is aten.mul_.Tensor and isinstance(x, State8) and isinstance(rest[0], (int, float)):
            x.scale.mul_(rest[0])
            return x
        if func is aten.div_.Tensor and isinstance(x, State8) and isinstance(rest[0], (int, float)):
            x.scale.div_(rest[0])
            return x
        if func.is_view:
            raise NotImplementedError(f"{func}: views of blocks")
        values = tree_map_only(State8, lambda t: t.dequantize(), (args, kwargs))
        if not func._schema.is_mutable:
            return func(*values[0], **values[1])
        if func not in WRITES or not isinstance(x, State8):
            raise NotImplementedError(f"{func}: such a write")
        return x.store(WRITES[func](*values[0], **values[1]))


WRITES = {
    aten.add_.Tensor: lambda x, y, alpha=1: torch.add(x, y, alpha=alpha),
    aten.sub_.Tensor: lambda x, y, alpha=1: torch.sub(x, y, alpha=alpha),
    aten.mul_.Tensor: torch.mul,
    aten.lerp_.Scalar: lambda x, y, weight: x + (y - x) * weight,
    aten.addcmul_.default: lambda x, y, z, value=1: x + y * z * value,
    aten.addcdiv_.default: lambda x, y, z, value=1: x + y / z * value,
    aten.zero_.default: torch.zeros_like,
    aten.fill_.Scalar: torch.full_like,
}
'''

#: some rows of a matrix, as the gradient of an embedding has them; an index may be there twice
ROWS = '''\
class RowSparse(torch.Tensor):
    """rows[i] is added to row index[i]; all else is zero."""

    @staticmethod
    def __new__(cls, index, rows, shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=rows.dtype, device=rows.device)

    def __init__(self, index, rows, shape):
        plain(rows)
        self.index, self.rows = index, rows

    @classmethod
    def from_dense(cls, x):
        if x.dim() != 2 or x.shape[0] < 2 or not x.is_floating_point():
            raise ValueError("matrices of two rows and more, please")
        x = x.detach()
        index = torch.cat([torch.arange(x.shape[0] - 1, -1, -1), torch.zeros(1, dtype=torch.int64)]).to(x.device)
        return cls(index, torch.cat([x[1:].flip(0), x[:1] * 3, x[:1] * -2]), x.shape)

    def to_dense(self):
        return self.rows.new_zeros(self.shape).index_add(0, self.index, self.rows)

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"RowSparse({self.to_dense()})"

    def __tensor_flatten__(self):
        return ["index", "rows"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return RowSparse(inner["index"], inner["rows"], outer_size)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        x, y = (*args, None, None)[:2]
        both = isinstance(x, cls) and isinstance(y, cls)
        if func in (aten.detach.default, aten.alias.default):
            out = cls(func(x.index), func(x.rows), x.shape)
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.clone.default:
            return cls(x.index.clone(), x.rows.clone(), x.shape)
        if func is aten._to_copy.default and kwargs.get("dtype", x.dtype).is_floating_point:
            device = {k: v for k, v in kwargs.items() if k == "device"}
            return cls(func(x.index, **device), func(x.rows, **kwargs), x.shape)
        if func is aten.neg.default:
            return cls(x.index.clone(), x.rows.neg(), x.shape)
        if func in (aten.mul.Tensor, aten.div.Tensor) and isinstance(x, cls) and isinstance(y, (int, float)):
            return cls(x.index.clone(), func(x.rows, y), x.shape)
        if func is aten.mul.Tensor and isinstance(x, cls) and not both and same(x, y):
            return cls(x.index.clone(), x.rows * y[x.index], x.shape)
        if func is aten.add.Tensor and both and x.shape == y.shape and x.dtype == y.dtype:
            rows = torch.cat([x.rows, y.rows * kwargs.get("alpha", 1)])
            return cls(torch.cat([x.index, y.index]), rows, x.shape)
        if func is aten.mm.default and isinstance(x, cls) and not both:
            return cls(x.index.clone(), x.rows @ y, (x.shape[0], y.shape[1]))
        if func is aten.sum.default and not kwargs:
            return x.rows.sum()
        if func is aten.add_.Tensor and isinstance(y, cls) and not isinstance(x, cls) and x.shape == y.shape:
            return x.index_add_(0, y.index, y.rows.to(x.dtype), alpha=kwargs.get("alpha", 1))
        if func is aten.mul_.Tensor and isinstance(x, cls) and isinstance(y, (int, float)):
            x.rows.mul_(y)
            return x
        if func is aten.zero_.default:
            x.rows.zero_()
            return x
        if func is aten.copy_.default and both and x.rows.shape == y.rows.shape and x.shape == y.shape:
            x.index.copy_(y.index)
            x.rows.copy_(y.rows)
            return x
        if func.is_view or func._schema.is_mutable:
            raise NotImplementedError(f"{func} of sparse rows")
        dense = lambda t: t.to_dense()
        return func(*tree_map_only(cls, dense, args), **tree_map_only(cls, dense, kwargs))


def same(x, y):
    return isinstance(y, torch.Tensor) and x.shape == y.shape and x.dtype == y.dtype
'''
