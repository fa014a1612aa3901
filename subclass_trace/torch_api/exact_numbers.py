"""Arithmetic on floats from inside of tensors (``loss.item()``), exactly as Python does it.

Torch computes with formulas of sympy, which take it that a number is finite: ``v - v`` is 0 and
``v == v`` is true, also of a NaN. So each operation on such a float is a step of its own: whoever
traces writes it down (`steps_written_by`), and its result is a new symbol, of which nothing is
known. Whole numbers are computed by formulas, which are exact.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._sympy.symbol import SymT, symbol_is_type

#: ``(function, numbers, whole) -> symbol``, or None where it cannot be written down
Write = Callable[[Callable[..., Any], tuple[Any, ...], bool], Any]
#: ``(compare, numbers) -> truth``, or None where nobody can tell
Decide = Callable[[Callable[..., int], tuple[Any, ...]], "bool | None"]
_WRITERS: weakref.WeakKeyDictionary[
    Any, tuple[weakref.WeakMethod[Write], weakref.WeakMethod[Decide]]
] = weakref.WeakKeyDictionary()
_SYMBOLS = (torch.SymInt, torch.SymFloat)
_KINDS = (*_SYMBOLS, torch.SymBool)
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


#: method -> the function that it computes, of its operands in order
_FLOATS: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": getattr(operator, name) for name in (*_BINARY, "neg", "pos", "abs")},
    "__sym_max__": torch.sym_max,
    "__sym_min__": torch.sym_min,
}
_SWAPPED = {f"__r{name}__": getattr(operator, name) for name in _BINARY}
#: those that give a whole number (``round`` where no digits are named)
_INTS: dict[str, Callable[..., Any]] = {
    "__floor__": math.floor,
    "__ceil__": math.ceil,
    "__trunc__": math.trunc,
    "__sym_int__": int,
}


def is_from_inside(n: Any) -> bool:
    """Does a symbol depend on values inside tensors?"""
    kinds = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)
    return any(symbol_is_type(s, kinds) for s in n.node.expr.free_symbols)


def compares_floats_from_inside(truth: torch.SymBool) -> bool:
    """Is it said of such a float, which may be a NaN?"""
    return any(symbol_is_type(s, SymT.UNBACKED_FLOAT) for s in truth.node.expr.free_symbols)


def steps_written_by(env: Any, write: Write, decide: Decide) -> None:
    """Let ``write(function, numbers, whole)`` write down what is computed of such floats.

    It gives the symbol of the result, an int or a float; None where it cannot be written down.
    ``decide(compare, numbers)`` tells the truth of a comparison, which is checked in each call.
    Only as long as somebody else holds the object whose methods these are.
    """
    _WRITERS[env] = weakref.WeakMethod(write), weakref.WeakMethod(decide)


def is_equal(a: float, b: float) -> int:
    """``a == b`` as a number."""
    return int(a == b)


def is_other(a: float, b: float) -> int:
    """``a != b`` as a number."""
    return int(a != b)


def is_less(a: float, b: float) -> int:
    """``a < b`` as a number."""
    return int(a < b)


def is_at_most(a: float, b: float) -> int:
    """``a <= b`` as a number."""
    return int(a <= b)


#: sympy's name of a comparison -> the function, and whether its operands change places
_COMPARISONS: dict[str, tuple[Callable[..., int], bool]] = {
    "Equality": (is_equal, False),
    "Unequality": (is_other, False),
    "StrictLessThan": (is_less, False),
    "LessThan": (is_at_most, False),
    "StrictGreaterThan": (is_less, True),
    "GreaterThan": (is_at_most, True),
}


def decided(truth: torch.SymBool) -> bool | None:
    """What a comparison of numbers from inside of tensors is; None where nobody can tell."""
    expr, env = truth.node.expr, truth.node.shape_env
    known, found = _COMPARISONS.get(type(expr).__name__), _WRITERS.get(env)
    decide = None if found is None else found[1]()
    if known is None or decide is None or not is_from_inside(truth):
        return None
    numbers = [_number(env, side) for side in expr.args]
    return decide(known[0], tuple(numbers[::-1] if known[1] else numbers))


def _number(env: Any, expr: Any) -> Any:
    if expr.is_number:
        return int(expr) if expr.is_integer else float(expr)
    return (env.create_symintnode if expr.is_integer else env.create_symfloatnode)(expr, hint=None)


def new_unknown(env: Any, whole: bool) -> Any:
    """A symbol of which nothing is known, and that nothing waits for."""
    ignored = env._ignore_fresh_unbacked_symbols_set(True)
    try:
        return env.create_unbacked_symint() if whole else env.create_unbacked_symfloat()
    finally:
        env._ignore_fresh_unbacked_symbols_set(ignored)


def exactly(name: str, n: Any, others: tuple[Any, ...]) -> Any:
    """``n.name(*others)`` as a step; NotImplemented where torch's formulas are exact, or have none.

    Raises:
        GuardOnDataDependentSymNode: it cannot be written down.
    """
    numbers = (n, *others)
    if not all(isinstance(k, (int, float, *_SYMBOLS)) for k in numbers):
        return NotImplemented
    inside = [k for k in numbers if isinstance(k, _SYMBOLS) and is_from_inside(k)]
    is_float = "truediv" in name or any(isinstance(k, (float, torch.SymFloat)) for k in numbers)
    if not inside or not is_float:
        return NotImplemented
    if name == "__round__":
        return step(round, numbers, whole=not others)
    if name in _INTS:
        return step(_INTS[name], numbers, whole=True)
    if name in _SWAPPED:
        return step(_SWAPPED[name], (*others, n))
    return step(_FLOATS[name], numbers) if name in _FLOATS else NotImplemented


def step(function: Callable[..., Any], numbers: tuple[Any, ...], whole: bool = False) -> Any:
    """The function of these numbers, of which one comes from inside of a tensor, as a step.

    Raises:
        GuardOnDataDependentSymNode: it cannot be written down.
    """
    env = next(k.node.shape_env for k in numbers if isinstance(k, _SYMBOLS))
    known = _WRITERS.get(env)
    write = None if known is None else known[0]()
    made = None if write is None else write(function, numbers, whole)
    if made is None:
        refuse(numbers)
    return made


def refuse(numbers: tuple[Any, ...]) -> NoReturn:
    """Refuse what needs to know a number from inside of a tensor, as torch refuses a branch on it.

    Raises:
        GuardOnDataDependentSymNode: always.
    """
    expr = next(k.node.expr for k in numbers if isinstance(k, _KINDS) and is_from_inside(k))
    raise GuardOnDataDependentSymNode(expr, f"a data-dependent expression is needed: {expr}")


def rounded(n: Any, digits: int) -> Any:
    """``round(n, -digits)`` of a whole number, half to even, by formulas that symbols have.

    >>> [rounded(n, 1) for n in (7, 12, 15, 25, 35, -5, -15, -7, 0)]
    [10, 10, 20, 20, 40, 0, -20, -10, 0]
    """
    unit = 10**digits
    half = unit // 2
    is_no_tie_to_even = ((n - half) % (2 * unit) + 2 * unit - 1) // (2 * unit)  # 0 or 1
    return unit * ((n + half) // unit - 1 + is_no_tie_to_even)
