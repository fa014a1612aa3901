"""Wrappers whose constructor keeps a tensor that requires grad: outside of the region it still has its history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


class Box(torch.Tensor):
    """Keeps what it is given."""

    @staticmethod
    def __new__(cls, a: Tensor, requires_grad: bool = False) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, requires_grad=requires_grad)

    def __init__(self, a: Tensor, requires_grad: bool = False) -> None:
        self.a = a

    def __repr__(self) -> str:
        return "Box"

    def __tensor_flatten__(self) -> Any:
        return ["a"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls(func(*[a.a if isinstance(a, Box) else a for a in args], **(kwargs or {})))


class Sealed(Box):
    """Its attribute cannot be set."""

    def __init__(self, a: Tensor, requires_grad: bool = False) -> None:
        self.kept = a

    @property
    def a(self) -> Tensor:  # type: ignore[override]
        return self.kept


def same_tensor(x: Tensor) -> Any:
    y = x * 2
    return y, Box(y), Box(y)


def used(x: Tensor) -> Any:
    box = Box(x * 2)
    return box, box * 3, box.a.sin()


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "a value": lambda x: Box(x * 2),
    "the input": lambda x: Box(x),
    "a view of the input": lambda x: Box(x[1:]),
    "in a wrapper": lambda x: Box(Box(x * 2)),
    "a wrapper": lambda x: Box(TwoTensor(x.detach(), x.detach() * 2).requires_grad_()),
    "a leaf itself": lambda x: Box(x * 2, True),
    "one tensor of several": same_tensor,
    "used": used,
    "under no_grad": torch.no_grad()(lambda x: Box(x * 2)),
}


def flat(out: Any) -> list[Tensor]:
    if isinstance(out, tuple):
        return [t for o in out for t in flat(o)]
    return [out, *flat(out.a)] if isinstance(out, Box) else [out]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_inner_tensors_have_their_history(name: str) -> None:
    f, found = PROGRAMS[name], []
    for g in (f, st.compile(f)):
        rows = []
        for _ in range(2):
            x = torch.arange(1.0, 3.0).requires_grad_()
            with verify.enabled():
                out = flat(g(x))
            kept = [t for t in out if t.requires_grad and type(t) is Tensor]
            if kept:
                torch.stack([t.sum() * (k + 2) for k, t in enumerate(kept)]).sum().backward()
            facts = [(type(t), t.requires_grad, t.is_leaf, t._base is x, [t is o for o in (x, *out)]) for t in out]
            rows.append(
                (facts, [t.tolist() for t in out if type(t) is Tensor], None if x.grad is None else x.grad.tolist())
            )
        found.append(rows)
    assert found[0] == found[1]


def test_an_inner_tensor_of_an_input_that_is_replaced() -> None:
    def f(box: Box, x: Tensor) -> Tensor:
        box.a = x * 2
        return x * 3

    region = st.compile(f)
    for _ in range(2):
        box, x = Box(torch.ones(2)), torch.ones(2, requires_grad=True)
        (region(box, x) + box.a).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [5.0, 5.0]


def test_a_class_that_cannot_take_it_is_refused() -> None:
    with pytest.raises(st.UnsupportedError, match="keeps a tensor which requires grad") as refusal:
        st.compile(lambda x: Sealed(x * 2))(torch.ones(2, requires_grad=True))
    assert refusal.value.path == "result[0].a" and "detach" in (refusal.value.fix or "")
    assert st.compile(lambda x: Sealed(x * 2))(torch.ones(2)).a.tolist() == [2.0, 2.0]
