"""Formulas for z3, which is optional: expressions of sympy's, and Python's arithmetic, as torch's
own validator reads them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


class Formulas:
    """Makes formulas, and asks z3 what follows from them.

    Attributes:
        numbers: those that formulas are about, by name.
    """

    #: for one question, so that the same ones are answered wherever it runs
    effort = 3_000_000

    def __init__(self) -> None:
        from torch.fx.experimental.validator import SympyToZ3, TranslationValidator, z3op

        self._z3: Any = importlib.import_module("z3")
        self._symbols = TranslationValidator()
        self._read, self._lifted = SympyToZ3(self._symbols).run, z3op
        self.numbers = dict[str, Any]()

    def number(self, name: str, *, whole: bool = True) -> Any:
        """The number of this name."""
        make = self._z3.Int if whole else self._z3.Real
        return self.numbers.setdefault(name, make(name))

    def let(self, symbol: Any, name: str) -> Any:
        """From now on a symbol of sympy's stands for the number of this name."""
        made = self._symbols.symbols[symbol] = self.number(name, whole=bool(symbol.is_integer))
        return made

    def formula(self, expr: Any) -> Any:
        """Of an expression over symbols; None: there is none."""
        try:
            return self._read(expr)
        except (AssertionError, AttributeError, KeyError, NotImplementedError, TypeError):
            return None

    def compute(self, function: Callable[..., Any], *parts: Any) -> Any:
        """What a function of `operator`, `math` or torch (``sym_max``) gives; None: unknown."""
        try:
            return self._lifted(function, self._symbols)(*parts)
        except (AttributeError, TypeError, ValueError, self._z3.Z3Exception):
            return None

    def against(self, known: list[Any], claims: list[Any]) -> dict[str, Any] | None:
        """Numbers with which all that is known is true and one of the claims is not; none where z3
        cannot tell; or None: there are none, so that the claims follow."""
        solver = self._z3.Solver()
        solver.set(rlimit=self.effort)
        solver.add(*known, self._z3.Not(self._z3.And(*claims)))
        found = solver.check()
        if found == self._z3.unsat:
            return None
        names = self.numbers.items() if found == self._z3.sat else ()
        return {name: solver.model().eval(n, True) for name, n in names}
