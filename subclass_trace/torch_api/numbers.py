"""Symbols that are numbers to the user's code: ``isinstance(n, int)`` is true of them.

What Python needs a number for (its text, its hash, ``int()``, an index) fixes the symbol, by a
guard of the shape environment; arithmetic and comparisons are torch's own. Torch's code, and this
package's, sees torch's classes.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .exact_numbers import (
    compares_floats_from_inside,
    decided,
    exactly,
    is_from_inside,
    refuse,
    rounded,
    step,
)
from .kinds import is_fake
from .lines import asking
from .symbols import is_known, surely
from .this_thread import replaced_here

#: code below these does not take a symbol for a number
_INSIDE = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
)
_USERS = os.path.join(_INSIDE[1], "zoo") + os.sep
_BINARY = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
]
#: larger powers are left to torch
_MOST_FACTORS = 8
_EXTREMES = ["__sym_max__", "__sym_min__"]
_OTHERS = [
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "neg",
    "pos",
    "abs",
    "trunc",
    "floor",
    "ceil",
    "round",
]


def _called_by_user(depth: int = 2) -> bool:
    """Is it code of the user's that asks, ``depth`` frames up?"""
    file = asking(sys._getframe(depth)).f_code.co_filename
    return not file.startswith(_INSIDE) or file.startswith(_USERS)


def as_python_number(n: Any) -> Any:
    """A symbolic int, float or bool as one that user code takes for a number; all else as it is."""
    cls = _CLASSES.get(type(n))
    return n if cls is None or (cls is Int and n.node.is_nested_int()) else cls(n.node)


def as_torch_symbol(n: Any) -> Any:
    """The reverse."""
    base = next((base for base, cls in _CLASSES.items() if type(n) is cls), None)
    return n if base is None else base(n.node)


def _lifted(name: str, base: Any) -> Callable[..., Any]:
    method = getattr(base, name)

    def compute(n: Any, *others: Any) -> Any:
        n, others = as_torch_symbol(n), tuple(map(as_torch_symbol, others))
        made = exactly(name, n, others)
        if made is NotImplemented:
            made = method(n, *others)
        if made is NotImplemented:  # the other one is a tensor
            return made
        exact = base is torch.SymInt and "div" not in name and "mod" not in name
        if not exact and _is_constant(made) and is_from_inside(n):
            refuse((n,))  # sympy has ``n == n``, not so of NaN, and ``n // n == 1``
        if isinstance(made, torch.SymBool) and is_known(made):
            return bool(made)  # as a branch on it would be: code may ask whether it ``is True``
        return as_python_number(made)

    return compute


def _power(n: Any, exponent: Any) -> Any:
    """Whole powers as products: torch's ``**`` of a float takes it that the base is not
    negative."""
    n, exponent = as_torch_symbol(n), as_torch_symbol(exponent)
    if any(isinstance(k, tuple(_CLASSES)) and is_from_inside(k) for k in (n, exponent)):
        return _power_from_inside(n, exponent)
    whole = type(exponent) is int
    if whole and isinstance(n, torch.SymFloat) and 0 < abs(exponent) <= _MOST_FACTORS:
        product = as_python_number(functools.reduce(operator.mul, [n] * abs(exponent)))
        return product if exponent > 0 else 1.0 / product
    if not whole and isinstance(n, torch.SymInt) and n < 0:
        return int(n) ** exponent  # complex, perhaps
    # in the call, a negative number is an error; torch would prove that there is none, at great
    # length
    if type(exponent) is float and exponent == 0.5:
        return as_python_number(torch.sym_sqrt(n))
    return as_python_number(type(n).__pow__(n, exponent))


def _power_from_inside(base: Any, exponent: Any) -> Any:
    """A power that depends on values inside tensors, where it is a real number.

    Raises:
        GuardOnDataDependentSymNode: the power of a negative number may be complex, or of an int a
            float.
    """
    numbers = (base, exponent)
    if all(isinstance(k, (int, torch.SymInt)) for k in numbers):
        if not isinstance(exponent, int) or exponent < 0:
            refuse(numbers)  # whether it is an int depends on its sign
        return as_python_number(base**exponent)
    whole = isinstance(exponent, (int, torch.SymInt)) or (
        isinstance(exponent, float) and exponent.is_integer()
    )
    is_real = whole or (isinstance(base, (int, float)) and base > 0)
    if not is_real and _called_by_user(3):
        refuse(numbers)
    # optimizers of torch's take roots of nothing that is negative, of which this is an error
    return as_python_number(step(operator.pow if is_real else math.pow, numbers))


def _power_of(n: Any, base: Any) -> Any:
    """``base ** n``."""
    return (
        _power(base, n)
        if is_from_inside(n)
        else as_python_number(_RPOW[type(n)](as_torch_symbol(n), base))
    )


def _rounded(n: Any, digits: Any = None) -> Any:
    """``round(n, digits)`` of a whole number."""
    return n if digits is None or digits >= 0 else rounded(n, int(-digits))


def _is_constant(made: Any) -> bool:
    symbolic: Any = made if isinstance(made, tuple(_CLASSES)) else None
    return symbolic is None or not symbolic.node.expr.free_symbols


#: the attribute of a symbol whose hash user code has asked for: the trace is for this number
_KEY = "_is_key"


def _is_fixed(n: Any) -> bool:
    return _is_constant(n) or _KEY in vars(n)


def _computes(base: Any, method: str) -> bool:
    """Has torch a formula? Of truths (``flag == True``) only where they are combined."""
    own = hasattr(base, method) and getattr(base, method) is not getattr(object, method, None)
    return own and (
        base is not torch.SymBool or method in ("__and__", "__or__", "__rand__", "__ror__")
    )


def _not(truth: Any) -> Any:
    """``torch.sym_not``: formulas have ``a >= b`` for the opposite of ``a < b``, not so of NaN."""
    truth = as_torch_symbol(truth)
    if compares_floats_from_inside(truth):
        refuse((truth,))
    return as_python_number(truth.__sym_not__())


def _truth(truth: Any) -> bool:
    """``bool(v < w)``: formulas have ``v <= v``, and ``v < inf``."""
    if (known := decided(truth)) is not None:
        return known
    if compares_floats_from_inside(truth):
        refuse((truth,))
    return bool(as_torch_symbol(truth))


def _number_class(base: Any, plain: Callable[[Any], Any], name: str) -> Any:
    """A class of symbols whose instances are ``plain`` numbers (int, float or bool) to user
    code."""

    def of_class(n: Any) -> Any:
        return plain if _called_by_user() else type(n)

    def asked(method: str) -> Callable[..., Any]:
        def answer(n: Any, *rest: Any) -> Any:
            by_user = _called_by_user()
            # a key of a container, which is looked up by our code too
            if by_user and method == "__hash__":
                vars(n)[_KEY] = True
            fixed = method == "__hash__" and _is_fixed(n)
            return getattr(plain(n) if fixed or by_user else as_torch_symbol(n), method)(*rest)

        return answer

    def attribute(n: Any, wanted: str) -> Any:
        """What only a number has (``n.bit_length()``)."""
        if wanted.startswith("__") or not hasattr(plain, wanted):
            raise AttributeError(wanted)
        return getattr(plain(n), wanted)

    def of_number(method: str) -> Callable[..., Any]:
        """What symbols cannot compute (``flag + 1``)."""
        return lambda n, *others: getattr(plain(n), method)(*others)

    methods = (
        *(f"__{side}{m}__" for m in _BINARY for side in ("", "r")),
        *(f"__{m}__" for m in _OTHERS),
    )
    body: dict[str, Any] = {
        method: _lifted(method, base) if _computes(base, method) else of_number(method)
        for method in methods
        if hasattr(plain, method)
    }
    body |= {method: _lifted(method, base) for method in _EXTREMES if base is not torch.SymBool}
    body |= {method: asked(method) for method in ("__hash__", "__str__", "__repr__", "__format__")}
    body |= {
        name: of_number(name)
        for name in dir(plain)
        if hasattr(base, name) and not name.startswith("_")
    }
    body |= {
        "__class__": property(of_class),
        "__getattr__": attribute,
        "__divmod__": lambda n, other: (n // other, n % other),
        "__rdivmod__": lambda n, other: (other // n, other % n),
        "__copy__": lambda n: n,
        "__deepcopy__": lambda n, memo: n,
        "__reduce_ex__": lambda n, protocol: (plain, (plain(n),)),
    }
    return type(name, (base,), body)


Int: Any = _number_class(torch.SymInt, int, "Int")
Float: Any = _number_class(torch.SymFloat, float, "Float")
Bool: Any = _number_class(torch.SymBool, bool, "Bool")
Int.__pow__ = Float.__pow__ = _power
Int.__rpow__ = Float.__rpow__ = _power_of
Int.__round__ = _rounded
Bool.__sym_not__, Bool.__bool__ = _not, _truth
_RPOW: dict[Any, Any] = {Int: torch.SymInt.__rpow__, Float: torch.SymFloat.__rpow__}
_CLASSES: dict[type, Any] = {torch.SymInt: Int, torch.SymFloat: Float, torch.SymBool: Bool}
#: how user code sees the class of a symbol
PYTHON_CLASSES: dict[type, type] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
    Int: int,
    Float: float,
    Bool: bool,
}


def as_numbers(value: Any) -> Any:
    """The symbols that a call tells (``x.shape``, ``x.item()``) are numbers to the user's code."""
    if type(value) in (torch.Size, tuple, list):
        return type(value)(map(as_numbers, value)) if holds_symbols(value) else value
    return as_python_number(value)


def plain_number(value: Any) -> Any:
    """A symbol that the trace took for a constant, as that number; all else as it is, tuples item
    by item."""
    if isinstance(value, tuple(_CLASSES)) and _is_fixed(value):
        return PYTHON_CLASSES[type(value)](value)
    if type(value) in (tuple, torch.Size):
        items = tuple(map(plain_number, value))
        return (
            value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
        )
    return value


def holds_symbols(value: Any) -> bool:
    """Is it a symbolic size, or does it hold one?"""
    if isinstance(value, dict):
        value = tuple(value.values())
    return (
        any(map(holds_symbols, value))
        if isinstance(value, (tuple, list))
        else isinstance(value, torch.SymInt)
    )


def _is_number(t: Any) -> bool:
    """Is it a traced tensor with one real number? (Eager raises another error for more of them than
    ``item()``.)"""
    return (
        is_fake(t) and t.dtype is not torch.bool and not t.is_complex() and surely(t.numel() == 1)
    )


def to_float(*args: Any) -> Any:
    """``float(n)``: of a symbol a symbol, of a traced tensor of real numbers ``n.item()``."""
    n: Any = args[0] if len(args) == 1 else None
    if _is_number(n):
        return to_float(n.item())
    if type(n) is Int:
        return as_python_number(as_torch_symbol(n).__sym_float__())
    return n if type(n) is Float else float(*args)


def to_int(*args: Any, **base: Any) -> Any:
    """``int(n)``: a symbolic int is one already; of a traced tensor of whole numbers
    ``n.item()``."""
    n: Any = args[0] if len(args) == 1 and not base else None
    if _is_number(n) and not n.is_floating_point():
        return n.item()
    return n if type(n) is Int else int(*args, **base)


#: functions of ``math`` of which torch has formulas, and that have a value for each number
_FUNCTIONS = ("cos", "sin", "tan", "tanh", "atan")


@contextlib.contextmanager
def math_of_symbols() -> Iterator[None]:
    """Inside, ``math.cos(n)`` of a symbol is one; of a number from inside a tensor Python refuses
    it, as before."""
    with contextlib.ExitStack() as stack:
        for name in _FUNCTIONS:
            compute = functools.partial(
                _function, getattr(math, name), getattr(torch, f"_sym_{name}")
            )
            stack.enter_context(replaced_here(math, name, compute))
        yield


def _function(plain: Callable[[Any], float], symbolic: Callable[[Any], Any], n: Any) -> Any:
    if type(n) in (Int, Float) and not is_from_inside(n):
        return as_python_number(symbolic(as_torch_symbol(n)))
    return plain(n)
