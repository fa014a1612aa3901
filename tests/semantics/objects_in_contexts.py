"""Objects of many kinds in the context of a wrapper, whose operations read them."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

Tensor = torch.Tensor


class Quantised(Tensor):
    """One inner tensor; ``q`` in the context. ``sin`` is multiplied with what ``q.use`` gives, ``cos`` (the backward of
    ``sin``) with what ``q.late`` gives."""

    a: Tensor
    q: Any

    @staticmethod
    def __new__(cls, a: Tensor, q: Any) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a: Tensor, q: Any) -> None:
        self.a, self.q = a, q

    def __tensor_flatten__(self) -> Any:
        return ["a"], {"q": self.q}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context["q"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        q = next(t.q for t in tree_leaves((args, kwargs)) if isinstance(t, cls))
        dense_args, dense_kwargs = tree_map_only(cls, lambda t: t.a, (args, kwargs or {}))
        out = func(*dense_args, **dense_kwargs)
        if func is torch.ops.aten.sin.default:
            out = out * q.use()
        if func is torch.ops.aten.cos.default and hasattr(type(q), "late"):
            out = out * q.late()
        out = tree_map_only(Tensor, lambda t: cls(t, q), out)
        return return_and_correct_aliasing(func, args, kwargs or {}, out)


class Plain:
    def __init__(self) -> None:
        self.scale, self.step, self.table = 2.0, 0, [1.0, 2.0]

    def use(self) -> Any:
        return self.scale


class Slots:
    __slots__ = ("__hidden", "scale", "step")

    def __init__(self) -> None:
        self.scale, self.step, self.__hidden = 2.0, 0, 1.0

    def use(self) -> float:
        return self.scale * self.__hidden


class Property(Plain):
    @property
    def doubled(self) -> float:
        return self.scale * 2

    def use(self) -> float:
        return self.doubled


class Cached(Plain):
    @functools.cached_property
    def doubled(self) -> float:
        return self.scale * 2

    def use(self) -> float:
        return self.doubled


class Lazy(Plain):
    """Attributes that are not there are looked for elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.others = {"factor": 3.0}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.others[name]
        except KeyError:
            raise AttributeError(name) from None

    def use(self) -> float:
        return float(self.factor) * self.scale


class Nested(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.unused = Plain(), Plain()

    def use(self) -> float:
        return float(self.inner.scale)


@dataclasses.dataclass(eq=False)
class Data:
    scale: float = 2.0
    step: int = 0

    def use(self) -> float:
        return self.scale


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.step = 2.0, 0
        self.weight = torch.nn.Parameter(torch.full((1,), 2.0), requires_grad=False)

    def use(self) -> Any:
        return self() * self.scale

    def forward(self) -> Tensor:
        return self.weight


class Linear(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)
        self.scale, self.step = 2.0, 0
        self.requires_grad_(False)

    def use(self) -> Any:
        return self.weight[0, 0] * self.scale


class Dictionary(collections.UserDict[str, float]):
    step = 0

    def __init__(self, *_: Any) -> None:
        super().__init__(scale=2.0)
        self.scale = 2.0

    def use(self) -> float:
        return self["scale"] * self.scale


CLASSES: list[Callable[[], Any]] = [Plain, Slots, Property, Cached, Lazy, Nested, Data, Module, Linear, Dictionary]


def sine(x: Any) -> Any:
    return x.sin()


def check_call(region: Any, function: Callable[[Any], Any], q: Any, count: int) -> None:
    """One call: as in eager, and so many specializations afterwards."""
    found, expected = region(Quantised(torch.ones(3), q)), function(Quantised(torch.ones(3), q))
    assert type(found) is type(expected) and found.q is q
    assert torch.equal(found.a, expected.a)
    assert len(region.specializations) == count
