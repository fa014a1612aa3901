"""Tensors as Python objects in a region: the attributes that it sets, and ``type(x)``, which is what the caller has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import subclass_trace as st
from subclass_trace.torch_api.kinds import is_fake

Tensor = torch.Tensor


def _argument(x: Any) -> Tensor:
    x.num, x.aux, x.label = x.shape[0], x + 1, "x"
    return x * 1


def _same(x: Any) -> Tensor:
    x.num = x.shape[0]
    return x  # type: ignore[no-any-return]


def holds_traced(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(holds_traced, value.values()))
    return any(map(holds_traced, value)) if isinstance(value, tuple) else is_fake(value)


def _picture(value: Tensor) -> str:
    held = {k: v for k, v in sorted(vars(value).items()) if k in ("num", "aux", "label")}
    return repr((held, {k: v.grad_fn is None for k, v in held.items() if isinstance(v, Tensor)}, value))


@pytest.mark.parametrize("function", [_argument, _same])
@pytest.mark.parametrize("grad", [False, True])
def test_attributes_of_tensors(function: Callable[[Tensor], Tensor], grad: bool) -> None:
    region = st.compile(function)
    for size in (2, 3, 4):
        x, twin = (torch.ones(size, requires_grad=grad) for _ in range(2))
        got, expected = region(x), function(twin)
        assert str(vars(got).get("num")) == str(vars(expected).get("num"))
        assert not holds_traced(vars(got)) and not holds_traced(vars(x))
        if not grad:  # with it, the names of autograd nodes differ
            assert _picture(got) == _picture(expected) and _picture(x) == _picture(twin)
        elif "aux" in vars(expected):
            (a,), (b,) = (torch.autograd.grad(y.aux.sum() + y.sum(), t) for y, t in ((got, x), (expected, twin)))
            assert torch.equal(a, b)


def test_containers_of_tensors() -> None:
    """As an attribute of an argument; those of a result are refused."""

    def f(x: Any) -> Tensor:
        y: Any = x * 2
        x.pair = (1, {"deep": y + 1})
        return y  # type: ignore[no-any-return]

    def of_result(x: Any) -> Tensor:
        y: Any = x * 2
        y.pair = (1, {"deep": y + 1})
        return y  # type: ignore[no-any-return]

    region = st.compile(f)
    for k in (1.0, 2.0):
        x, twin = torch.full((2,), k), torch.full((2,), k)
        assert str((region(x), vars(x))) == str((f(twin), vars(twin))) and not holds_traced(vars(x))
    with pytest.warns(UserWarning, match="sets an attribute of a result"):
        st.compile(of_result)(torch.ones(2))


def test_what_a_fake_tensor_remembers_is_no_attribute() -> None:
    def f(n: Tensor, x: Tensor) -> Tensor:
        return x * n.item()

    n = torch.tensor(3)
    assert st.compile(f)(n, torch.ones(2)).tolist() == [3, 3] and vars(n) == {}


# ---------------------------------------------------------------------------------------------------------- ``type(x)``
def _identity(x: Tensor) -> Tensor:
    return x * 2 if type(x) is Tensor else x * 3


def _membership(x: Tensor) -> Tensor:
    return x * 2 if type(x * 1) in (Tensor, torch.nn.Parameter) else x * 3


_TABLE = {Tensor: 2.0, torch.nn.Parameter: 3.0, TwoTensor: 4.0}


def _table(x: Tensor) -> Tensor:
    return x * _TABLE[type(x)]


def _name(x: Tensor) -> tuple[Tensor, str]:
    return x + 1, type(x).__name__


def _text(result: Any) -> str:
    return str([t.detach() if isinstance(t, Tensor) else t for t in (result if type(result) is tuple else (result,))])


@pytest.mark.parametrize("function", [_identity, _membership, _table, _name])
def test_the_type_is_that_of_the_caller(function: Any) -> None:
    compiled = st.compile(function)
    for x in (torch.ones(3), torch.nn.Parameter(torch.ones(3)), TwoTensor(torch.ones(3), torch.ones(3)), torch.ones(3)):
        for _ in range(2):
            expected, got = function(x), compiled(x)
            assert _text(expected) == _text(got)


class Asks(TwoTensor):
    """A wrapper whose code asks for the type of what it holds, forward and backward."""

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Asks:
        return Asks(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mul.Tensor:
            x, y = (a.a if isinstance(a, Asks) else a for a in args)
            scale = 1 if type(x) is Tensor else 10
            made = x * y * scale
            return cls(made, made)
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_code_of_a_wrapper_class_knows_its_inner_tensors_as_dense() -> None:
    def run(function: Any) -> list[Tensor]:
        x = Asks(torch.ones(2), torch.ones(2)).requires_grad_()
        y = function(x)
        (grad,) = torch.autograd.grad(y, [x], [torch.ones_like(y)])
        return [y.a, grad.a]

    function = lambda x: x * x
    for expected, got in zip(run(function), run(st.compile(function)), strict=True):
        assert torch.equal(expected, got)
