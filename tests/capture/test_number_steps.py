"""Arithmetic with numbers from inside tensors, and with sizes: Python's own, to the last bit, with its exceptions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor
NAN, INF = math.nan, math.inf
#: a and b are floats, k and m whole numbers
ROWS = [
    (1.5, 0.5, 2, 1),
    (-1.5, 2.0, -2, 2),
    (0.1, -0.5, 3, 4),
    (-0.0, 4.0, -7, 3),
    (NAN, 1.0, 2, 5),
    (INF, -1.0, 1, -2),
    (1e300, 3.0, 2**40, 7),
]


def of_floats(a: Any, b: Any, k: Any, m: Any) -> Any:
    sums = (
        a + 0.1 + 0.2,
        a * 0.1 * 3,
        a - a,
        a * 0,
        a + 0,
        0.0 - a,
        a * b - b * a,
        (a + b) - a,
        a * 1e308 * 10,
        -a,
        abs(a),
    )
    powers = a**2, a**3.0, 2.0 ** (b * 2), b**-2
    parts = a // 2, a % 2.5, a % -2.5, 5 % b, 1 // b, a / b, divmod(a, 2), divmod(1.0, b)
    return sums, powers, parts, (a != a, a == a, a < b, a >= 0, a < a, a * 2 == 3, (a > 0) + 1, (a > 0) * 2.5)


def of_both(a: Any, b: Any, k: Any, m: Any) -> Any:
    sums = (
        k + 0.1 + 0.2,
        k * 0.1 * 3,
        k / m,
        k * a - a * k,
        k - k,
        float(k) * 1e307 * 10,
        k // 2.5,
        k % 2.5,
        k**-1,
        a // m,
    )
    whole = (
        k // m,
        k % m,
        7 // k,
        7 % k,
        k // k,
        divmod(k, m),
        round(k, -1),
        ~k,
        k << 2,
        1 << abs(m),
        k**2,
        k * 2**62 * 4,
    )
    return (
        sums,
        whole,
        (k == 2.0, k > 2.5, a == k, k != k, k < m, (k > 0) + (m > 0)),
        (max(b, 0.0), min(a, b), max(k, m)),
    )


def of_math(a: Any, b: Any, k: Any, m: Any) -> Any:
    known = math.isnan(a), math.isinf(a), math.isfinite(a), math.fabs(a), math.copysign(1.0, a), math.atan2(a, b)
    more = math.gcd(k, 6), math.exp(b), math.hypot(a, b), math.tanh(a), math.sqrt(b * b), math.log1p(b * b)
    rounded = round(b), round(b, 1), math.floor(b), math.ceil(b), math.trunc(b), int(b * 2.5), b.is_integer()
    tensors = torch.tensor([a, 1.0]), torch.tensor([[k], [m]]), torch.full((2,), b**2), torch.zeros(int(abs(b) * 2))
    return known, more, rounded, tensors


def told(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape), repr(value.tolist()), value._is_view()
    return [told(v) for v in value] if isinstance(value, tuple) else (type(value), repr(value))


def call(f: Callable[..., Any], row: tuple[Any, ...]) -> Any:
    try:
        return told(f(torch.tensor(row[:2], dtype=torch.float64), torch.tensor(row[2:])))
    except (ArithmeticError, ValueError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("f", [of_floats, of_both, of_math], ids=lambda f: str(f.__name__))
def test_numbers_from_inside_tensors(f: Callable[..., Any]) -> None:
    def program(t: Tensor, u: Tensor) -> Any:
        return f(*t.tolist(), *u.tolist())

    region = st.compile(program)
    for row in ROWS:
        assert call(region, row) == call(program, row), row
    assert len(region.specializations) == 1


RAISES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "1 / a": (lambda a, b, k, m: 1 / a, (0.0, 1.0, 1, 1)),
    "a ** -1": (lambda a, b, k, m: a**-1, (0.0, 1.0, 1, 1)),
    "k // k": (lambda a, b, k, m: k // k, (1.0, 1.0, 0, 1)),
    "k % m": (lambda a, b, k, m: k % m, (1.0, 1.0, 3, 0)),
    "1 << k": (lambda a, b, k, m: 1 << k, (1.0, 1.0, -1, 0)),
    "int of NaN": (lambda a, b, k, m: int(a), (NAN, 1.0, 1, 1)),
    "floor of inf": (lambda a, b, k, m: math.floor(a), (INF, 1.0, 1, 1)),
    "a ** 3": (lambda a, b, k, m: a**3, (1e300, 1.0, 1, 1)),
    "log of 0": (lambda a, b, k, m: math.log(a), (0.0, 1.0, 1, 1)),
}


@pytest.mark.parametrize("name", RAISES)
def test_exceptions_are_those_of_python(name: str) -> None:
    f, bad = RAISES[name]

    def program(t: Tensor, u: Tensor) -> Any:
        return f(*t.tolist(), *u.tolist())

    region = st.compile(program)
    for row in ((2.0, 1.0, 3, 2), bad, (4.5, 0.5, 1, 7)):
        assert call(region, row) == call(program, row)


def test_what_would_be_of_another_class_is_refused_in_the_call() -> None:
    region = st.compile(lambda t, u: (t.item() ** 0.5, 2 ** u.item()))
    assert region(torch.tensor(4.0), torch.tensor(3)) == (2.0, 8)
    with pytest.raises(st.DataDependentError, match="is complex"):
        region(torch.tensor(-4.0), torch.tensor(3))
    with pytest.raises(st.DataDependentError, match="is a float"):
        region(torch.tensor(4.0), torch.tensor(-3))


def test_a_slice_is_returned_with_numbers() -> None:
    region = st.compile(lambda x, k: (slice(k), slice(1, x.shape[0])))
    for n, k in ((3, 1), (4, 2), (5, 3)):
        assert region(torch.ones(n), k) == (slice(k), slice(1, n))
    with pytest.raises(st.DataDependentError):
        st.compile(lambda x: slice(int(x.sum())))(torch.ones(2))


def of_sizes(n: Any, k: Any) -> Any:
    return (
        n * 0.1 * 3,
        n + 0.1 + 0.2,
        n * 0.1 + n * 0.2,
        n / 3 * 3,
        1 - 0.9**n,
        n**0.5,
        1 / math.sqrt(n),
        k * 0.1 * 3,
        -(n * 0.1),
        ~n,
    )


def test_sizes_and_arguments() -> None:
    """Formulas of several steps would be rounded otherwise."""
    region = st.compile(lambda x, k: (of_sizes(x.shape[0], k), x * (x.shape[0] * 0.1 * 3)))
    for n, k in ((3, 1), (5, 2), (7, -3), (10, 4), (20, 7)):
        x = torch.linspace(0, 1, n)
        found, product = region(x, k)
        assert told(found) == told(of_sizes(n, k)) and torch.equal(product, x * (n * 0.1 * 3))
    assert len(region.specializations) == 2


def test_sizes_and_symbols_beside_nan() -> None:
    def f(x: Tensor, k: int, q: float) -> Any:
        n = x.shape[0]
        return [(a < q, a <= q, q > a, q == a, a != q, q >= a, a > NAN, a == NAN) for a in (n, k, n * 0.5)]

    region = st.compile(f)
    for row in ((2, 3, 1.5), (3, 4, NAN), (4, 5, NAN), (5, 6, INF), (6, 7, 6.0)):
        assert region(torch.ones(row[0]), *row[1:]) == f(torch.ones(row[0]), *row[1:])


def test_sizes_that_are_computed_by_floats() -> None:
    """``10 * 0.1 * 3`` is 3, ``10 * (0.1 * 3)`` is more."""
    f = lambda x: (
        torch.zeros(math.ceil(x.shape[0] * 0.1 * 3)),
        x[: int(x.shape[0] * 0.7 * 0.3)],
        round(x.shape[0], -1),
    )
    region = st.compile(f)
    for n in (3, 5, 10, 20, 29):
        assert told(region(torch.ones(n))) == told(f(torch.ones(n)))


@pytest.mark.inductor
def test_another_back_end_computes_formulas() -> None:
    def f(x: Tensor) -> Tensor:
        a = x.sum().item()
        return x * a**2 + a * a

    region = st.compile(f, backend="inductor")
    for v in (1.5, -2.0):
        torch.testing.assert_close(region(torch.full((2,), v)), f(torch.full((2,), v)))


def test_steps_of_numbers_from_inside_tensors_beside_a_write() -> None:
    """The graph is replayed to make it functional: the steps are not taken again."""

    def f(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        n = t.item()
        return x.add_(math.exp(n)) * (2 ** int(n))

    region = st.compile(f, backend="eager")
    for n in (0.5, 2.0, 3.25):
        x, y = torch.ones(2), torch.ones(2)
        torch.testing.assert_close(region(x, torch.tensor(n)), f(y, torch.tensor(n)), rtol=0, atol=0)
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    assert len(region.specializations) == 1


def test_a_branch_of_the_backward_on_a_float_of_sizes_makes_these_numbers() -> None:
    """The backward of attention compares the scale, which is computed of the size of a head."""
    region = st.compile(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x))
    for width, layout in ((6, torch.contiguous_format), (5, torch.channels_last), (7, torch.channels_last)):
        x = torch.randn(2, 3, 6, width).to(memory_format=layout).requires_grad_()
        expected = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        got = region(x)
        assert torch.equal(got, expected)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, expected)))
