"""Right wrapper classes of a second round of strangers: padding, names, logarithms, palettes, binary points, rings."""

from __future__ import annotations

#: rows of numbers, of which the last ones may be padding
PADDED = '''\
class Padded(torch.Tensor):
    """Rows of different lengths, padded to one; lengths has how many numbers of each row count."""

    @staticmethod
    def __new__(cls, rows, lengths):
        return torch.Tensor._make_wrapper_subclass(cls, rows.shape, strides=rows.stride(), dtype=rows.dtype, device=rows.device)

    def __init__(self, rows, lengths):
        plain(rows)
        self.rows, self.lengths = rows, lengths

    @classmethod
    def pad(cls, x, missing=1):
        assert x.dim() == 2 and x.shape[1] > missing
        return cls(x, torch.full((x.shape[0],), x.shape[1] - missing))

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"Padded({self.rows}, {self.lengths})"

    def mask(self):
        return torch.arange(self.rows.shape[1]) < self.lengths[:, None]

    def to_dense(self):
        return torch.where(self.mask(), self.rows, torch.zeros_like(self.rows))

    def __tensor_flatten__(self):
        return ["rows", "lengths"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Padded(inner["rows"], inner["lengths"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        first = next(t for t in tree_leaves((args, kwargs)) if isinstance(t, cls))
        if func in SAME:
            moved = {k: v for k, v in kwargs.items() if k == "device"}
            lengths = func(first.lengths, **moved)
            out = cls(func(first.rows, **kwargs), lengths)
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func in POINTWISE:
            lengths = [t.lengths for t in args if isinstance(t, cls)]
            if any(torch.is_tensor(t) and t.dim() and t.shape != first.shape for t in args):
                raise NotImplementedError("operands of one size, please")
            counted = functools.reduce(torch.minimum, lengths)
            rows = func(*[t.rows if isinstance(t, cls) else t for t in args], **kwargs)
            return cls(rows, counted.clone())
        if func is aten.slice.Tensor and (len(args) < 2 or args[1] == 0):
            out = cls(func(first.rows, *args[1:]), func(first.lengths, *args[1:]))
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.sum.default:
            return func(first.to_dense(), **kwargs)
        if func is aten.sum.dim_IntList and args[1] in ([1], [-1]):
            return func(first.to_dense(), *args[1:], **kwargs)
        if func is aten.mean.dim and args[1] in ([1], [-1]) and not kwargs:
            total = first.to_dense().sum(1, *args[2:])
            return total / (first.lengths if len(args) < 3 else first.lengths[:, None])
        if func is aten.amax.default and args[1:2] in (([1],), ([-1],)):
            low = torch.full_like(first.rows, -math.inf)
            return func(torch.where(first.mask(), first.rows, low), *args[1:])
        if func is aten.copy_.default and isinstance(first, cls) and args[0] is first and isinstance(args[1], cls):
            first.rows.copy_(args[1].rows)
            first.lengths.copy_(args[1].lengths)
            return first
        raise NotImplementedError(f"{func} of padded rows")


import functools
import math

SAME = {aten.detach.default, aten.alias.default, aten.clone.default, aten._to_copy.default}
POINTWISE = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.neg.default, aten.exp.default, aten.relu.default,
             aten.sin.default, aten.abs.default, aten.tanh.default, aten.sigmoid.default}
'''

#: numbers whose dimensions have names
NAMED = '''\
class Axes:
    """The names of the dimensions, in order."""

    def __init__(self, names):
        self.names = tuple(names)

    def __eq__(self, other):
        return isinstance(other, Axes) and self.names == other.names

    def __hash__(self):
        return hash(self.names)

    def __repr__(self):
        return f"Axes{self.names}"


class Named(torch.Tensor):
    """A matrix with a name for each of its dimensions."""

    @staticmethod
    def __new__(cls, data, names=("row", "column")):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, strides=data.stride(), dtype=data.dtype, device=data.device)

    def __init__(self, data, names=("row", "column")):
        plain(data)
        self.data_, self.names_ = data, tuple(names)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def label(cls, data, names=("row", "column")):
        assert data.dim() == len(names)
        return cls(data, names)

    def __repr__(self):
        return f"Named({self.data_}, {self.names_})"

    def plain_values(self):
        return self.data_

    def __tensor_flatten__(self):
        return ["data_"], Axes(self.names_)

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Named(inner["data_"], context.names)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        named = [t for t in tree_leaves((args, kwargs)) if isinstance(t, cls)]
        first, unwrap = named[0], lambda t: t.data_
        if any(t.names_ != first.names_ for t in named if t.dim() == first.dim()) and torch.Tag.pointwise in func.tags:
            raise ValueError("the names of the dimensions differ")
        out = func(*tree_map_only(cls, unwrap, args), **tree_map_only(cls, unwrap, kwargs))
        if not torch.is_tensor(out):
            return out
        if func._schema.is_mutable:
            written = kwargs.get("out", args[0])
            return written if isinstance(written, cls) else out
        keeps = torch.Tag.pointwise in func.tags or func in KEEPS
        if keeps and out.shape == first.shape:
            return return_and_correct_aliasing(func, args, kwargs, cls(out, first.names_))
        if func is aten.t.default:
            return return_and_correct_aliasing(func, args, kwargs, cls(out, first.names_[::-1]))
        return out if not func.is_view else refuse(func)


def refuse(func):
    raise NotImplementedError(f"{func}: what would the names be?")


KEEPS = {aten.detach.default, aten.alias.default, aten.clone.default, aten.slice.Tensor, aten.cumsum.default, aten.flip.default,
         aten._to_copy.default, aten.roll.default, aten._softmax.default, aten._log_softmax.default}
'''

#: sign and logarithm of numbers
LOGARITHMIC = '''\
class Logarithmic(torch.Tensor):
    """Numbers as a sign and the logarithm of their size: products are sums."""

    @staticmethod
    def __new__(cls, log, sign):
        return torch.Tensor._make_wrapper_subclass(cls, log.shape, strides=log.stride(), dtype=log.dtype, device=log.device)

    def __init__(self, log, sign):
        plain(log, sign)
        self.log_, self.sign_ = log, sign

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def from_dense(cls, x):
        return cls(x.detach().abs().log(), x.detach().sign())

    def __repr__(self):
        return f"Logarithmic({self.to_dense()})"

    def to_dense(self):
        return self.log_.exp() * self.sign_

    def __tensor_flatten__(self):
        return ["log_", "sign_"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Logarithmic(inner["log_"], inner["sign_"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        a = args[0] if args else None
        b = args[1] if len(args) > 1 else None
        if isinstance(a, cls) and (func.is_view or func in MOVES):
            if "dtype" in kwargs and not kwargs["dtype"].is_floating_point:
                return func(a.to_dense(), *args[1:], **kwargs)
            logs, signs = (func(t, *args[1:], **kwargs) for t in (a.log_, a.sign_))
            out = cls(logs, signs) if torch.is_tensor(logs) else [cls(*pair) for pair in zip(logs, signs)]
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func is aten.mul.Tensor and isinstance(a, cls) and isinstance(b, cls) and a.dtype == b.dtype:
            return cls(a.log_ + b.log_, a.sign_ * b.sign_)
        if func is aten.div.Tensor and isinstance(a, cls) and isinstance(b, cls) and a.dtype == b.dtype:
            return cls(a.log_ - b.log_, a.sign_ * b.sign_)
        if func is aten.neg.default:
            return cls(a.log_.clone(), -a.sign_)
        if func is aten.abs.default:
            return cls(a.log_.clone(), torch.ones_like(a.sign_))
        if func is aten.reciprocal.default:
            return cls(-a.log_, a.sign_.clone())
        if func is aten.copy_.default and isinstance(a, cls):
            new = b if isinstance(b, cls) else cls.from_dense(b)
            a.log_.copy_(new.log_)
            a.sign_.copy_(new.sign_)
            return a
        if func is aten.sgn.default or func is aten.sign.default:
            return a.sign_.clone()
        if func._schema.is_mutable:
            raise NotImplementedError(f"{func} does not write logarithms")
        dense = lambda t: t.to_dense()
        return func(*tree_map_only(cls, dense, args), **tree_map_only(cls, dense, kwargs))


MOVES = {aten.clone.default, aten._to_copy.default, aten.index_select.default, aten.flip.default, aten.roll.default,
         aten.index.Tensor, aten.repeat.default}
'''

#: a weight of few different numbers
PALETTE = '''\
class Palette(torch.Tensor):
    """A weight of sixteen different numbers: codes that point into a table."""

    @staticmethod
    def __new__(cls, codes, table):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, strides=codes.stride(), dtype=table.dtype, device=codes.device)

    def __init__(self, codes, table):
        plain(codes, table)
        self.codes, self.table = codes, table

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def from_dense(cls, x):
        x = x.detach()
        table = torch.linspace(float(x.min()), float(x.max()), 16, dtype=x.dtype)
        return cls((x[..., None] - table).abs().argmin(-1).to(torch.uint8), table)

    def __repr__(self):
        return f"Palette({self.codes}, {self.table})"

    def dequantize(self):
        return self.table.index_select(0, self.codes.int().reshape(-1)).reshape(self.codes.shape)

    def __tensor_flatten__(self):
        return ["codes", "table"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Palette(inner["codes"], inner["table"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if func in (aten.linear.default, aten.matmul.default) or (
            out := func.decompose(*args, **kwargs)
        ) is NotImplemented:
            return run(cls, func, args, kwargs)
        return out


def run(cls, func, args, kwargs):
    w = args[0] if args else None
    if isinstance(w, cls) and func in ON_CODES:
        codes = func(w.codes, *args[1:], **kwargs)
        out = tree_map(lambda c: cls(c, w.table), codes)
        return return_and_correct_aliasing(func, args, kwargs, out)
    if func is aten.clone.default:
        return cls(func(w.codes, **kwargs), w.table.clone())
    if func is aten._to_copy.default and kwargs.get("dtype", torch.float32).is_floating_point:
        device = kwargs.get("device")
        return cls(w.codes.to(device, copy=True), w.table.to(device=device, dtype=kwargs.get("dtype"), copy=True))
    if func is aten.index_select.default:
        return cls(func(w.codes, *args[1:]), w.table.clone())
    if func is aten.embedding.default and isinstance(w, cls):
        return cls(func(w.codes, *args[1:]), w.table.clone()).dequantize()
    if func._schema.is_mutable or func.is_view:
        raise NotImplementedError(f"{func} of a palette")
    dense = lambda t: t.dequantize()
    return func(*tree_map_only(cls, dense, args), **tree_map_only(cls, dense, kwargs))


ON_CODES = {aten.detach.default, aten.alias.default, aten.t.default, aten.slice.Tensor, aten.select.int, aten.view.default,
            aten.transpose.int, aten.split.Tensor, aten.unsqueeze.default}
'''

#: integers with a binary point
FIXED = '''\
class Fixed(torch.Tensor):
    """Multiples of 2 ** -point, as integers. The point is context."""

    @staticmethod
    def __new__(cls, steps, point, shown):
        return torch.Tensor._make_wrapper_subclass(cls, steps.shape, strides=steps.stride(), dtype=shown, device=steps.device)

    def __init__(self, steps, point, shown):
        self.steps, self.point, self.shown = steps, point, shown

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def from_dense(cls, x, point=12):
        return cls((x.detach().double() * 2**point).round().long(), point, x.dtype)

    def __repr__(self):
        return f"Fixed({self.steps}, {self.point})"

    def to_dense(self):
        return (self.steps.double() / 2**self.point).to(self.shown)

    def __tensor_flatten__(self):
        return ["steps"], (self.point, self.shown)

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Fixed(inner["steps"], *context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        a = args[0] if args else None
        b = args[1] if len(args) > 1 else None
        both = isinstance(a, cls) and isinstance(b, cls) and a.shown == b.shown
        if isinstance(a, cls) and (func.is_view or func in EXACT):
            out = tree_map(lambda s: cls(s, a.point, a.shown), func(a.steps, *args[1:], **kwargs))
            return return_and_correct_aliasing(func, args, kwargs, out)
        if func in (aten.add.Tensor, aten.sub.Tensor) and both and isinstance(kwargs.get("alpha", 1), int):
            point = max(a.point, b.point)
            left, right = (t.steps * 2 ** (point - t.point) for t in (a, b))
            return cls(func(left, right, **kwargs), point, a.shown)
        if func is aten.mul.Tensor and both:
            return cls(a.steps * b.steps, a.point + b.point, a.shown)
        if func is aten.mul.Tensor and isinstance(a, cls) and type(b) is int:
            return cls(a.steps * b, a.point, a.shown)
        if func is aten.sum.default and not kwargs:
            return cls(a.steps.sum(), a.point, a.shown)
        if func is aten._to_copy.default and isinstance(a, cls) and kwargs.get("dtype", a.shown).is_floating_point:
            return cls(a.steps.to(kwargs.get("device"), copy=True), a.point, kwargs.get("dtype", a.shown))
        if func is aten.copy_.default and isinstance(a, cls):
            if isinstance(b, cls) and b.point == a.point:
                a.steps.copy_(b.steps)
            else:
                value = b.to_dense() if isinstance(b, cls) else b
                a.steps.copy_(cls.from_dense(value, a.point).steps)
            return a
        if func._schema.is_mutable:
            raise NotImplementedError(f"{func} is not done on steps")
        dense = lambda t: t.to_dense()
        return func(*tree_map_only(cls, dense, args), **tree_map_only(cls, dense, kwargs))


EXACT = {aten.clone.default, aten.neg.default, aten.abs.default, aten.relu.default, aten.flip.default, aten.index.Tensor,
         aten.index_select.default, aten.amax.default}
'''

#: rows in a ring, whose beginning is context
RING = '''\
class Ring(torch.Tensor):
    """Rows in a ring: the first one is at `start`. A queue that never moves its rows."""

    @staticmethod
    def __new__(cls, rows, start=0):
        return torch.Tensor._make_wrapper_subclass(cls, rows.shape, strides=rows.stride(), dtype=rows.dtype, device=rows.device)

    def __init__(self, rows, start=0):
        plain(rows)
        self.rows, self.start = rows, start

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def from_dense(cls, x, start=0):
        assert x.dim() >= 1 and x.shape[0] > 0
        return cls(x.roll(start, 0), start)

    def __repr__(self):
        return f"Ring({self.rows}, {self.start})"

    def to_dense(self):
        return self.rows.roll(-self.start, 0)

    def __tensor_flatten__(self):
        return ["rows"], self.start

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Ring(inner["rows"], context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        x = args[0] if args else None
        rings = [t for t in tree_leaves((args, kwargs)) if isinstance(t, cls)]
        if isinstance(x, cls) and func in COPIES:
            return return_and_correct_aliasing(func, args, kwargs, cls(func(x.rows, **kwargs), x.start))
        if func is aten.neg.default:
            return cls(-x.rows, x.start)
        if func is aten.mul.Tensor and isinstance(x, cls) and isinstance(args[1], (int, float)):
            return cls(x.rows * args[1], x.start)
        if func is aten.mul.Tensor and len(rings) == 2 and rings[0].start == rings[1].start and x.shape == args[1].shape:
            return cls(x.rows * args[1].rows, x.start)
        if func is aten.select.int and isinstance(x, cls) and args[1] == 0:
            raise NotImplementedError("a row of a ring")
        if func is aten.index_select.default and isinstance(x, cls) and args[1] in (0, -x.dim()):
            return func(x.rows, 0, (args[2] + x.start) % x.shape[0])
        if func._schema.is_mutable or func.is_view:
            raise NotImplementedError(f"{func} of a ring")
        dense = lambda t: t.to_dense()
        return func(*tree_map_only(cls, dense, args), **tree_map_only(cls, dense, kwargs))


COPIES = {aten.detach.default, aten.alias.default, aten.clone.default, aten._to_copy.default}
'''
