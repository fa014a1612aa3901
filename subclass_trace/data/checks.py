"""What a record that was read may hold: fields of the types that its class declares, and texts that
are names.

Entries are written as source, in which numbers and names of a plan stand as they are. So a
description that somebody has tampered with is refused here, before any text is made of it.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable
from typing import Any

import torch

from ..errors import DescriptionError
from ..plan import InputPlan, SharedLeaf, SideEffect, SymbolPlan, ViewStep
from ..plan import values as recipes
from ..state.place import Place
from ..state.side_effects import KNOWN_BASES
from ..state.values import short, solid_base
from ..state.writes import Table
from ..subclass import spec
from ..subclass.spec import WrapperSpec
from ..subclass.template import Template
from ..torch_api.flag_rows import Flag
from ..torch_api.operators import OpOverload

#: how a symbol's value is read off a tensor
_ATTRIBUTE = re.compile(r"(\.shape\[\d+\]|\.stride\(\d+\)|\.storage_offset\(\))?")
_KINDS_OF_SYMBOLS = ("leaf", "input", "flat")
_SHARED = ("input", "value", "detach()", "data")
#: immutable things that a recipe makes of their items by calling the class
_MADE = (frozenset, torch.Size, slice, types.MethodType)


def check(record: Any) -> Any:
    """The record itself.

    Raises:
        DescriptionError: a field is of another type, or what no plan of ours has; the path names
            it.
    """
    cls: Any = type(record)
    for name, fits in _checks(cls):
        if not fits(getattr(record, name)):
            got = short(getattr(record, name))
            raise DescriptionError(
                "a field of another type", path=f"{cls.__name__}.{name}", got=got
            )
    holds = _RULES.get(cls)
    if holds is not None and not holds(record):
        raise DescriptionError("a record that no plan has", path=cls.__name__)
    return record


@functools.cache
def _checks(cls: type) -> tuple[tuple[str, Callable[[Any], bool]], ...]:
    """The fields of a record, and what each may hold."""
    hints = typing.get_type_hints(cls, localns={**vars(spec), **vars(recipes)})
    names = getattr(cls, "_fields", None) or [f.name for f in dataclasses.fields(cls)]
    found = ((name, check_of(hints[name])) for name in names if name in hints)
    return tuple((name, fits) for name, fits in found if fits is not _anything)


def _anything(_: Any) -> bool:
    return True


def check_of(hint: Any) -> Callable[[Any], bool]:
    """Is a value of the type that an annotation says?"""
    if hint is Any or hint is object or isinstance(hint, (str, typing.ForwardRef, typing.TypeVar)):
        return _anything
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and args[1:] != (...,):
        each = [*map(check_of, args)]
        return lambda v: (
            isinstance(v, tuple)
            and len(v) == len(each)
            and all(f(x) for f, x in zip(each, v, strict=True))
        )
    parts = [check_of(arg) for arg in args if arg is not ...]
    if origin in (typing.Union, types.UnionType):
        return lambda v: any(f(v) for f in parts)
    if origin in (tuple, frozenset):
        (item,) = parts
        return lambda v: isinstance(v, origin) and all(map(item, v))
    if origin in (dict, collections.abc.Mapping):
        key, held = parts
        return lambda v: isinstance(v, dict) and all(key(k) and held(x) for k, x in v.items())
    if origin is type:
        return lambda v: isinstance(v, type)
    if hint in (int, bool, str):
        return lambda v: type(v) is hint
    kind = origin or hint
    return lambda v: isinstance(v, kind)


def is_name(text: Any) -> bool:
    """Is it a name of Python's?"""
    return type(text) is str and text.isidentifier()


def _is_made(recipe: recipes.Make) -> bool:
    return recipe.cls in _MADE or issubclass(recipe.cls, (tuple, frozenset))


def _is_new(recipe: recipes.New) -> bool:
    names = all(type(name) is str for name, _ in recipe.fields)
    return solid_base(recipe.cls) in KNOWN_BASES and names


def _is_effect(effect: SideEffect) -> bool:
    where = isinstance(effect.place, (Place, Flag, dict))
    return where and isinstance(effect.table, Table) and effect.how in ("put", "extend", "fill")


def _is_wrapper(value: WrapperSpec) -> bool:
    return issubclass(value.cls, torch.Tensor) and all(map(is_name, value.names))


_RULES: dict[type, Callable[[Any], bool]] = {
    InputPlan: lambda row: all(is_name(name) for name, _ in row.facts),
    SymbolPlan: lambda row: (
        bool(_ATTRIBUTE.fullmatch(row.attribute))
        and row.kind in _KINDS_OF_SYMBOLS
        and is_name(getattr(row.symbol, "name", None))
    ),
    SharedLeaf: lambda leaf: leaf.kind in _SHARED,
    ViewStep: lambda step: (
        isinstance(step.operation, OpOverload) and all(is_name(k) for k, _ in step.kwargs)
    ),
    SideEffect: _is_effect,
    WrapperSpec: _is_wrapper,
    Template: lambda template: all(is_name(name) for name, _ in template.constants),
    recipes.Make: _is_made,
    recipes.New: _is_new,
    recipes.Entry: lambda entry: isinstance(entry.place, Place),
}
