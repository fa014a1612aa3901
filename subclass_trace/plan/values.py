"""Recipes: how a value of Python's, the result of a call or one that is put into a source, is made
in each call.

``Make(tuple, (Output(0), Constant(3)))`` is a tuple of the first flat output and 3;
`runtime.value_code` writes it as source.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch


@dataclass(frozen=True, eq=False)
class Constant:
    """The same object in each call."""

    value: Any


@dataclass(frozen=True)
class Output:
    """Flat output number ``index`` of the region: a tensor, or a number that is computed of
    sizes."""

    index: int


@dataclass(frozen=True, eq=False)
class Entry:
    """An object that stands at a place of the call; see `state.place.Place`."""

    place: Any


@dataclass(frozen=True)
class BackReference:
    """The object that `New` number ``number`` has made."""

    number: int


@dataclass(frozen=True, eq=False)
class Make:
    """An immutable thing of others: a tuple (named or not), a frozenset, a torch.Size, a slice."""

    cls: type
    items: tuple[Recipe, ...]


@dataclass(frozen=True, eq=False)
class New:
    """An object of its own in each call; what refers to itself does so again.

    Attributes:
        number: by which `BackReference` finds it.
        cls: its class.
        items: of a list or a set, or of a tuple or frozenset with attributes; ``pairs``: of a dict.
        fields: attributes, past every ``__setattr__``.
        factory: what makes the missing values of a ``defaultdict``.
    """

    number: int
    cls: type
    items: tuple[Recipe, ...] | None = None
    pairs: tuple[tuple[Recipe, Recipe], ...] | None = None
    fields: tuple[tuple[str, Recipe], ...] = ()
    factory: Recipe | None = None


Recipe: TypeAlias = Constant | Output | Entry | BackReference | Make | New


def make(cls: type, items: Sequence[Any]) -> Any:
    """An immutable thing: a named tuple past its own ``__new__``, which may take other
    arguments."""
    if issubclass(cls, tuple) and cls is not torch.Size and not hasattr(cls, "n_sequence_fields"):
        return tuple(items) if cls is tuple else tuple.__new__(cls, items)
    if issubclass(cls, frozenset):
        return frozenset.__new__(cls, items)
    made: Any = cls
    return made(*items) if cls in (slice, types.MethodType) else made(items)


def holds_its_items(cls: type) -> bool:
    """Are instances made with their items, which cannot be put there later?"""
    return issubclass(cls, (tuple, frozenset))


def dict_setter(cls: type) -> Callable[[Any, Any, Any], None]:
    """How an item is set past the class's own ``__setitem__``: an OrderedDict keeps the order of
    its keys besides."""
    return (
        collections.OrderedDict.__setitem__
        if issubclass(cls, collections.OrderedDict)
        else dict.__setitem__
    )


def empty(cls: type) -> Any:
    """An instance for which no code of the class's ran, neither ``__new__`` nor ``__init__``."""
    base: Any = next(
        c for c in cls.__mro__ if isinstance(vars(c).get("__new__"), types.BuiltinFunctionType)
    )
    return base.__new__(cls)


def entries_in(recipe: Recipe) -> Iterator[Entry]:
    """What a recipe takes of the call itself."""
    if isinstance(recipe, Entry):
        yield recipe
    elif isinstance(recipe, Make):
        for item in recipe.items:
            yield from entries_in(item)
    elif isinstance(recipe, New):
        pairs = (part for pair in recipe.pairs or () for part in pair)
        factory = () if recipe.factory is None else (recipe.factory,)
        for item in (*(recipe.items or ()), *pairs, *(item for _, item in recipe.fields), *factory):
            yield from entries_in(item)


def accessors(recipe: Recipe, path: str) -> Iterator[tuple[int, str]]:
    """(number of a flat output, where it stands), for each that a recipe needs.

    >>> list(accessors(Make(tuple, (Output(1), Output(0))), "result"))
    [(1, 'result[0]'), (0, 'result[1]')]
    """
    if isinstance(recipe, Output):
        yield recipe.index, path
    elif isinstance(recipe, New):
        for k, item in enumerate(recipe.items or ()):
            yield from accessors(item, f"{path}[{k}]")
        for key, item in recipe.pairs or ():
            text = (
                repr(key.value)
                if isinstance(key, Constant) and isinstance(key.value, (str, int, float))
                else "..."
            )
            yield from accessors(item, f"{path}[{text}]")
        for name, item in recipe.fields:
            yield from accessors(item, f"{path}.{name}")
    elif isinstance(recipe, Make):
        names = getattr(recipe.cls, "_fields", None)
        for k, item in enumerate(recipe.items):
            yield from accessors(item, f"{path}[{k}]" if names is None else f"{path}.{names[k]}")
