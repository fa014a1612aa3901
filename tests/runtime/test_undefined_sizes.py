"""Conditions and sizes that have no value for the sizes of a call, and those that need a module of Python's."""

from __future__ import annotations

import pytest
import sympy
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.runtime.sizes import holds
from subclass_trace.subclass.spec import SizeExpr


def divides(x):
    if x.shape[0] == 0:
        return x + 1
    return x * 2 if 100 % x.shape[0] == 0 else x * 3


def divides_by_difference(x, y):
    n = x.shape[0] - y.shape[0]
    if n == 0:
        return x + y
    return x * 2 if 100 % n == 0 else x * 3


@pytest.mark.parametrize("sizes", [(2, 3, 0), (8, 6, 0, 3, 1, 0)])
def test_a_size_that_becomes_0_gets_a_specialization(sizes):
    compiled = st.compile(divides)
    for n in sizes:
        x = torch.randn(n, 3)
        assert torch.equal(compiled(x), divides(x))


def test_so_does_an_expression_that_becomes_0():
    compiled = st.compile(divides_by_difference, dynamic=True)
    for n, m in ((5, 3), (9, 6), (4, 4), (7, 3)):
        x, y = torch.randn(n, 1), torch.randn(m, 1)
        assert torch.equal(compiled(x, y), divides_by_difference(x, y))


def test_a_condition_that_has_no_value_does_not_hold():
    n, m = sympy.symbols("n m", integer=True)
    quotient = sympy.Mul(n, sympy.Pow(m, -1))
    assert holds(sympy.Ge(quotient, 1, evaluate=False), {n: 4, m: 2})
    assert not holds(sympy.Ge(quotient, 1, evaluate=False), {n: 4, m: 0})
    assert not holds(sympy.Ge(quotient, 1, evaluate=False), {n: 0, m: 0})
    assert SizeExpr(quotient).evaluate({n: 4, m: 2}) == 2
    with pytest.raises(ArithmeticError, match="n/m"):
        SizeExpr(quotient).evaluate({n: 4, m: 0})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.interpolate(x, scale_factor=0.6),  # math.trunc, torch.sym_float
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3),
        lambda x: x * 2 if x.shape[2] ** -0.5 > 0.45 else x * 3,
    ],
)
def test_generated_guards_know_the_modules_that_expressions_name(function):
    compiled = st.compile(function, dynamic=True)
    for n in (4, 7, 9):
        x = torch.randn(2, 3, n, n + 1)
        torch.manual_seed(n)
        expected = function(x)
        torch.manual_seed(n)
        torch.testing.assert_close(compiled(x), expected)


def test_a_size_that_the_tangent_tells_is_read_by_generated_code(monkeypatch):
    def picked(x):
        return x.sin()[x[:, 0] > 0], (x * 2)[x > 0]

    compiled = st.compile(picked)
    for step in range(4):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step)).requires_grad_()
        if step == 2:  # the first call has guessed the sizes, the second one writes the code
            monkeypatch.setattr("subclass_trace.runtime.function_code.run_backward", None)
        grads = [torch.autograd.grad([t.exp().sum() for t in f(x)], x)[0] for f in (picked, compiled)]
        assert torch.equal(*grads)
