"""Python attributes of a wrapper that its class's constructor sets as well, and that no context tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


class Plain(Tensor):
    """``n`` and ``_c`` are state of an instance; ``unit`` is the context."""

    def __new__(cls, p: Tensor, unit: int = 1) -> Plain:
        made = Tensor._make_wrapper_subclass(cls, p.shape, dtype=p.dtype)
        made.p, made.unit, made.n, made._c = p, unit, 0, None
        return made

    def __init__(self, p: Tensor, unit: int = 1) -> None:
        pass

    def __tensor_flatten__(self) -> Any:
        return ["p"], self.unit

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["p"], context)

    @property
    def twice(self) -> int:
        return 2 * self.n

    def cached(self) -> Tensor:
        if self._c is None:
            self._c = self.p + 1
        return self._c

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.p.tolist()}, n={self.n}, _c={self._c})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        first = next(a for a in args if isinstance(a, cls))
        out = func(*tree_map_only(cls, lambda a: a.p, args), **(kwargs or {}))
        if isinstance(out, Tensor):
            out = cls(out * first.unit if func is torch.ops.aten.mul.Tensor else out, first.unit)
            out.n = first.n  # which its context does not tell
        return out


class Slots(Plain):
    """The same state in slots."""

    __slots__ = ("_c", "n", "p", "unit")


def make(cls: type[Plain], n: Any = 0, c: Any = None) -> Plain:
    x = cls(torch.ones(2))
    x.n, x._c = n, c
    return x


def writes(x: Any) -> Tensor:
    x._c, x.n = 3, x.n + 1
    return x * 1


def assigns_before_it_reads(x: Any) -> Tensor:
    x.n = 7
    return x * x.n


def keeps_a_tensor(x: Any) -> Tensor:
    x._c = x.p * 2
    return x * 2


def takes_back(x: Any) -> Tensor:
    x._c = None
    return x * 2


def makes_a_wrapper(x: Any) -> Any:
    y = type(x)(x.p * 3)
    y.n, y._c = 5, "text"
    return y, x.p


def keeps_a_size(x: Any) -> Tensor:
    x.n = x.shape[0]
    return x * 2


FUNCTIONS: list[Callable[[Any], Any]] = [
    lambda x: x * x.n,
    lambda x: x * x.twice,
    lambda x: x * 2 if x._c is None else x * 3,
    writes,
    assigns_before_it_reads,
    keeps_a_tensor,
    takes_back,
    makes_a_wrapper,
    keeps_a_size,
]


def state(x: Any) -> str:
    return f"{x!r} {type(x._c).__name__} {sorted(vars(x))}"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_attributes_of_the_call(function: Callable[[Any], Any]) -> None:
    region = st.compile(function)
    rows: list[list[str]] = [[], []]
    for call, row in zip((function, region), rows, strict=True):
        for n, c in ((0, None), (2, None), (5, 3), (5, 3), (0, None)):
            x = make(Plain, n, c)
            for _ in range(2):
                out = call(x)
                row += [repr(out), state(x)]
    assert rows[0] == rows[1]


def test_a_tensor_in_an_attribute() -> None:
    region = st.compile(lambda x: x._c * x.p)
    for n in (1.0, 2.0):
        x = make(Plain, c=torch.full((2,), n))
        for _ in range(2):
            assert torch.equal(region(x), x._c * x.p)
    kept = make(Plain, c=torch.ones(2))
    st.compile(takes_back)(kept)
    assert kept._c is None
    x = make(Plain)
    region = st.compile(lambda x: x.cached() * 2)  # the class's own cache
    for _ in range(2):
        assert region(x).tolist() == [4.0, 4.0] and x._c.tolist() == [2.0, 2.0]


def test_attributes_of_a_wrapper_inside() -> None:
    def function(x: Any) -> Tensor:
        x.a.n = 4 if x.a.n == 1 else x.a.n
        x.b.kept, x.b.other = x.b.p * 2, 7
        return x * x.a.n * getattr(x.b, "factor", 1)

    named = TwoTensor(make(Plain, 2), make(Plain))
    of_named = st.compile(lambda x: x * named.a.n)
    assert of_named(torch.ones(1)).item() == 2
    named.a.n = 3
    assert of_named(torch.ones(1)).item() == 3
    named = TwoTensor(make(Plain, 4), make(Plain))
    assert of_named(torch.ones(1)).item() == 4

    region = st.compile(function)
    rows: list[list[str]] = [[], []]
    for call, row in zip((function, region), rows, strict=True):
        for n, factor in ((1, None), (2, None), (2, 5)):
            x = TwoTensor(make(Plain, n), make(Plain))
            if factor is not None:
                x.b.factor = factor
            out = call(x)
            row += [str(out.a), str(out.b), str(sorted(vars(x.a))), str(sorted(vars(x.b).items()))]
    assert rows[0] == rows[1]


def test_slots_that_no_context_tells_are_refused() -> None:
    with pytest.raises(st.UnsupportedError, match="in a slot"):
        st.compile(lambda x: x * x.n)(make(Slots))


def test_what_fake_tensors_remember_stays_with_them() -> None:
    z = torch.tensor(3)

    def function(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        y = z + 1
        return x * z.item() * y.item(), y

    for out in st.compile(function)(torch.ones(2), z):
        assert not vars(out)
    assert not vars(z)
