"""A sound wrapper for the tests of the kit: passes every rule, so that a subclass of it with one fault breaks one."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

from subclass_trace.testing.subject import Subject, subject_of


class Sound(torch.Tensor):
    """value = data, with an idle second inner tensor ``extra`` of another shape and a context ``tag``."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    check_grad = True
    #: lazy bits of inner tensors that are looked at
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Conjugate).add(torch._C.DispatchKey.Negative)

    @staticmethod
    def __new__(cls, data, extra=None, tag="tag", size=None, stride=None):
        if cls.check_grad and data.requires_grad:
            raise ValueError("the constructor is not differentiable")
        how = {"dtype": data.dtype, "device": data.device, "storage_offset": data.storage_offset()}
        size, stride = data.shape if size is None else size, data.stride() if stride is None else stride
        self = torch.Tensor._make_wrapper_subclass(cls, size, strides=stride, **how)
        self.data_ = data
        self.extra = torch.zeros(2, device=data.device) if extra is None else extra
        self.tag = tag
        return self

    def __repr__(self):
        return f"{type(self).__name__}({self.data_!r})"

    def __tensor_flatten__(self):
        return ["data_", "extra"], self.tag

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], inner["extra"], context, size, stride)

    def __deepcopy__(self, memo):
        # torch's own takes a wrapper with a storage offset for a tensor with data
        if id(self) not in memo:
            inner = {n: copy.deepcopy(getattr(self, n).detach(), memo) for n in ("data_", "extra")}
            out = type(self).__tensor_unflatten__(inner, self.__tensor_flatten__()[1], self.size(), self.stride())
            out = out.requires_grad_(self.requires_grad)
            memo[id(self)] = torch.nn.Parameter(out, self.requires_grad) if is_parameter(self) else out
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        inner = {"data_": self.data_, "extra": self.extra}
        context = self.__tensor_flatten__()[1]
        size, stride = tuple(self.size()), self.stride()
        return unpickle, (type(self), inner, context, size, stride, self.requires_grad, is_parameter(self))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if foreign(cls, types):
            return NotImplemented
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        return cls.compute(func, args, kwargs)

    @classmethod
    def compute(cls, func: Any, args: Any, kwargs: Any) -> Any:
        """Run on the inner tensor, and wrap and alias the result."""
        seen = []

        def inner(x):
            seen.append(x)
            return x.data_

        inner_args, inner_kwargs = mapped(cls, inner, args), mapped(cls, inner, kwargs)
        example = seen[0]
        with bits(cls.keys):
            out = func(*inner_args, **inner_kwargs)
        fresh = func in (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)

        def wrap(data):
            extra = example.extra.to(data.device, copy=fresh)
            return cls(data, extra, example.tag)

        wrapped = mapped(torch.Tensor, wrap, out)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


class Square(torch.autograd.Function):
    """A formula of one's own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return type(x)(x.data_.square(), x.extra, x.tag)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class WithFormula(Sound):
    """Squares are computed by a formula."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            formula = func is torch.Tensor.square and args[0].is_floating_point()
            return Square.apply(*args) if formula else func(*args, **(kwargs or {}))


def mapped(kind, function, value):
    """``tree_map_only`` for lists, tuples and dicts; most of what the tests of the kit do is this."""
    if isinstance(value, kind):
        return function(value)
    if type(value) in (tuple, list):
        return type(value)([mapped(kind, function, v) for v in value])
    return {n: mapped(kind, function, v) for n, v in value.items()} if type(value) is dict else value


def foreign(cls, types):
    """Is a wrapper of another class among the types?"""
    return any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types)


def bits(keys):
    """A guard in which operations look at the lazy bits of tensors, as they do above ``__torch_dispatch__``."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative):
        if keys.has(key):
            excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(included, excluded)


def is_parameter(x: torch.Tensor) -> bool:
    """Is it a parameter?"""
    return isinstance(x, torch.nn.Parameter)


def unpickle(cls, inner, context, size, stride, requires_grad, parameter):
    """The inverse of ``Sound.__reduce_ex__``."""
    out = cls.__tensor_unflatten__(inner, context, size, stride).requires_grad_(requires_grad)
    return torch.nn.Parameter(out, requires_grad) if parameter else out


def subject(cls: type = Sound) -> Subject:
    """The subject of a class with the constructor of `Sound`."""
    return subject_of(cls, f"{cls.__name__}({{0}})", to_dense="{0}.data_")
