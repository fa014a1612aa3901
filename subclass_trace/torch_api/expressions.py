"""Expressions over symbols as data: trees of names from a closed table, so that reading one runs no
text."""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
from typing import Any

import torch

#: of sympy's own classes
_SYMPY = (
    *(
        "Add",
        "Mul",
        "Pow",
        "Mod",
        "Max",
        "Min",
        "Abs",
        "Piecewise",
        "And",
        "Or",
        "Not",
        "Xor",
        "ITE",
    ),
    *(
        "Eq",
        "Ne",
        "Lt",
        "Le",
        "Gt",
        "Ge",
        "floor",
        "ceiling",
        "sign",
        "sqrt",
        "exp",
        "log",
        "sin",
        "cos",
        "tan",
    ),
    *(
        "sinh",
        "cosh",
        "tanh",
        "asin",
        "acos",
        "atan",
        "Equality",
        "Unequality",
        "StrictLessThan",
        "LessThan",
    ),
    *("StrictGreaterThan", "GreaterThan", "ExprCondPair"),
)


def is_expression(value: object) -> bool:
    """Is it an expression of sympy's?"""
    sympy = sys.modules.get("sympy")
    return sympy is not None and isinstance(value, sympy.Basic)


def _sympy() -> Any:
    return importlib.import_module("sympy")


@functools.cache
def _expression_classes() -> dict[str, Any]:
    import torch.utils._sympy.functions as functions

    sympy = _sympy()
    ExprCondPair = sympy.functions.elementary.piecewise.ExprCondPair

    found = {name: getattr(sympy, name) for name in _SYMPY if hasattr(sympy, name)}
    own = vars(functions).items()
    found |= {
        name: cls for name, cls in own if isinstance(cls, type) and issubclass(cls, sympy.Basic)
    }
    return {**found, "ExprCondPair": ExprCondPair}


def expression_data(expr: Any) -> list[Any]:
    """An expression as nested lists of names and numbers.

    Raises:
        KeyError: a class that is not in the table.
    """
    sympy = _sympy()
    if isinstance(expr, sympy.Symbol):
        return ["symbol", expr.name, dict(sorted(expr.assumptions0.items()))]
    if isinstance(expr, sympy.Rational):
        return ["number", int(expr.p), int(expr.q)]
    if isinstance(expr, sympy.Float):
        return ["float", float(expr).hex()]
    if expr in (sympy.true, sympy.false):
        return ["truth", bool(expr)]
    for name in ("oo", "zoo", "nan", "pi", "E"):
        if expr is getattr(sympy, name):
            return ["constant", name]
    name = type(expr).__name__
    if _expression_classes().get(name) is not type(expr):
        raise KeyError(name)
    return [name, *map(expression_data, expr.args)]


def expression_of_data(data: list[Any]) -> Any:
    """The expression that was written.

    Raises:
        KeyError: a class that is not in the table.
    """
    sympy = _sympy()
    kind, *rest = data
    if kind == "symbol":
        if not str(rest[0]).isidentifier():
            raise ValueError(f"no name of a symbol: {rest[0]!r}")
        return sympy.Symbol(
            str(rest[0]), **{str(k): bool(v) for k, v in rest[1].items() if v is not None}
        )
    if kind == "number":
        return sympy.Rational(int(rest[0]), int(rest[1]))
    if kind == "float":
        return sympy.Float(float.fromhex(rest[0]))
    if kind == "truth":
        return sympy.true if rest[0] else sympy.false
    if kind == "constant":
        return {"oo": sympy.oo, "zoo": sympy.zoo, "nan": sympy.nan, "pi": sympy.pi, "E": sympy.E}[
            rest[0]
        ]
    cls = _expression_classes()[kind]
    args = [*map(expression_of_data, rest)]
    return cls(*args, evaluate=False) if cls in (sympy.Add, sympy.Mul, sympy.Pow) else cls(*args)


def bytes_of(t: torch.Tensor) -> bytes:
    """The elements of a dense tensor of the CPU, in order."""
    whole = t.detach().contiguous()
    return (
        ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size())
        if whole.numel()
        else b""
    )


def tensor_of(held: bytes, dtype: torch.dtype, size: list[int], stride: list[int]) -> torch.Tensor:
    """The tensor of `bytes_of`, with these strides.

    Raises:
        ValueError: so many bytes are no tensor of this size.
    """
    flat = torch.frombuffer(bytearray(held), dtype=dtype) if held else torch.empty(0, dtype=dtype)
    made = torch.empty_strided(size, stride, dtype=dtype)
    if flat.numel() != made.numel():
        raise ValueError(f"{flat.numel()} numbers for a tensor of {made.numel()}")
    made.copy_(flat.view(size))
    return made
