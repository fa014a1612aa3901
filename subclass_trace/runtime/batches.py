"""Reads that C code compares in one go, for `pins`."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from ..state.values import dict_of_class
from ..subclass.values import ATOMS, is_a, same
from ..torch_api import words
from ..torch_api.guards import dict_version
from ..torch_api.owners import Owner, owner_of
from .source import Code

_of_instance = object.__getattribute__


class Batch:
    """Reads of one kind that have to give the same again: `getter` mapped over columns, compared by
    identity (``by_id``) or by ``==``. Code in other threads may compare while this is filled: what
    is not whole is not equal."""

    def __init__(self, name: str, getter: Callable[..., Any], *, by_id: bool) -> None:
        self.name, self.getter, self.by_id = name, getter, by_id
        self.columns: tuple[list[Any], ...] = ([],)
        self.known: list[Any] = []
        self.next: list[tuple[Any, ...]] | None = []
        self.kept: list[Any] = []
        self.free: list[int] = []

    def add(self, row: tuple[Any, ...]) -> int:
        """One read more; its number. Before `commit` it is compared from then on."""
        if self.next is not None:
            self.next.append(row)
            return len(self.next) - 1
        if self.free:
            k = self.free.pop()
            for column, part in zip(self.columns, row, strict=True):
                column[k] = part
        else:
            k = len(self.known)
            self.known.append(None)
            self.kept += [None] * self.by_id
            for column, part in zip(self.columns, row, strict=True):
                column.append(part)
        given = self.getter(*row)
        self.pin(k, id(given) if self.by_id else given)
        return k

    def commit(self) -> None:
        """Compare what was added, instead of what was compared before. What is compared by id is
        kept alive: no other object gets its id."""
        columns = [*zip(*(self.next or ()), strict=True)] or [()] * len(self.columns)
        given = [*map(self.getter, *columns)]
        self.known.clear()
        if len(columns) > len(self.columns):
            self.columns = tuple([] for _ in columns)
        for column, values in zip(self.columns, columns, strict=True):
            column[:] = values
        self.known[:] = map(id, given) if self.by_id else given
        self.next, self.kept, self.free = None, given if self.by_id else [], []

    def drop(self, k: int) -> None:
        """Number ``k`` is compared no more: the next one takes its place, until then the first one
        is compared twice."""
        self.free.append(k)
        for column in self.columns:
            column[k] = column[0]
        self.known[k] = self.known[0]

    def now(self) -> list[Any]:
        """What they give."""
        given = map(self.getter, *self.columns)
        return [*map(id, given)] if self.by_id else [*given]

    def pin(self, k: int, given: Any) -> None:
        """Number ``k`` gives this from now on."""
        if self.by_id:
            self.kept[k] = self.getter(*(column[k] for column in self.columns))
        self.known[k] = given

    def code(self, s: Code) -> str:
        """An expression that tells whether they give something else."""
        columns = ", ".join(s.held(column, self.name) for column in self.columns)
        given = f"map({s.held(self.getter, f'{self.name}_of')}, {columns})"
        known = s.held(self.known, f"{self.name}_known")
        return f"[*{f'map(id, {given})' if self.by_id else given}] != {known}"


def batches() -> dict[str, Batch]:
    of = operator.attrgetter
    by_value: dict[str, Callable[..., Any]] = {
        "words": words.value_of,
        "tables": dict_version,
        "types": type,
        "lengths": len,
    }
    by_id: dict[str, Callable[..., Any]] = {
        "spaces": of("__dict__"),
        "mros": of("__mro__"),
        "codes": of("__code__"),
        "defaults": of("__defaults__"),
        "named": of("__kwdefaults__"),
        "cells": of("cell_contents"),
        "slots": _of_instance,
        "lists": list.__getitem__,
    }
    found = {name: Batch(name, getter, by_id=False) for name, getter in by_value.items()}
    return found | {name: Batch(name, getter, by_id=True) for name, getter in by_id.items()}


#: the words of memory that tell what a batch does
WORDS: dict[str, Callable[[Any], Any]] = {
    "tables": words.dict_word,
    "types": words.type_word,
    "codes": words.code_word,
    "cells": words.cell_word,
    "spaces": words.space_word,
}


_classes: dict[int, tuple[type, dict[str, Any]]] = {}


def own_dict(cls: type) -> dict[str, Any]:
    """The dict of a class, found once."""
    found = _classes.get(id(cls))
    if found is None or found[0] is not cls:
        found = _classes[id(cls)] = cls, dict_of_class(cls)
    return found[1]


def is_plain(value: Any) -> bool:
    """Is it of a class whose objects keep it?"""
    kind = type(value)
    return (
        kind in (dict, list, tuple, set, frozenset, types.MethodType) or not kind.__flags__ & 1 << 9
    )


def same_read(now: Any, value: Any) -> bool:
    """Are these two the same, made anew by each read?"""
    kind = type(value)
    if kind in (types.MethodType, types.BuiltinFunctionType) and type(now) is kind:
        return now.__self__ is value.__self__ and bool(_of(now) == _of(value))
    if kind in ATOMS or kind is tuple:
        return same(now, value)
    # A member of an enumeration of C++, modes of DTensor: made anew by each read.
    return (
        type(now) is kind
        and owner_of(kind) in (Owner.TORCH, Owner.OURS)
        and not is_a(value, torch.Tensor)
        and bool(now == value)
    )


def _of(method: Any) -> Any:
    """What a bound method calls: its function, or its name."""
    return getattr(method, "__func__", method.__name__)
