"""What the members of a class run: the functions behind methods and properties, and the names in their code."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any


def mentions(member: Any, names: frozenset[str]) -> bool:
    """Does the code of a member of a class have one of these names, or strings, in it?"""
    return any(_has(f.__code__, names) for f in functions_in(member) if isinstance(f, types.FunctionType))


def functions_in(member: Any) -> Iterator[Any]:
    """A member of a class, and what a property or a method of a class runs."""
    yield member
    for kind, names in _HOLD.items():
        if issubclass(type(member), kind):  # isinstance would ask a member that stands for something else
            yield from (vars(member).get(n) if kind is types.FunctionType else getattr(member, n) for n in names)


_HOLD: dict[type, tuple[str, ...]] = {
    types.FunctionType: ("__wrapped__",),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
    functools.partialmethod: ("func",),
}


def _has(code: types.CodeType, names: frozenset[str]) -> bool:
    if names & {*code.co_names, *(c for c in code.co_consts if isinstance(c, str))}:
        return True
    return any(_has(c, names) for c in code.co_consts if isinstance(c, types.CodeType))


def names_in(code: types.CodeType) -> Iterator[str]:
    """The names in a function's code, and in that of the functions inside of it."""
    yield from code.co_names
    for inside in code.co_consts:
        if isinstance(inside, types.CodeType):
            yield from names_in(inside)
