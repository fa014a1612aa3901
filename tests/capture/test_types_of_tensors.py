"""``type(x)`` of a traced tensor in the user's code is what the caller has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import subclass_trace as st

Tensor = torch.Tensor


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
