"""Operators, comparisons and truth: by methods of the user's as clones, else by C code."""

from __future__ import annotations

import builtins
import collections
import decimal
import operator
from collections.abc import Callable
from typing import Any

import torch

from ..subclass.values import ATOMS, is_a
from ..torch_api.numbers import PYTHON_CLASSES
from . import attributes, calls
from .current import current
from .iteration import is_lazy, iterate
from .kinds import CONTAINERS, SIMPLE, VALUES, Function, is_immutable
from .net import watched
from .running import Running
from .special import is_python
from .texts import text_of
from .values import base_of, items_of, lookup, pairs_of, size_of

Tensor = torch.Tensor
_builtins = builtins.__dict__
_SYMBOLS = frozenset(PYTHON_CLASSES)


_PLAIN = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
    "&": "and",
    "|": "or",
    "^": "xor",
    "<<": "lshift",
    ">>": "rshift",
    "divmod": "divmod",
}
_IN_C = {"and": "and_", "or": "or_"}
_DO: dict[str, Callable[[Any, Any], Any]] = {
    s: divmod if n == "divmod" else getattr(operator, _IN_C.get(n, n)) for s, n in _PLAIN.items()
}
_DO |= {s + "=": getattr(operator, "i" + n) for s, n in _PLAIN.items() if n != "divmod"}


_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def identical(negated: bool, pair: tuple[Any, Any]) -> bool:
    """``a is b``."""
    a, b = pair
    rec = current()
    if rec is not None and a is not None and b is not None:
        a, b = rec.give(a), rec.give(b)
        if type(a) in _SYMBOLS:
            a, b = _bool_of(a, b), b
        if type(b) in _SYMBOLS:
            b = _bool_of(b, a)
        if a is not b:
            rec.distinguish(a, b)
    return (a is b) is not negated


def _bool_of(symbol: Any, other: Any) -> Any:
    """``flag is True`` of a truth that is known by its guard."""
    return bool(symbol) if type(other) is bool and PYTHON_CLASSES[type(symbol)] is bool else symbol


def python_method(rec: Running, o: Any, name: str) -> Any:
    kind = type(o)
    if is_immutable(kind) or is_a(o, Tensor) or kind in _SYMBOLS:
        return None
    method = rec.special(kind, name)
    return method if type(method) is Function else None


def binary(symbol: str, pair: tuple[Any, Any]) -> Any:
    """An operator of two operands, also in place (``+=``)."""
    a, b = pair
    rec, do = current(), _DO[symbol]
    if rec is None or (type(a) in ATOMS and type(b) in ATOMS):
        return do(a, b)
    a, b = rec.give(a), rec.give(b)
    if type(a) in SIMPLE and type(b) in SIMPLE:
        return _told(do, a, b)
    name = _PLAIN[symbol.removesuffix("=")]
    if symbol.endswith("=") and (method := python_method(rec, a, f"__i{name}__")) is not None:
        value = rec.call(method, a, b)
        if value is not NotImplemented:
            return value
    left, right = python_method(rec, a, f"__{name}__"), python_method(rec, b, f"__r{name}__")
    if right and not left and _takes(a, b):
        right = None
    if left or right:
        order = [(left, a, b), (right, b, a)]
        if right is not None and type(a) is not type(b) and is_a(b, type(a)):
            order.reverse()
        for method, x, y in order:
            if method is not None and (value := rec.call(method, x, y)) is not NotImplemented:
                return value
        if (left and right) or not (is_a(a, Tensor) or is_a(b, Tensor)):
            return do(a, b)
    return _binary_of_c(rec, symbol, do, a, b)


#: operators that take item after item of what they are given
_FILLS: dict[Any, Any] = {
    **{("+=", kind): kind.__iadd__ for kind in (list, collections.deque)},
    **{("|=", kind): kind.__ior__ for kind in (dict, collections.OrderedDict)},
}


def _binary_of_c(rec: Running, symbol: str, do: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    for o in (a, b):
        if is_a(o, CONTAINERS):
            rec.touch(o)
        elif type(o) is decimal.Decimal:
            context = rec.call(decimal.getcontext)
            for name in ("prec", "rounding"):
                rec.fix(attributes.get(rec, context, name), getattr(context, name))
        elif type(o) not in SIMPLE and not is_a(o, Tensor) and type(o) not in VALUES:
            rec.deep(o, symbol)
    if symbol.endswith("=") and is_a(a, (list, dict, set, collections.deque)):
        if is_lazy(b) and not is_a(b, CONTAINERS) and (symbol, base_of(a)) in _FILLS:
            return calls.call_c(rec, _FILLS[symbol, base_of(a)].__get__(a), (b,), {})
        if not is_a(b, CONTAINERS):
            b = iterate(rec, b)
        b = rec.given(b) if is_a(b, (list, dict, set)) else b
        if symbol == "+=" and is_a(a, (list, collections.deque)):
            rec.grow(a, b := [*b])
        else:
            rec.write(a)
        return do(a, b)
    if symbol == "+" and is_a(a, (list, tuple)) and is_a(b, (list, tuple)):
        return do(
            type(a)(iterate(rec, a)) if type(a) in (list, tuple) else a,
            type(b)(iterate(rec, b)) if type(b) in (list, tuple) else b,
        )
    if symbol == "%" and type(a) is str and not is_a(b, Tensor):
        b = tuple(map(text_of, items_of(b))) if is_a(b, tuple) else text_of(b)
    return _told(lambda a, b: watched(do, (a, b), {}), rec.mapped(a), rec.mapped(b))


def _told(do: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """``do(a, b)``, whose error names the classes that the user's code sees."""
    try:
        return do(a, b)
    except TypeError as error:
        raise attributes.retold(error, a, b) from None


_TOWER = (int, float, complex, Tensor)


def _takes(a: Any, b: Any) -> bool:
    """Does C code of ``a`` compute with ``b``, which is a subclass of a number, before that is
    asked?"""
    left = next((k for k, kind in enumerate(_TOWER) if is_a(a, kind)), -1)
    right = next((k for k, kind in enumerate(_TOWER) if is_a(b, kind)), 9)
    return left >= right and not is_a(b, type(a))


def compare(name: str, pair: tuple[Any, Any]) -> Any:
    """``a < b`` and its kin."""
    a, b = pair
    rec, do = current(), getattr(operator, name)
    if rec is None or (type(a) in ATOMS and type(b) in ATOMS):
        return do(a, b)
    a, b = rec.give(a), rec.give(b)
    if type(a) in SIMPLE and type(b) in SIMPLE:
        return _told(do, a, b)
    left, right = (
        python_method(rec, a, f"__{name}__"),
        python_method(rec, b, f"__{_SWAPPED[name]}__"),
    )
    if right and not left and _takes(a, b):
        right = None
    if name == "ne" and not left and not right:
        if python_method(rec, a, "__eq__") or python_method(rec, b, "__eq__"):
            return not truth(compare("eq", pair))
    order = [(left, a, b), (right, b, a)]
    if right is not None and type(a) is not type(b) and is_a(b, type(a)):
        order.reverse()
    for method, x, y in order:
        if method is not None and (value := rec.call(method, x, y)) is not NotImplemented:
            return value
    if left or right:
        return _told(do, a, b) if name not in ("eq", "ne") else (a is b) is (name == "eq")
    return _compare_in_c(rec, name, do, a, b)


def _compare_in_c(rec: Running, name: str, do: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    equality = name in ("eq", "ne")
    if equality and type(a) is type(b) and is_a(a, (list, tuple, dict)):
        return _containers_equal(rec, a, b) is (name == "eq")
    if is_a(a, Tensor) or is_a(b, Tensor):
        return _told(do, rec.mapped(a), rec.mapped(b))
    if type(a) is type(b) and type(a) in (list, tuple):
        rec.touch(a)
        rec.touch(b)
        for x, y in zip(rec.each(a), rec.each(b), strict=False):
            if not _are_equal(x, y):
                return compare(name, (x, y))
        return do(len(a), len(b))
    for o in (a, b):
        if equality and _by_identity(o):
            continue
        rec.deep(o, name)
    if equality and (_by_identity(a) or _by_identity(b)) and a is not b:
        rec.distinguish(a, b)
    return watched(do, (a, b), {})


def _by_identity(o: Any) -> bool:
    """Does ``==`` say of this whether it is the same object?"""
    return lookup(type(o), "__eq__") is object.__eq__ and type(o) not in ATOMS


def _containers_equal(rec: Running, a: Any, b: Any) -> bool:
    rec.touch(a)
    rec.touch(b)
    if size_of(a) != size_of(b):
        return False
    if is_a(a, collections.OrderedDict) and not all(map(_are_equal, items_of(a), items_of(b))):
        return False
    if is_a(a, dict):
        rows = [(k, rec.given_item(a, k, v)) for k, v in pairs_of(a)]
        return all(
            calls.operations.in_container(rec, b, k)
            and _are_equal(value, calls.operations.item_of_container(rec, b, k))
            for k, value in rows
        )
    return all(map(_are_equal, rec.each(a), rec.each(b)))


def _are_equal(x: Any, y: Any) -> bool:
    return x is y or bool(truth(compare("eq", (x, y))))


def unary(name: str, o: Any) -> Any:
    """``-o`` and its kin."""
    rec = current()
    if rec is None:
        return getattr(operator, name)(o)
    if (method := python_method(rec, o, f"__{name}__")) is not None:
        return rec.call(method, o)
    return getattr(operator, name)(rec.give(o))


def truth(o: Any) -> Any:
    """``bool(o)``."""
    rec = current()
    kind = type(o)
    if kind is bool:
        return o
    if rec is None or kind in ATOMS:
        return bool(o)
    if is_a(o, Tensor) or kind in _SYMBOLS:
        return bool(rec.give(o))
    return bool(calls.truth_of(rec, o))


def truth_kept(o: Any) -> Any:
    """The operand of a jump that keeps it, and asks again."""
    rec = current()
    if rec is not None and is_python(type(o), "__bool__", "__len__") and not is_a(o, Tensor):
        rec.call_again(bool, o)
    else:
        truth(o)
    return o
