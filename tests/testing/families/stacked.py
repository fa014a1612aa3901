"""Right wrapper classes of a fourth round of strangers: an ensemble with a hidden dimension, and rows of different lengths."""

from __future__ import annotations

#: the first dimension of the tensor inside counts members, and is not seen outside
ENSEMBLE = '''\
class Ensemble(torch.Tensor):
    """Members that are computed at once."""

    @staticmethod
    def __new__(cls, stack):
        return torch.Tensor._make_wrapper_subclass(
            cls, stack.shape[1:], strides=stack.stride()[1:], dtype=stack.dtype, device=stack.device)

    def __init__(self, stack):
        plain(stack)
        self.stack = stack

    @classmethod
    def from_dense(cls, x):
        x = x.detach()
        return cls(torch.stack([x, x + 1, x * 2]))

    def to_dense(self):
        return self.stack[0]

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"Ensemble({self.stack})"

    def __tensor_flatten__(self):
        return ["stack"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Ensemble(inner["stack"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        rule = next((rule for ops, rule in RULES if func in ops), None)
        if rule is None and torch.Tag.pointwise in func.tags and "out" not in kwargs:
            rule = pointwise
        if rule is None or not (isinstance(args[0], (cls, list)) or rule in (pointwise, mm, addmm)):
            raise NotImplementedError(f"{func} of ensembles")
        out = tree_map_only(torch.Tensor, cls, rule(func, *args, **kwargs))
        return return_and_correct_aliasing(func, args, kwargs, out)


def lifted(t, rank):
    """The stack of t with as many dimensions for a member as the rank says; dense tensors are the same for each member."""
    if not isinstance(t, Ensemble):  # (of no dimensions it would not count for the dtype)
        return t[None] if isinstance(t, torch.Tensor) and not rank else t
    return t.stack.reshape(t.stack.shape[0], *[1] * (rank - t.dim()), *t.shape)


def shift(dim, rank):
    return dim % max(rank, 1) + 1


def pointwise(func, *args, **kwargs):
    rank = max(t.dim() for t in args if isinstance(t, torch.Tensor))
    if any(isinstance(t, Ensemble) for t in tree_leaves(kwargs)):
        raise NotImplementedError("keywords of ensembles")
    if func._schema.is_mutable and not isinstance(args[0], Ensemble):
        raise NotImplementedError("ensembles do not fit into a dense tensor")
    return func(*[lifted(t, rank) for t in args], **kwargs)


def same(func, x, **kwargs):
    return func(x.stack, **kwargs)


def reduction(func, x, dim=None, *args, **kwargs):
    dims = list(range(x.dim())) if not dim else dim
    if not x.dim():
        return func(x.stack[:, None], [1], *args, **kwargs)
    return func(x.stack, [shift(d, x.dim()) for d in dims], *args, **kwargs)


def total(func, x, **kwargs):
    return x.stack.reshape(x.stack.shape[0], -1).sum(1, **kwargs)


def along(func, x, dim, *args, **kwargs):
    if not x.dim():
        raise NotImplementedError("numbers have no dimensions")
    return func(x.stack, shift(dim, x.dim()), *args, **kwargs)


def part(func, x, dim=0, *args, **kwargs):
    return along(func, x, dim, *args, **kwargs)


def split(func, x, size, dim=0):
    return func(x.stack, size, shift(dim, x.dim()))


def unsqueeze(func, x, dim):
    return func(x.stack, shift(dim, x.dim() + 1))


def transpose(func, x, first=0, second=1):
    if x.dim() < 2:
        return x.stack.view_as(x.stack)
    return x.stack.transpose(shift(first, x.dim()), shift(second, x.dim()))


def permute(func, x, dims):
    return func(x.stack, [0, *(shift(d, x.dim()) for d in dims)])


def view(func, x, size):
    return func(x.stack, [x.stack.shape[0], *size])


def expand(func, x, size, **kwargs):
    return lifted(x, len(size)).expand([x.stack.shape[0], *size])


def mm(func, a, b):
    a, b = (t.stack if isinstance(t, Ensemble) else t[None] for t in (a, b))
    return a @ b


def addmm(func, bias, a, b, beta=1, alpha=1):
    return lifted(bias, 2) * beta + mm(func, a, b) * alpha


def cat(func, tensors, dim=0):
    if not all(isinstance(t, Ensemble) for t in tensors):
        raise NotImplementedError("ensembles only")
    rank = tensors[0].dim() + (func is aten.stack.default)
    return func([t.stack for t in tensors], shift(dim, rank))


RULES = [
    ((aten.mm.default, aten.bmm.default), mm),
    ((aten.addmm.default,), addmm),
    ((aten.detach.default, aten.alias.default, aten.clone.default, aten._to_copy.default), same),
    ((aten.zeros_like.default, aten.ones_like.default), same),
    ((aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default), reduction),
    ((aten.sum.default,), total),
    ((aten._softmax.default, aten._log_softmax.default, aten.cumsum.default), along),
    ((aten.slice.Tensor, aten.select.int, aten.unbind.int, aten.squeeze.dim), part),
    ((aten.split.Tensor, aten.split_with_sizes.default), split),
    ((aten.unsqueeze.default,), unsqueeze),
    ((aten.t.default, aten.transpose.int), transpose),
    ((aten.permute.default,), permute),
    ((aten.view.default, aten._unsafe_view.default), view),
    ((aten.expand.default,), expand),
    ((aten.cat.default, aten.stack.default), cat),
]
'''

#: rows end to end, with the place where each begins
RAGGED = '''\
class Ragged(torch.Tensor):
    """Rows of different lengths. Those of one layout and size are of the same lengths."""

    @staticmethod
    def __new__(cls, values_, offsets, shape, layout_):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=values_.dtype, device=values_.device)

    def __init__(self, values_, offsets, shape, layout_):
        plain(values_)
        self.values_, self.offsets, self.layout_ = values_, offsets, layout_

    @classmethod
    def from_dense(cls, x, layout=0):
        if x.dim() != 2 or x.shape[1] < 2 or not x.shape[0]:
            raise ValueError("matrices of two columns and more, please")
        lengths = x.shape[1] - (torch.arange(x.shape[0]) + int(layout)) % 2
        mask = torch.arange(x.shape[1]) < lengths[:, None]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        return cls(x.detach()[mask.to(x.device)], offsets.to(x.device), x.shape, int(layout))

    def lengths(self):
        return self.offsets.diff()

    def places(self):
        rows = torch.arange(self.shape[0], device=self.device)
        row = torch.repeat_interleave(rows, self.lengths(), output_size=self.values_.shape[0])
        return row, torch.arange(self.values_.shape[0], device=self.device) - self.offsets[row]

    def mask(self):
        return torch.arange(self.shape[1], device=self.device) < self.lengths()[:, None]

    def padded(self, filler=0):
        return self.values_.new_full(self.shape, filler).index_put(self.places(), self.values_)

    to_dense = padded
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"Ragged({self.values_}, {self.offsets})"

    def __tensor_flatten__(self):
        return ["values_", "offsets"], (self.layout_,)

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Ragged(inner["values_"], inner["offsets"], outer_size, context[0])

    def like(self, values):
        return Ragged(values, self.offsets.clone(), self.shape, self.layout_)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        first = next(t for t in tree_leaves((args, kwargs)) if isinstance(t, cls))
        rest = args[1:]
        if func in (aten.detach.default, aten.alias.default):
            out = Ragged(func(first.values_), func(first.offsets), first.shape, first.layout_)
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func in (aten.clone.default, aten.zeros_like.default):
            dtype = {k: v for k, v in kwargs.items() if k == "dtype"}
            return first.like(func(first.values_, **dtype))
        if func is aten._to_copy.default:
            device = {k: v for k, v in kwargs.items() if k == "device"}
            kwargs = {k: v for k, v in kwargs.items() if k != "memory_format"}
            values, offsets = func(first.values_, **kwargs), func(first.offsets, **device)
            return Ragged(values, offsets, first.shape, first.layout_)
        if func in POINTWISE:
            return first.like(func(*[first.beside(t) for t in args], **kwargs))
        if func in IN_PLACE and isinstance(args[0], cls):
            func(*[first.beside(t) for t in args], **kwargs)
            return args[0]
        if func is aten.copy_.default and args[0] is first:
            first.values_.copy_(first.beside(rest[0].expand(first.shape) if not isinstance(rest[0], cls) else rest[0]))
            return first
        if func is aten.sum.default:
            return first.values_.sum(**kwargs)
        if func not in ROWS:
            raise NotImplementedError(f"{func} of ragged rows")
        rows = rest[:1] in (([1],), ([-1],)) and rest[1:] in ((), (False,), (True,))
        if func is aten.sum.dim_IntList and rows:
            return func(first.padded(), *rest, **kwargs)
        if func is aten.mean.dim and rows and not kwargs:
            out = first.padded().sum(1) / first.lengths()
            return (out[:, None] if rest[1:] == (True,) else out).to(first.dtype)
        if func is aten.amax.default and rows and first.dtype.is_floating_point:
            return func(first.padded(-float("inf")), *rest)
        raise NotImplementedError(f"{func} of ragged rows")

    def beside(self, t):
        """The numbers of t that stand where this tensor has some."""
        if isinstance(t, Ragged):
            if t.shape != self.shape or t.layout_ != self.layout_:
                raise NotImplementedError("rows of other lengths")
            return t.values_
        if not isinstance(t, torch.Tensor) or not t.dim():
            return t
        if t.dim() != 2 or t.shape[0] not in (1, self.shape[0]) or t.shape[1] not in (1, self.shape[1]):
            raise NotImplementedError("a dense tensor of another size")
        return t.expand(self.shape)[self.places()]


POINTWISE = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.neg.default, aten.exp.default,
             aten.sin.default, aten.cos.default, aten.relu.default, aten.abs.default, aten.sgn.default,
             aten.tanh.default, aten.sigmoid.default, aten.threshold_backward.default, aten.tanh_backward.default,
             aten.sigmoid_backward.default}
ROWS = {aten.sum.dim_IntList, aten.mean.dim, aten.amax.default}
IN_PLACE = {aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.zero_.default}
'''
