"""Arithmetic with symbolic numbers as Python does it: one node of the graph for each step.

Torch makes formulas of what code computes with symbols. Those of whole numbers are exact. Those of floats are not: sympy
adds and multiplies in an order of its own, takes ``a - a`` for 0 where ``a`` may be NaN, and loses the sign of ``-0.0``;
``a ** 2`` records that ``a`` is not negative, which nobody has said. Here each step is a node that runs Python's own
function in each call, and its result a symbol of its own, wherever

- a number depends on values inside tensors (``.item()``) and the result is a float or the truth of a comparison of floats,
  or Python may refuse the numbers (``7 // k``, ``1 << k``);
- floats of the call are computed with (`Session.computed`);
- a formula of sizes would not be the step alone: ``n * 0.5`` is one, ``n * 0.1 * 3`` is not. What needs such a number at
  once (``int()``, a branch) gets it from a capture with the size as a number (`number`).

Other back ends than our own get torch's formulas.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from .. import _torch
from ..errors import DataDependentError
from .session import Session

_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
_AS_FLOAT: Any = torch.sym_float  # torch has no annotations for it
_FLOATS = (float, torch.SymFloat)
_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
}
_COMPARISONS: Mapping[str, Callable[..., Any]] = {n: getattr(operator, n) for n in ("eq", "ne", "lt", "le", "gt", "ge")}
#: these divide by their second operand
_DIVIDES = (operator.floordiv, operator.mod)
_SHIFTS = (operator.lshift, operator.rshift)
#: torch's formulas of these are Python's steps where the operands are whole, whether they are known or not
_WHOLE_FORMULAS = frozenset({operator.add, operator.sub, operator.mul, *_COMPARISONS.values()})
_WHOLE = frozenset({int, torch.SymInt})
_SYMBOLS = frozenset(_torch.SYM_TYPES)


def real_power(base: Any, exponent: Any) -> Any:
    """``base ** exponent``, which has to be a real number.

    Raises:
        DataDependentError: it is a complex one: a root of a negative number.
    """
    found = base**exponent
    if isinstance(found, complex):
        raise DataDependentError(
            "a power of a number from inside a tensor is complex",
            expected="a base that is not negative, or a whole exponent",
            got=f"{base!r} ** {exponent!r}",
            fix="compute it of a complex tensor, or outside of the region",
        )
    return found


def whole_power(base: int, exponent: int) -> int:
    """``base ** exponent``, which has to be whole.

    Raises:
        DataDependentError: it is a float, for the exponent is negative.
    """
    if exponent < 0 and base:
        raise DataDependentError(
            "a power of whole numbers is a float",
            expected="an exponent from inside a tensor that is not negative, where both are whole: the class of the "
            "result is the same in each call",
            got=f"{base!r} ** {exponent!r}",
            fix="compute it of floats: float(base) ** exponent",
        )
    found: int = base**exponent
    return found


def is_whole(number: float) -> bool:
    """``number.is_integer()``, as a step."""
    return number.is_integer()


class Steps:
    """The methods of symbols that compute.

    Args:
        covers: is it a symbol of this capture?
        number: the number that a symbol stands for, see `python_numbers.PythonNumbers.number`; asked for ``what``.
    """

    def __init__(self, session: Session, covers: Callable[[Any], bool], number: Callable[[Any, str], Any]) -> None:
        self.session, self.covers, self.number = session, covers, number
        self._plans = 0  # code of DTensor computes: see `_plans_shards`

    # ---------------------------------------------------------------- the methods
    def hooks(self, cls: Any) -> dict[str, Callable[..., Any]]:
        """Methods for a class of symbols, by their names."""
        if cls is torch.SymBool:
            return self._as_numbers()
        of_floats = cls is torch.SymFloat
        hooks: dict[str, Callable[..., Any]] = {}
        for name, function in _ARITHMETIC.items():
            if of_floats and function in _SHIFTS:
                continue
            for swapped, own in ((False, f"__{name}__"), (True, f"__r{name}__")):
                plain = getattr(cls, own, None)
                if plain is not None or function in _SHIFTS:
                    hooks[own] = self._binary(function, plain, swapped=swapped)
        for name, function in _COMPARISONS.items():
            hooks[f"__{name}__"] = self._binary(function, getattr(cls, f"__{name}__"))
        hooks.update(__divmod__=_divmod, __rdivmod__=lambda n, other: _divmod(other, n))
        hooks["__round__"] = self._rounded(cls.__round__ if hasattr(cls, "__round__") else None)
        if not of_floats:
            hooks["__invert__"] = lambda n: -n - 1
            return hooks
        for name, function, kind in (
            ("neg", operator.neg, float),
            ("pos", operator.pos, float),
            ("abs", operator.abs, float),
            ("trunc", math.trunc, int),
            ("floor", math.floor, int),
            ("ceil", math.ceil, int),
        ):
            hooks[f"__{name}__"] = self._unary(function, kind, getattr(cls, f"__{name}__", None))
        hooks["is_integer"] = self._unary(is_whole, bool, cls.is_integer)
        for of_number in (int, bool, float):
            name = f"__{of_number.__name__}__"
            hooks[name] = self._at_once(of_number, getattr(cls, name))
        return hooks

    def _binary(self, function: Callable[..., Any], plain: Any, *, swapped: bool = False) -> Callable[..., Any]:
        is_formula = function in _WHOLE_FORMULAS

        def compute(n: Any, *others: Any) -> Any:
            if is_formula and type(n) is torch.SymInt and len(others) == 1 and type(others[0]) in _WHOLE:
                return _plain(plain, n, others)  # nearly all
            others = tuple(map(self._whole, others))
            operands = (*others, n) if swapped else (n, *others)
            if len(others) == 2 and self.covers(n):
                return pow(self.number(n, "a power with a modulus"), *others)
            if len(operands) != 2 or not all(isinstance(o, _NUMBERS) for o in others):
                return NotImplemented if plain is None else plain(n, *others)
            return self.computed(function, operands, functools.partial(_plain, plain, n, others))

        return compute

    def _whole(self, n: Any) -> Any:
        """Truths are 1 and 0, which torch's methods do not know."""
        if type(n) is torch.SymBool and self.covers(n):
            return self.session.whole(n)
        return int(n) if type(n) is bool else n

    def _unary(self, function: Callable[..., Any], kind: type, plain: Any) -> Callable[..., Any]:
        def compute(n: Any) -> Any:
            return self.computed(function, (n,), functools.partial(_plain, plain, n, ()), kind)

        return compute

    def _rounded(self, plain: Any) -> Callable[..., Any]:
        def rounded(n: Any, digits: Any = None) -> Any:
            if isinstance(n, torch.SymInt) and (digits is None or digits >= 0):
                return n
            operands = (n,) if digits is None else (n, digits)
            kind = int if digits is None or isinstance(n, torch.SymInt) else float
            if isinstance(n, torch.SymInt) and self.covers(n) and self._are_known(operands):
                return round(self.number(n, "a rounded number"), digits)
            return self.computed(round, operands, functools.partial(_plain, plain, n, operands[1:]), kind)

        return rounded

    def _at_once(self, of_number: Callable[[Any], Any], plain: Any) -> Callable[..., Any]:
        def convert(n: Any) -> Any:
            if self._plans or _plans_shards(sys._getframe(1)):
                return self._as_torch(functools.partial(plain, n))
            return of_number(self.number(n, "a number that is computed of it")) if self._is_of_sizes(n) else plain(n)

        return convert

    def _as_numbers(self) -> dict[str, Callable[..., Any]]:
        """Methods of truths, which are 1 and 0 where Python computes with them."""

        def method(function: Callable[..., Any], swapped: bool) -> Callable[..., Any]:
            def compute(n: Any, other: Any) -> Any:
                if not isinstance(other, (*_NUMBERS, torch.SymBool)):
                    return NotImplemented
                number = self._whole(n)
                return function(other, number) if swapped else function(number, other)

            return compute

        def unary(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda n: function(self._whole(n))

        def equal(function: Callable[..., Any], plain: Any) -> Callable[..., Any]:
            def compute(n: Any, other: Any) -> Any:
                if isinstance(
                    other, bool
                ):  # such as a key of a dict; torch's formulas do not compare a truth with True
                    return n if function(True, other) else negated(n)
                return function(self._whole(n), other) if isinstance(other, _NUMBERS) else plain(n, other)

            return compute

        negated: Any = torch.sym_not
        order = {name: function for name, function in _COMPARISONS.items() if name not in ("eq", "ne")}
        hooks = {f"__{name}__": method(function, False) for name, function in {**_ARITHMETIC, **order}.items()}
        hooks |= {f"__r{name}__": method(function, True) for name, function in _ARITHMETIC.items()}
        hooks |= {"__divmod__": method(_divmod, False), "__rdivmod__": method(_divmod, True)}
        hooks |= {name: equal(_COMPARISONS[name[2:4]], getattr(torch.SymBool, name)) for name in ("__eq__", "__ne__")}
        hooks["__round__"] = lambda n, digits=None: round(self._whole(n), digits)
        return hooks | {"__neg__": unary(operator.neg), "__abs__": unary(operator.abs), "__pos__": unary(operator.pos)}

    # ---------------------------------------------------------------- a step
    def computed(
        self,
        function: Callable[..., Any],
        operands: Sequence[Any],
        plain: Callable[[], Any],
        kind: type | None = None,
    ) -> Any:
        """``function(*operands)``: a step, or what torch makes of it (``plain``). ``kind``: the class of the result."""
        session = self.session
        own = list(filter(self._is_symbol, operands))
        if not own or self._plans:
            return plain()
        if _plans_shards(sys._getframe(2)):
            return self._as_torch(plain)
        kind = kind or _kind(function, operands)
        if kind is bool and any(n != n for n in operands if type(n) is float):
            return function(math.nan, 0.0)  # whatever the others are; sympy refuses to compare with NaN
        if not self._are_known(own):
            return self._unknown(function, operands, plain, kind)
        if function in _DIVIDES and not any(isinstance(n, _FLOATS) for n in operands) and operands[1] == 0:
            return function(1, 0)  # sympy takes n // n for 1
        if kind is not float:
            exact = [self.number(n, "a number that is computed of it") if self._is_of_sizes(n) else n for n in operands]
            return plain() if all(a is b for a, b in zip(exact, operands, strict=True)) else function(*exact)
        if function is operator.pow and session.takes_steps:  # torch asks whether the base is negative
            if isinstance(operator.pow(*map(_torch.value_in_trace, operands)), complex):
                return function(*(self.number(n, "a root") if self._is_symbol(n) else n for n in operands))
            return session.computed(real_power, *operands)
        divides = function in _DIVIDES and session.takes_steps  # torch rounds down a quotient, which may be NaN
        if divides or any(map(session.is_float_of_call, operands)):
            return session.computed(_FOR_FLOATS.get(function, function), *operands)
        made = plain()
        if not session.takes_steps or not isinstance(made, torch.SymFloat) or _torch.is_one_step(made, operands):
            return made
        return session.computed(_FOR_FLOATS.get(function, function), *operands)

    def _unknown(self, function: Any, operands: Sequence[Any], plain: Callable[[], Any], kind: type) -> Any:
        floats = any(isinstance(n, _FLOATS) for n in operands)
        divides = function in _DIVIDES and not (type(operands[1]) is int and operands[1] != 0)
        power = function is operator.pow and isinstance(operands[1], torch.SymInt)
        if kind is not float and not (floats or divides or power or function in _SHIFTS or function is round):
            return plain()  # formulas of whole numbers are exact, and sizes are compared by them
        if not self.session.takes_steps:
            return _formula_of_power(operands) if function is operator.pow and kind is float else plain()
        if power and kind is int:
            return self.session.step(whole_power, operands, int)
        return self.session.step(_FOR_FLOATS.get(function, function), operands, kind)

    def _as_torch(self, plain: Callable[[], Any]) -> Any:
        """What torch makes of it, which may take steps of its own."""
        self._plans += 1
        try:
            return plain()
        finally:
            self._plans -= 1

    def _is_symbol(self, n: Any) -> bool:
        return type(n) in _SYMBOLS and self.covers(n)

    def _are_known(self, operands: Sequence[Any]) -> bool:
        return all(map(_torch.is_known, filter(self._is_symbol, operands)))

    def _is_of_sizes(self, n: Any) -> bool:
        """Is it a float that steps compute of sizes, and of no float of the call?"""
        return type(n) is torch.SymFloat and self.covers(n) and self.session.is_of_sizes(n)


_FOR_FLOATS: Mapping[Any, Callable[..., Any]] = {operator.pow: real_power}


def _kind(function: Callable[..., Any], operands: Sequence[Any]) -> type:
    """The class of a result."""
    if function in _COMPARISONS.values():
        return bool
    if function is operator.truediv or any(isinstance(n, _FLOATS) for n in operands):
        return float
    return float if function is operator.pow and type(operands[1]) is int and operands[1] < 0 else int


def _plain(method: Any, n: Any, others: Sequence[Any]) -> Any:
    """What torch's method makes of them: a number where that is the same for all values."""
    made = NotImplemented if method is None else method(n, *others)
    constant = type(made) in _SYMBOLS and not _torch.is_nested(made) and not made.node.expr.free_symbols
    return _torch.value_in_trace(made) if constant else made


def _formula_of_power(operands: Sequence[Any]) -> Any:
    """Torch's formula without its condition that the base is not negative."""
    base, exponent = map(_AS_FLOAT, operands)
    if isinstance(base, torch.SymFloat):
        return base.__float_pow__(exponent)
    return exponent.__rfloat_pow__(base)


def _divmod(a: Any, b: Any) -> Any:
    return a // b, a % b


def _plans_shards(frame: FrameType) -> bool:
    """Is it code of DTensor, which weighs what redistributions cost? No value hangs on these numbers, and rounding them
    would need the sizes."""
    return str(frame.f_globals.get("__name__", "")).startswith("torch.distributed.tensor")
