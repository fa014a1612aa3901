"""Formulas for z3, which is optional: expressions of sympy's as torch's own validator reads them,
and the arithmetic of Python."""

from __future__ import annotations

import importlib
from typing import Any


class Formulas:
    """Makes formulas, and asks z3 what follows from them.

    Attributes:
        z3: the module; ``arithmetic``: ``floordiv``, ``mod``, ``max``, ... as Python computes them.
        numbers: those that formulas are about, by name.
    """

    #: for one question, so that the same ones are answered wherever it runs
    effort = 3_000_000

    def __init__(self) -> None:
        from torch.fx.experimental.validator import SympyToZ3, TranslationValidator

        self.z3: Any = importlib.import_module("z3")
        self._symbols = TranslationValidator()
        self._reader: Any = SympyToZ3(self._symbols)
        self.arithmetic: Any = self._reader._ops
        self.numbers = dict[str, Any]()

    def number(self, name: str, *, whole: bool = True) -> Any:
        """The number of this name."""
        make = self.z3.Int if whole else self.z3.Real
        return self.numbers.setdefault(name, make(name))

    def let(self, symbol: Any, value: Any) -> None:
        """From now on a symbol of sympy's stands for this value."""
        self._symbols.symbols[symbol] = value

    def formula(self, expr: Any) -> Any:
        """An expression over symbols that have values; None: there is no such formula."""
        try:
            return self._reader.run(expr)
        except (AssertionError, AttributeError, KeyError, NotImplementedError, TypeError):
            return None

    def against(self, known: list[Any], claims: list[Any]) -> dict[str, Any] | str | None:
        """Numbers with which all that is known is true and one of the claims is not; "unknown"; or
        None: there are none, so that the claims follow."""
        solver = self.z3.Solver()
        solver.set(rlimit=self.effort)
        solver.add(*known, self.z3.Not(self.z3.And(*claims)))
        found = solver.check()
        if found == self.z3.unsat:
            return None
        if found == self.z3.unknown:
            return "unknown"
        model = solver.model()
        return {name: model.eval(n, True) for name, n in self.numbers.items()}
