"""Values as they are, past any code of the user's: their classes, namespaces and slots."""

from __future__ import annotations

import collections
import enum
import gc
import types
from collections.abc import Collection, Iterator
from typing import Any

import torch

from ..subclass.values import ATOMS, is_a


class _Missing:
    def __repr__(self) -> str:
        return "nothing"

    def __reduce__(self) -> str:
        return "MISSING"


#: there is no value at a place
MISSING: Any = _Missing()


def lookup(cls: type, name: str) -> Any:
    """The class attribute by the order of bases, as C code finds it: no code of a metaclass
    runs."""
    for base in type.__dict__["__mro__"].__get__(cls):
        held = type.__dict__["__dict__"].__get__(base)
        if name in held:
            return held[name]
    return MISSING


def lookup_after(key: tuple[type, type, str]) -> Any:
    """As ``super`` finds it: of a class, among the bases behind another one."""
    cls, after, name = key
    mro = cls.__mro__
    for base in mro[mro.index(after) + 1 :]:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def has(cls: type, name: str) -> bool:
    """Has a class, or a base of it, the attribute?"""
    return lookup(cls, name) is not MISSING


def solid_base(cls: type) -> type:
    """The class of C whose layout and state its instances have."""
    made = (c for c in cls.__mro__ if isinstance(vars(c).get("__new__"), types.BuiltinFunctionType))
    return next(made, cls)


def same_keys(a: Collection[Any], b: Collection[Any]) -> bool:
    """Have two tables the same keys in the same order? (A key may be a tensor, which has no truth
    value.)"""
    return len(a) == len(b) and all(
        x is y or (not is_a(x, torch.Tensor) and x == y) for x, y in zip(a, b, strict=True)
    )


#: modules whose values say in C, or in code of Python's, what they are
_PRINTED = ("datetime", "decimal", "fractions", "numpy", "pathlib")


def short(value: Any) -> str:
    """A value in a message: never the contents of a tensor, never code of the user's."""
    kind = type(value)
    if kind in ATOMS or value is MISSING or kind.__module__ in _PRINTED:
        text = repr(value)
    elif is_a(value, enum.Enum):
        text = f"{kind.__qualname__}.{value._name_}"
    else:
        text = f"a {kind.__qualname__}"
    return text if len(text) < 80 else text[:77] + "..."


_BUILT_IN = (
    list,
    torch.Size,
    tuple,
    collections.OrderedDict,
    dict,
    set,
    frozenset,
    collections.deque,
)


def base_of(container: Any) -> Any:
    """The built-in container whose methods tell what it holds, past those of a subclass."""
    return next((kind for kind in _BUILT_IN if is_a(container, kind)), type(container))


def items_of(container: Any) -> Iterator[Any]:
    """The items of a list, a tuple, a deque or a set; the keys of a dict."""
    items: Iterator[Any] = base_of(container).__iter__(container)
    return items


def pairs_of(table: Any) -> Any:
    """The items of a dict, past its class: an OrderedDict has an order of its own."""
    return base_of(table).items(table)


def dict_of_class(cls: type) -> dict[str, Any]:
    """The dict behind the proxy: read for its version, never written."""
    return next(d for d in gc.get_referents(cls.__dict__) if type(d) is dict)


def size_of(container: Any) -> int:
    """How many there are."""
    size: int = base_of(container).__len__(container)
    return size


def factory_of(value: Any) -> Any:
    """What makes the missing values of a ``defaultdict``; None of another dict."""
    return _FACTORY.__get__(value) if is_a(value, collections.defaultdict) else None


_FACTORY: Any = vars(collections.defaultdict)["default_factory"]
