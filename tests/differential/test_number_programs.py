"""Programs that compute with Python numbers: of tensors, of arguments, of sizes. Each runs with several numbers in a row.

One compiled function gets them all, so that what was decided for one number meets another. Values (up to rounding) and classes
must be those of eager mode, where nothing is raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as s

import subclass_trace as st
from subclass_trace.errors import SubclassTraceError

Tensor = torch.Tensor
INF, NAN = math.inf, math.nan
#: a and b are floats and k and m ints from inside tensors, p is an int and q a float among the arguments, n is a size
NAMES = ("a", "b", "k", "m", "p", "q", "n")
CONSTANTS = ("2", "3", "-1", "0.1", "2.5", "1e308")  # a constant 0.0 is a known fault: docs/limits.md
FLOATS = (1.5, -1.5, 0.0, -0.0, 0.1, 1 / 3, 4.0, NAN, INF, 1e300, -7.25)
INTS = (0, 1, 2, 3, -1, -2, 5)
LARGE = (0, 3, -7, 2**31, 2**53 + 1)

BINARY = ("+", "-", "*", "/", "//", "%", "<", "<=", "==", "!=", ">", ">=")
UNARY = ("-{}", "abs({})", "round({})", "round({}, 1)", "({})**2", "({})**-1", "({})**0.5", "2.0**({})", "({})**3")
OF_MATH = ("sqrt", "floor", "ceil", "trunc", "exp", "log", "isnan", "sin", "fabs", "log1p", "tanh", "degrees")
USES = (
    "{}",
    "x * ({})",
    "({}) - x",
    "x.add(x, alpha={})",
    "torch.full((2,), {})",
    "torch.tensor([{}, 1.0])",
    "torch.tensor({})",
    "x[:int({})]",
    "torch.where(x > ({}), x, 0.5)",
    "[{}, (x, 1)]",
    "divmod({}, 3)",
    "x.clamp(max={})",
    "torch.zeros(int(abs({}) % 5))",
)


def expressions() -> s.SearchStrategy[str]:
    """Expressions of Python, as text."""
    binary = lambda inner: s.tuples(inner, s.sampled_from(BINARY), inner).map(lambda r: f"({r[0]} {r[1]} {r[2]})")
    unary = lambda inner: s.tuples(s.sampled_from(UNARY), inner).map(lambda r: f"({r[0].format(r[1])})")
    of_math = lambda inner: s.tuples(s.sampled_from(OF_MATH), inner).map(lambda r: f"math.{r[0]}({r[1]})")
    to = lambda inner: s.tuples(s.sampled_from(("int", "float")), inner).map(lambda r: f"{r[0]}({r[1]})")
    of_two = lambda inner: s.tuples(s.sampled_from(("max", "min", "math.fmod", "math.atan2")), inner, inner).map(
        lambda r: f"{r[0]}({r[1]}, {r[2]})"
    )
    return s.recursive(
        s.sampled_from((*NAMES, *NAMES, *CONSTANTS)),
        lambda inner: s.one_of(binary(inner), binary(inner), unary(inner), of_math(inner), to(inner), of_two(inner)),
        max_leaves=4,
    )


def programs() -> s.SearchStrategy[str]:
    """Functions of ``(x, t, u, p, q)``."""
    uses = s.lists(
        s.tuples(s.sampled_from(USES), expressions()).map(lambda r: r[0].format(r[1])), min_size=1, max_size=2
    )
    return uses.map(
        lambda rows: (
            "def f(x, t, u, p, q):\n    a, b = t.tolist()\n    k, m = u.tolist()\n    n = x.shape[0]\n"
            f"    return {', '.join(rows)}\n"
        )
    )


def calls() -> s.SearchStrategy[list[tuple[Any, ...]]]:
    """What the numbers are, call by call."""
    row = s.tuples(*[s.sampled_from(v) for v in (FLOATS, FLOATS, INTS, LARGE, INTS, FLOATS[:8], (2, 3, 4, 6))])
    return s.lists(row, min_size=3, max_size=5)


def told(value: Any) -> Any:
    """A value with its class; of tensors what they hold. Floats compare up to rounding."""
    if isinstance(value, Tensor):
        return "tensor", value.dtype, tuple(value.shape), told(value.tolist()), value._is_view()
    if isinstance(value, (list, tuple)):
        return type(value), [told(v) for v in value]
    return type(value), pytest.approx(value, rel=1e-6, nan_ok=True) if isinstance(value, float) else value


def outcome(function: Callable[..., Any], row: tuple[Any, ...]) -> Any:
    a, b, k, m, p, q, n = row
    x, t, u = torch.linspace(-2, 3, n), torch.tensor([a, b], dtype=torch.float64), torch.tensor([k, m])
    try:
        return told(function(x, t, u, p, q))
    except SubclassTraceError as error:
        return error
    except Exception as error:
        return type(error)


def compare(source: str, rows: list[tuple[Any, ...]]) -> None:
    names: dict[str, Any] = {"torch": torch, "math": math}
    exec(source, names)
    region = st.compile(names["f"], max_specializations=50)
    for row in rows:
        want, got = outcome(names["f"], row), outcome(region, row)
        if want is OverflowError:
            continue  # a power that overflows is inf in a graph: docs/limits.md
        if not isinstance(got, (SubclassTraceError, type)):  # torch's formulas refuse more numbers, but loudly
            assert got == want, (row, source, got, want)


@settings(max_examples=7, derandomize=True, database=None)
@given(programs(), calls())
def test_generated(source: str, rows: list[tuple[Any, ...]]) -> None:
    compare(source, rows)


@pytest.mark.slow
@settings(max_examples=200)
@given(programs(), calls())
def test_generated_more(source: str, rows: list[tuple[Any, ...]]) -> None:
    compare(source, rows)
