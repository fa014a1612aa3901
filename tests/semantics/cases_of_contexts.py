"""Cases: contexts of wrappers."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import numpy as np
import torch
from case_kit import cases
from torch._library.opaque_object import is_opaque_type, register_opaque_type
from torch._opaque_base import OpaqueBase
from wrappers import Scaled, dense, masked

import subclass_trace as st

Tensor = torch.Tensor


same, fact = cases("Aliasing of inputs")


@fact("a global that is bound to another tensor is an input like others", torch="a specialization each")
def _rebound() -> None:
    region = st.compile(lambda x: x * _SCALE)
    for seed in range(3):
        globals()["_SCALE"] = dense(3, seed=seed)
        x = dense(3, seed=9)
        assert torch.equal(region(x), x * _SCALE)
    assert len(region.specializations) == 1
    globals()["_SCALE"] = x  # now it is the argument
    assert torch.equal(region(x), x * x) and len(region.specializations) == 2


_SCALE = torch.zeros(3)


same, fact = cases("Contexts of wrappers")


@fact("equal contexts hit, other contexts specialize")
def _context() -> None:
    region = st.compile(lambda x: x * 2)
    for tag in ("a", "a", "b", "b"):
        assert region(Scaled(dense(2, seed=0), torch.tensor(1.0), tag)).tag == tag
    assert len(region.specializations) == 2


@fact("NaN equals itself", torch="error (guard)")
def _nan() -> None:
    region = st.compile(lambda x: x * 2)
    for _ in range(2):
        region(Scaled(dense(2, seed=0), torch.tensor(1.0), float("nan")))
    assert len(region.specializations) == 1


@fact("objects compared by identity", torch="error (guard)")
def _identity() -> None:
    region = st.compile(lambda x: x * 2)
    for tag in (one := object(), one, object()):
        assert region(Scaled(dense(2, seed=0), torch.tensor(1.0), tag)).tag is tag
    assert len(region.specializations) == 2


@fact(
    "a plain tensor, an iterator, or a list that contains itself in a context",
    torch="silently wrong",
    refused="eager",
)
def _arrays() -> None:
    region = st.compile(lambda x: x * 2)
    for values in ([1, 2], [1, 2], [3, 4]):
        out = region(Scaled(dense(2, seed=0), torch.tensor(1.0), torch.tensor(values)))
        assert out.tag.tolist() == values


@fact("a dict that is changed in place between calls")
def _dict() -> None:
    for function, count in ((lambda x: x.data_ * 2, 2), (lambda x: x.data_ * x.tag["k"], 2)):
        region = st.compile(function)
        tag = {"k": 1}
        region(Scaled(dense(2, seed=0), torch.tensor(1.0), tag))
        tag["k"] = 2
        x = Scaled(dense(2, seed=0), torch.tensor(1.0), tag)
        assert torch.equal(region(x), function(x))
        assert len(region.specializations) == count


@fact("an object of a class that is no dataclass", torch="error (guard)", refused="eager")
def _changed() -> None:
    box = types.SimpleNamespace(v=2.0)
    st.compile(lambda x: x.data_ * x.tag.v)(Scaled(dense(2, seed=0), torch.tensor(1.0), box))


@fact("a closure in a context, which the region calls", torch="error (guard)", refused="eager")
def _closure() -> None:
    box = types.SimpleNamespace(v=2.0)
    st.compile(lambda x: x.data_ * x.tag())(Scaled(dense(2, seed=0), torch.tensor(1.0), lambda: box.v))


@fact("fields of a dataclass (a step counter): a specialization each", torch="not checked")
def _of_object() -> None:
    held, region = Counted(), st.compile(lambda x: x.data_ * x.tag.scale)
    for held.scale, step, count in ((2.0, 0, 1), (2.0, 0, 1), (3.0, 0, 2), (3.0, 1, 3), (2.0, 0, 3)):
        held.step = step
        x = Scaled(dense(2, seed=0), torch.tensor(1.0), held)
        assert torch.equal(region(x), x.data_ * held.scale)
        assert len(region.specializations) == count


@dataclasses.dataclass
class Counted:
    """A configuration with a step counter."""

    scale: float = 1.0
    step: int = 0


@dataclasses.dataclass
class Config:
    """A context that can be changed."""

    scale: float


def _configured(scale: float) -> Any:
    return Scaled(dense(2, seed=0), torch.tensor(1.0), Config(scale)).requires_grad_()


class _Configured(torch.autograd.Function):
    """Multiplied with what the context says, in the backward too."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.data_ * x.tag.scale

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return Scaled(grad * x.tag.scale, torch.tensor(1.0), x.tag)


@fact("a result that has the very list, dict, array or dataclass of its input", torch="not checked", refused="eager")
def _handed_on() -> None:
    st.compile(lambda x: x * 2)(Scaled(dense(2, seed=0), torch.tensor(1.0), np.ones(2)))


@fact("an opaque attribute beside inner tensors: a result has an equal one (a mesh in, a mesh out)")
def _opaque() -> None:
    if not is_opaque_type(Mesh):
        register_opaque_type(Mesh, typ="reference")
    for trains in (False, True):
        region = st.compile(lambda x: x * 2)
        for n, count in ((1, 1), (1, 1), (2, 2)):
            x = _OnMesh(torch.ones(2), Mesh(n)).requires_grad_(trains)
            assert region(x).mesh == x.mesh
            assert len(region.specializations) == count


class Equal:
    """An object that another one may stand for."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and other.n == self.n

    def __hash__(self) -> int:
        return self.n


class Mesh(Equal, OpaqueBase):
    """An object that torch lets a wrapper name beside its inner tensors."""


class _OnMesh(torch.Tensor):
    """One inner tensor and a mesh."""

    a: Tensor
    mesh: Mesh

    @staticmethod
    def __new__(cls, a: Tensor, mesh: Mesh) -> Any:
        self = torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)
        self.a, self.mesh = a, mesh
        return self

    def __tensor_flatten__(self) -> Any:
        return ["a", "mesh"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], inner["mesh"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        mesh = next(t.mesh for t in args if isinstance(t, cls))
        args = [t.a if isinstance(t, cls) else t for t in args]
        return cls(func(*args, **(kwargs or {})), mesh)


@fact("contexts of results keep the types of their values", torch="not checked")
def _types() -> None:
    region = st.compile(lambda x, y, z: (x * 2, y * 2, z * 2))
    for _ in range(2):
        tags = (1, 1.0, True)
        found = region(*(Scaled(dense(2, seed=0), torch.tensor(1.0), tag) for tag in tags))
        assert [(type(y.tag), y.tag) for y in found] == [(type(tag), tag) for tag in tags]


@fact(
    "a context that is changed between forward and backward",
    torch="not checked",
    refused="UnsupportedError",
    handed=False,
)
def _between() -> None:
    region = st.compile(_Configured.apply)
    for scale in (1.0, 3.0, 1.0):
        x = _configured(1.0)
        y = region(x)
        x.tag.scale = scale
        y.sum().backward()
        assert torch.equal(x.grad.data_, torch.full((2,), scale))
    assert len(region.specializations) == 1


@fact("a dataclass that the operations of the class change", torch="not checked", refused="eager")
def _counted() -> None:
    def f(x: Any) -> Any:
        x.tag.step += 1
        return x.data_ * 2

    st.compile(f)(Scaled(dense(2, seed=0), torch.tensor(1.0), Counted()))


class _Logs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Any, x: Any) -> Any:
        ctx.x = x
        return w * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        ctx.x.tag.append(1)
        return grad * len(ctx.x.tag), None


@fact("a context that a custom backward or a hook changes: runs eagerly", torch="not checked")
def _changed_in_backward() -> None:
    x = Scaled(dense(2, seed=0), torch.tensor(1.0), [])
    st.compile(_Logs.apply)(torch.ones(2, requires_grad=True), x).sum().backward()


@fact(
    "an object of a context that the region changes by another name (a list that a module logs into)",
    torch="not checked",
    refused="UnsupportedError",
)
def _by_another_name() -> None:
    log: list[int] = []
    x = Scaled(dense(2, seed=0), torch.tensor(1.0), log)

    def f(x: Any) -> Any:
        log.append(1)
        return x.data_ * len(x.tag)

    st.compile(f)(x)


@fact(
    "a list or dict of a context is asked whether it is one from elsewhere (`x.tag is TABLE`)",
    torch="not checked",
    differs="False: a traced wrapper has a copy",
)
def _is_another() -> None:
    table = [1]
    x = Scaled(dense(2, seed=0), torch.tensor(1.0), table)
    assert st.compile(lambda x: (x.data_ * 2, x.tag is table))(x)[1] is True


@fact(
    "two inputs are asked whether their contexts hold one object (`x.tag is y.tag`)",
    torch="not checked",
    differs="as in the first call: contexts are compared by value",
)
def _is_that_of_another_input() -> None:
    region = st.compile(lambda x, y: (x.data_ * 2, x.tag is y.tag))
    one, other = [1], [1]
    for tags in ((one, one), (one, other)):
        x, y = (Scaled(dense(2, seed=0), torch.tensor(1.0), tag) for tag in tags)
        assert region(x, y)[1] is (x.tag is y.tag)


@fact("lists, sets and objects that the region makes, as results or attributes: each call its own", torch="not checked")
def _made() -> None:
    def f(x: Any) -> Any:
        x.note = [1]
        return x.data_ * 2, {1}, x.note

    region = st.compile(f)
    for _ in range(2):
        x = Scaled(dense(2, seed=0), torch.tensor(1.0), "before")
        _, found, note = region(x)
        assert note is x.note and note == [1] and found == {1}
        note.append(2)
        found.add(2)
    assert len(region.specializations) == 1


same("optional inner tensors that come and go", lambda x: x * 2, lambda c: masked(3, seed=c))
