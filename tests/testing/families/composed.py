"""Right wrapper classes of several tensors: pairs, masks, factors, units, parts of complex numbers, corrections."""

from __future__ import annotations

#: a generic pair: every operation on both
BOTH = """\
class Both(torch.Tensor):
    @staticmethod
    def __new__(cls, left, right, outer_size=None, outer_stride=None):
        shape = left.shape if outer_size is None else outer_size
        stride = left.stride() if outer_stride is None else outer_stride
        return torch.Tensor._make_wrapper_subclass(cls, shape, strides=stride, dtype=left.dtype, device=left.device)

    def __init__(self, left, right, outer_size=None, outer_stride=None):
        plain(left, right)
        self.left, self.right = left, right

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"Both(left={self.left}, right={self.right})"

    def __tensor_flatten__(self):
        return ["left", "right"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Both(inner["left"], inner["right"], outer_size, outer_stride)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, Both) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        plain = lambda v: [t for t in tree_leaves(v) if isinstance(t, torch.Tensor) and not isinstance(t, Both)]
        if func._schema.is_mutable and (plain(args[:1]) or plain(kwargs.get("out"))):
            raise NotImplementedError("two values do not fit into one tensor")
        if func is aten._local_scalar_dense.default or func is aten.equal.default:
            outs = [func(*tree_map_only(Both, lambda t: getattr(t, n), args)) for n in ("left", "right")]
            if outs[0] != outs[1]:
                raise NotImplementedError("two numbers")
            return outs[0]
        left = func(*tree_map_only(Both, lambda t: t.left, args), **tree_map_only(Both, lambda t: t.left, kwargs))
        right = func(*tree_map_only(Both, lambda t: t.right, args), **tree_map_only(Both, lambda t: t.right, kwargs))
        out = tree_map(lambda a, b: Both(a, b) if isinstance(a, torch.Tensor) else a, left, right)
        return return_and_correct_aliasing(func, args, kwargs, out)
"""

#: data and a mask, pointwise operations only
MASKED = '''\
class Holes(torch.Tensor):
    """Data of which some elements are missing."""

    @staticmethod
    def __new__(cls, values_, present):
        return torch.Tensor._make_wrapper_subclass(
            cls, values_.shape, strides=values_.stride(), dtype=values_.dtype, device=values_.device)

    def __init__(self, values_, present):
        plain(values_)
        self.values_, self.present = values_, present

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"Holes({self.values_}, {self.present})"

    def to_dense(self):
        return self.values_.clone()

    def __tensor_flatten__(self):
        return ["values_", "present"], ()

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Holes(inner["values_"], inner["present"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, Holes) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        first = next(t for t in tree_leaves((args, kwargs)) if isinstance(t, Holes))
        if func in VIEWS:
            data, mask = func(first.values_, *args[1:], **kwargs), func(first.present, *args[1:], **kwargs)
            out = tree_map(lambda d, m: Holes(d, m), data, mask)
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.clone.default:
            return Holes(func(first.values_, **kwargs), func(first.present, **kwargs))
        if func is aten._to_copy.default:
            moved = {k: v for k, v in kwargs.items() if k in ("device",)}
            return Holes(func(first.values_, **kwargs), func(first.present, **moved))
        if torch.Tag.pointwise in func.tags and not func._schema.is_mutable and func is not aten.equal.default:
            unwrap = lambda t: t.values_
            data = func(*tree_map_only(Holes, unwrap, args), **tree_map_only(Holes, unwrap, kwargs))
            mask = torch.ones_like(data, dtype=torch.bool)
            for t in tree_leaves((args, kwargs)):
                if isinstance(t, Holes):
                    mask &= t.present
            return Holes(data, mask)
        if func is aten._softmax.default and first.is_floating_point():
            low = torch.where(first.present, first.values_, -float("inf"))
            return Holes(func(low, *args[1:]).nan_to_num(0.0), first.present.clone())
        if func is aten.sum.default:
            return torch.where(first.present, first.values_, 0).sum(**kwargs)
        raise NotImplementedError(f"{func} has no meaning with missing elements")


VIEWS = {aten.detach.default, aten.t.default, aten.transpose.int, aten.slice.Tensor, aten.select.int, aten.view.default,
         aten.unsqueeze.default, aten.expand.default, aten.permute.default, aten.alias.default, aten.split.Tensor,
         aten.unbind.int}
'''

#: a matrix as a product of two thin ones
LOWRANK = '''\
class LowRank(torch.Tensor):
    """u @ v, never multiplied out where that can be avoided."""

    @staticmethod
    def __new__(cls, u, v):
        return torch.Tensor._make_wrapper_subclass(cls, (u.shape[0], v.shape[1]), dtype=u.dtype, device=u.device)

    def __init__(self, u, v):
        plain(u, v)
        self.u, self.v = u, v

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def of(cls, x):
        assert x.dim() == 2
        return cls(x.detach().clone(), torch.eye(x.shape[1], dtype=x.dtype) * 2)

    def __repr__(self):
        return f"LowRank({tuple(self.u.shape)} @ {tuple(self.v.shape)})"

    def to_dense(self):
        return self.u @ self.v

    def __tensor_flatten__(self):
        return ["u", "v"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["u"], inner["v"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, LowRank) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        a = args[0] if args else None
        if func in (aten.detach.default, aten.alias.default):
            return return_and_correct_aliasing(func, args, kwargs, cls(func(a.u), func(a.v)))
        if func is aten.clone.default:
            return cls(a.u.clone(), a.v.clone())
        if func is aten._to_copy.default and kwargs.get("dtype", a.dtype).is_floating_point:
            kwargs.pop("memory_format", None)
            return cls(func(a.u, **kwargs), func(a.v, **kwargs))
        if func is aten.copy_.default and isinstance(a, cls) and isinstance(args[1], cls):
            if a.u.shape == args[1].u.shape and a.v.shape == args[1].v.shape:
                a.u.copy_(args[1].u)
                a.v.copy_(args[1].v)
                return a
        if func is aten.mm.default:
            b = args[1]
            if isinstance(a, cls) and not isinstance(b, cls):
                return a.u @ (a.v @ b)
            if isinstance(b, cls) and not isinstance(a, cls):
                return (a @ b.u) @ b.v
        if func is aten.mul.Tensor and isinstance(a, cls) and isinstance(args[1], (int, float)):
            return cls(a.u * args[1], a.v.clone())
        if func is aten.neg.default:
            return cls(-a.u, a.v.clone())
        if func._schema.is_mutable or func.is_view:
            raise NotImplementedError(f"{func}: use the dense matrix")
        dense = lambda t: t.to_dense()
        return func(*tree_map_only(cls, dense, args), **tree_map_only(cls, dense, kwargs))
'''

#: numbers with a unit in the context
UNITS = '''\
class Quantity(torch.Tensor):
    """A number of metres, grams, ... The power of the unit is context."""

    @staticmethod
    def __new__(cls, number, power=1):
        kw = dict(strides=number.stride(), dtype=number.dtype, device=number.device, storage_offset=number.storage_offset())
        return torch.Tensor._make_wrapper_subclass(cls, number.shape, **kw)

    def __init__(self, number, power=1):
        plain(number)
        self.number = number
        self.power = power

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"{self.number} m^{self.power}"

    def __tensor_flatten__(self):
        return ["number"], {"power": self.power}

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["number"], context["power"])

    def __deepcopy__(self, memo):
        out = type(self)(self.number.clone(), self.power).requires_grad_(self.requires_grad)
        return memo.setdefault(id(self), torch.nn.Parameter(out, self.requires_grad) if isinstance(self, torch.nn.Parameter) else out)

    def __reduce_ex__(self, protocol):
        return make, (type(self), self.number, self.power, self.requires_grad, isinstance(self, torch.nn.Parameter))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for t in types:
            if hasattr(t, "__tensor_flatten__") and not issubclass(t, Quantity):
                return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        name = func.__name__.split(".")[0]
        powers = [t.power for t in tree_leaves((args, kwargs)) if isinstance(t, Quantity)]
        first = powers[0]
        if name in ("mul", "div", "mm", "bmm", "mul_", "div_"):
            other = args[1].power if isinstance(args[1], Quantity) else 0
            mine = args[0].power if isinstance(args[0], Quantity) else 0
            power = mine + other if name[:3] != "div" else mine - other
        elif name in KEEP or func.is_view:
            if any(p != first for p in powers):
                raise ValueError("cannot mix units")
            power = first
        elif name in PLAIN:
            power = 0
        else:
            raise NotImplementedError(f"what is the unit of {func}?")
        if name.endswith("_") and power != first:
            raise ValueError("the unit of a tensor cannot change in place")
        number = lambda t: t.number
        out = func(*tree_map_only(Quantity, number, args), **tree_map_only(Quantity, number, kwargs))
        out = tree_map_only(torch.Tensor, lambda t: Quantity(t, power), out)
        return return_and_correct_aliasing(func, args, kwargs, out)


def make(cls, number, power, requires_grad, parameter):
    out = cls(number, power).requires_grad_(requires_grad)
    return torch.nn.Parameter(out, requires_grad) if parameter else out


KEEP = {"add", "sub", "neg", "abs", "clone", "_to_copy", "detach", "sum", "mean", "amax", "amin", "cat", "stack", "where", "relu",
        "maximum", "minimum", "add_", "sub_", "neg_", "copy_", "index_select", "flip", "roll", "index", "empty_like",
        "new_empty_strided", "_unsafe_view", "ones_like", "zeros_like", "clamp_min", "threshold_backward", "new_zeros",
        "select_backward", "slice_backward", "zero_", "gather", "repeat", "constant_pad_nd", "tril", "triu"}
PLAIN = {"gt", "lt", "eq", "ne", "ge", "le", "sign", "isnan", "isfinite", "argmax", "argmin", "sgn"}
'''

#: the real and the imaginary part of complex numbers
CARTESIAN = """\
class Cartesian(torch.Tensor):
    @staticmethod
    def __new__(cls, re, im):
        dtype = {torch.float32: torch.complex64, torch.float64: torch.complex128}[re.dtype]
        return torch.Tensor._make_wrapper_subclass(cls, re.shape, strides=re.stride(), dtype=dtype, device=re.device)

    def __init__(self, re, im):
        plain(re, im)
        self.re, self.im = re, im

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"Cartesian({self.re}, {self.im})"

    def to_dense(self):
        return torch.complex(self.re, self.im)

    def __tensor_flatten__(self):
        return ["re", "im"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Cartesian(inner["re"], inner["im"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        a = args[0] if args else None
        b = args[1] if len(args) > 1 else None
        mine = isinstance(a, cls)
        if func in LINEAR and mine:
            out = tree_map(lambda r, i: cls(r, i), func(a.re, *args[1:], **kwargs), func(a.im, *args[1:], **kwargs))
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func in (aten.add.Tensor, aten.sub.Tensor) and mine and isinstance(b, cls):
            return cls(func(a.re, b.re, **kwargs), func(a.im, b.im, **kwargs))
        if func is aten.mul.Tensor and mine and isinstance(b, cls):
            return cls(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)
        if func in (aten.add.Tensor, aten.sub.Tensor) and mine and isinstance(b, complex) and not kwargs:
            return cls(func(a.re, b.real), func(a.im, b.imag))
        if func is aten.mul.Tensor and mine and isinstance(b, (int, float)):
            return cls(a.re * b, a.im * b)
        if func is aten._conj.default and mine:
            raise NotImplementedError("conj is lazy: use conj_physical")
        if func is aten.conj_physical.default:
            return cls(a.re.clone(), -a.im)
        if func is aten.copy_.default and mine and isinstance(b, cls):
            a.re.copy_(b.re)
            a.im.copy_(b.im)
            return a
        if func is aten.abs.default:
            return torch.hypot(a.re, a.im)
        raise NotImplementedError(f"Cartesian: {func}")


LINEAR = {aten.detach.default, aten.alias.default, aten.t.default, aten.transpose.int, aten.slice.Tensor, aten.select.int,
          aten.view.default, aten.unsqueeze.default, aten.expand.default, aten.permute.default, aten.neg.default,
          aten.clone.default, aten.sum.default, aten.sum.dim_IntList, aten.split.Tensor, aten.unbind.int, aten.flip.default,
          aten.index_select.default}
"""

#: a tensor, and perhaps a correction of it
CORRECTED = '''\
class Corrected(torch.Tensor):
    """base + delta, of which delta may be missing."""

    @staticmethod
    def __new__(cls, base_, delta=None):
        return torch.Tensor._make_wrapper_subclass(cls, base_.shape, strides=base_.stride(), dtype=base_.dtype, device=base_.device)

    def __init__(self, base_, delta=None):
        plain(base_, delta)
        self.base_, self.delta = base_, delta

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"Corrected({self.base_}, {self.delta})"

    def to_dense(self):
        return self.base_.clone() if self.delta is None else self.base_ + self.delta

    def __tensor_flatten__(self):
        return ["base_"] + (["delta"] if self.delta is not None else []), None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["base_"], inner.get("delta"))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        x = args[0] if args else None
        each = lambda t, g: None if t is None else g(t)
        exact = kwargs.get("dtype", torch.float32).is_floating_point
        if isinstance(x, cls) and exact and (func.is_view or func in (aten.clone.default, aten.neg.default, aten._to_copy.default)):
            parts = [each(t, lambda t: func(t, *args[1:], **kwargs)) for t in (x.base_, x.delta)]
            if isinstance(parts[0], (list, tuple)):
                deltas = parts[1] or [None] * len(parts[0])
                out = [cls(b, d) for b, d in zip(parts[0], deltas)]
            else:
                out = cls(*parts)
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.copy_.default and isinstance(x, cls):
            value = args[1].to_dense() if isinstance(args[1], cls) else args[1]
            x.base_.copy_(value)
            each(x.delta, lambda d: d.zero_())
            return x
        if func is aten.add_.Tensor and isinstance(x, cls):
            other = args[1].to_dense() if isinstance(args[1], cls) else args[1]
            x.base_.add_(other, **kwargs)
            return x
        if func._schema.is_mutable:
            raise NotImplementedError(f"{func} is not done in place")
        dense = lambda t: t.to_dense()
        return func(*tree_map_only(cls, dense, args), **tree_map_only(cls, dense, kwargs))
'''
