"""Right wrapper classes of a third round of strangers: a tensor of two ranks, and one that knows how it was made."""

from __future__ import annotations

#: what DTensor is, with both ranks in one process
SHARDED = '''\
class Placement:
    """Rows shared out (0), the same on both (1), or terms of a sum (2)."""

    def __init__(self, kind):
        if kind not in (0, 1, 2):
            raise ValueError(f"no placement {kind}")
        self.kind = kind

    def __eq__(self, other):
        return isinstance(other, Placement) and self.kind == other.kind

    def __hash__(self):
        return hash(self.kind)

    def __repr__(self):
        return ("Rows", "Copy", "Terms")[self.kind]


ROWS, COPY, TERMS = Placement(0), Placement(1), Placement(2)


class Sharded(torch.Tensor):
    """A tensor of two ranks."""

    @staticmethod
    def __new__(cls, a, b, placement, shape=None):
        if shape is None:
            shape = (a.shape[0] + b.shape[0], *a.shape[1:]) if placement == ROWS else a.shape
        return torch.Tensor._make_wrapper_subclass(cls, shape, strides=a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a, b, placement, shape=None):
        plain(a, b)
        self.a, self.b, self.placement = a, b, placement

    @classmethod
    def distribute(cls, x, kind=0):
        x = x.detach()
        if kind == 1:
            return cls(x.clone(), x.clone(), COPY)
        if kind == 2:
            return cls(x * 3, x * -2, TERMS)
        if not x.dim() or x.shape[0] < 2 or not x.numel():
            raise ValueError("rows for both, please")
        a, b = x.tensor_split(2)
        return cls(a.contiguous(), b.contiguous(), Placement(kind))

    def full_tensor(self):
        if self.placement == ROWS:
            return torch.cat([self.a, self.b])
        return self.a + self.b if self.placement == TERMS else self.a.clone()

    def everywhere(self):
        if self.placement == COPY:
            return self
        return Sharded(self.full_tensor(), self.full_tensor(), COPY)

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"Sharded({self.a}, {self.b}, {self.placement})"

    def __tensor_flatten__(self):
        return ["a", "b"], self.placement

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Sharded(inner["a"], inner["b"], context, outer_size)

    def each(self, func, *args, **kwargs):
        return Sharded(func(self.a, *args, **kwargs), func(self.b, *args, **kwargs), self.placement)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        if any(isinstance(t, torch.Tensor) and not isinstance(t, cls) for t in tree_leaves((args, kwargs))):
            raise NotImplementedError("dense tensors and sharded ones do not mix")
        x, rest = args[0], args[1:]
        if func in (aten.detach.default, aten.alias.default):
            return return_and_correct_aliasing(func, args, kwargs, x.each(func))
        if func in (aten.clone.default, aten._to_copy.default, aten.neg.default):
            if kwargs.get("dtype", x.dtype) != x.dtype:
                x = x.everywhere() if x.placement == TERMS else x
            return x.each(func, *rest, **kwargs)
        if func in (aten.zeros_like.default, aten.ones_like.default):
            if x.placement == TERMS:
                x = Sharded(x.a, x.b, COPY)
            return x.each(func, *rest, **kwargs)
        if func in NONLINEAR:
            x = x.everywhere() if x.placement == TERMS else x
            return x.each(func, *rest, **kwargs)
        if func in (aten.mul.Tensor, aten.div.Tensor) and isinstance(x, cls) and isinstance(rest[0], (int, float)):
            return x.each(func, *rest)
        if func in (aten.add.Tensor, aten.sub.Tensor) and isinstance(x, cls) and isinstance(rest[0], (int, float)):
            x = x.everywhere() if x.placement == TERMS else x
            return x.each(func, *rest, **kwargs)
        if func in BINARY and isinstance(x, cls) and isinstance(rest[0], cls) and x.shape == rest[0].shape:
            y = rest[0]
            linear = func in (aten.add.Tensor, aten.sub.Tensor) and x.dtype == y.dtype
            if x.placement != y.placement or x.placement == TERMS and not linear:
                x, y = x.everywhere(), y.everywhere()
            return Sharded(func(x.a, y.a, **kwargs), func(x.b, y.b, **kwargs), x.placement)
        if func is aten.mm.default:
            y = rest[0].everywhere()
            x = x.everywhere() if x.placement == TERMS else x
            return Sharded(x.a @ y.a, x.b @ y.b, x.placement)
        if func is aten.sum.default:
            a, b = func(x.a, **kwargs), func(x.b, **kwargs)
            return Sharded(a, b, TERMS if x.placement == ROWS else x.placement)
        if func is aten.sum.dim_IntList and x.dim() == 2 and rest[0] in ([1], [-1]):
            return x.each(func, *rest, **kwargs)
        if func is aten.expand.default and x.placement != ROWS:
            return return_and_correct_aliasing(func, args, kwargs, x.each(func, *rest))
        if func is aten.t.default and x.placement != ROWS:
            return return_and_correct_aliasing(func, args, kwargs, x.each(func))
        if func is aten.copy_.default:
            y = like(rest[0], x)
            x.a.copy_(y.a)
            x.b.copy_(y.b)
            return x
        if func is aten.add_.Tensor and isinstance(rest[0], cls) and x.shape == rest[0].shape:
            y = like(rest[0], x)
            x.a.add_(y.a, **kwargs)
            x.b.add_(y.b, **kwargs)
            return x
        if func is aten.mul_.Tensor and isinstance(rest[0], (int, float)):
            x.a.mul_(rest[0])
            x.b.mul_(rest[0])
            return x
        raise NotImplementedError(f"{func} of sharded tensors")


def like(y, x):
    """What has the value of y and the placement of x."""
    if y.placement == x.placement and y.a.shape == x.a.shape:
        return y
    full = y.full_tensor().expand(x.shape)
    if x.placement == ROWS:
        return Sharded(full[: x.a.shape[0]], full[x.a.shape[0] :], ROWS)
    return Sharded(full, full if x.placement == COPY else torch.zeros_like(full), x.placement)


NONLINEAR = {aten.relu.default, aten.exp.default, aten.sin.default, aten.cos.default, aten.abs.default,
             aten.tanh.default, aten.sigmoid.default, aten.silu.default, aten.gelu.default, aten.sgn.default,
             aten.pow.Tensor_Scalar, aten.eq.Scalar, aten.gt.Scalar, aten.lt.Scalar}
BINARY = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.gt.Tensor, aten.eq.Tensor,
          aten.threshold_backward.default}
'''

#: every call runs on the tensor inside; results know the name of their origin and how many calls ago it was
TRACKED = '''\
class Origin:
    """Where a tensor comes from."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def __eq__(self, other):
        return type(other) is Origin and (self.name, self.calls) == (other.name, other.calls)

    def __hash__(self):
        return hash((self.name, self.calls))


class Tracked(torch.Tensor):
    """A tensor with a name and a count of calls since it got it."""

    @staticmethod
    def __new__(cls, data_, name="x", calls=0):
        return torch.Tensor._make_wrapper_subclass(
            cls, data_.shape, strides=data_.stride(), storage_offset=data_.storage_offset(),
            dtype=data_.dtype, device=data_.device)

    def __init__(self, data_, name="x", calls=0):
        plain(data_)
        self.data_, self.name_, self.calls = data_, name, calls

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"Tracked({self.data_}, {self.name_!r}, {self.calls + 0})"

    def __reduce_ex__(self, protocol):
        return restore, (type(self), self.data_, self.name_, self.calls, self.requires_grad, is_parameter(self))

    def __deepcopy__(self, memo):
        out = memo[id(self)] = restore(
            type(self), self.data_.clone(), self.name_, self.calls, self.requires_grad, is_parameter(self))
        return out

    def __tensor_flatten__(self):
        return ["data_"], Origin(self.name_, self.calls)

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Tracked(inner["data_"], context.name, context.calls)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        first = next(t for t in tree_leaves((args, kwargs)) if isinstance(t, cls))
        inner = tree_map_only(cls, lambda t: t.data_, (args, kwargs))
        out = func(*inner[0], **inner[1])
        calls = first.calls + (func not in KEEP)
        out = tree_map_only(torch.Tensor, lambda t: cls(t, first.name_, calls), out)
        return return_and_correct_aliasing(func, args, kwargs, out)


KEEP = {aten.detach.default, aten.alias.default, aten.clone.default}


def is_parameter(x):
    return isinstance(x, torch.nn.Parameter)


def restore(cls, data_, name, calls, requires_grad, parameter):
    out = cls(data_, name, calls)
    return torch.nn.Parameter(out, requires_grad) if parameter else out.requires_grad_(requires_grad)
'''
