"""Recipes as source: the result of a call, and what is put into sources, straight down. See
`plan.results.values`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..plan import SideEffect
from ..plan.values import (
    BackReference,
    Constant,
    Entry,
    Make,
    New,
    Output,
    Recipe,
    dict_setter,
    empty,
    holds_its_items,
    make,
)
from ..state.place import Place
from ..state.values import MISSING
from .source import Code

_PLAIN = (list, dict, set)


class ValueEmitter:
    """Writes expressions for recipes; objects that refer to themselves are made by lines before.

    Args:
        outputs: expressions for the flat outputs.
        read: gives the expression of what stands at a place.
    """

    def __init__(self, source: Code, outputs: Sequence[str], read: Callable[[Any], str]) -> None:
        self.source, self.outputs, self.read = source, outputs, read
        self.made: dict[int, str] = {}

    def value(self, recipe: Recipe) -> str:
        """An expression for a recipe."""
        s = self.source
        if isinstance(recipe, Constant):
            return s.constant(recipe.value, "value")
        if isinstance(recipe, Output):
            return self.outputs[recipe.index]
        if isinstance(recipe, Entry):
            return self.read(recipe.place)
        if isinstance(recipe, BackReference):
            return self.made[recipe.number]
        if isinstance(recipe, Make):
            items = "".join(f"{self.value(item)}, " for item in recipe.items)
            return (
                f"({items})"
                if recipe.cls is tuple
                else f"{s.bind('make', make)}({s.constant(recipe.cls)}, ({items}))"
            )
        return self._new(recipe)

    def _new(self, recipe: New) -> str:
        s, name = self.source, self.source.name("n")
        self.made[recipe.number] = name
        complete = holds_its_items(recipe.cls)
        if complete:
            items = "".join(f"{self.value(item)}, " for item in recipe.items or ())
            s.line(f"{name} = {s.bind('make', make)}({s.constant(recipe.cls)}, ({items}))")
        elif recipe.cls in _PLAIN:
            s.line(f"{name} = {recipe.cls.__name__}()")
        else:
            s.line(f"{name} = {s.bind('empty', empty)}({s.constant(recipe.cls)})")
        if recipe.factory is not None:
            s.line(f"{name}.default_factory = {self.value(recipe.factory)}")
        if recipe.pairs:
            put = s.constant(dict_setter(recipe.cls), "put")
            for key, item in recipe.pairs:
                known, value = self.value(key), self.value(item)
                s.line(
                    f"{name}[{known}] = {value}"
                    if recipe.cls is dict
                    else f"{put}({name}, {known}, {value})"
                )
        if recipe.items and not complete:
            base: Any = next(
                c for c in recipe.cls.__mro__ if c.__module__ in ("builtins", "collections")
            )
            method = "update" if issubclass(recipe.cls, set) else "extend"
            add = (
                f"{name}.{method}("
                if recipe.cls in _PLAIN
                else f"{s.constant(getattr(base, method))}({name}, "
            )
            s.line(f"{add}({''.join(f'{self.value(item)}, ' for item in recipe.items)}))")
        if recipe.fields:
            space = s.name("d")
            s.line(f"{space} = {name}.__dict__")
            for field, item in recipe.fields:
                s.line(f"{space}[{field!r}] = {self.value(item)}")
        return name


def emit_effects(emitter: ValueEmitter, effects: Sequence[SideEffect]) -> None:
    """Lines that do to the things of a call what the region does: all values first."""
    s, rows = emitter.source, list[tuple[SideEffect, str, str]]()
    for effect in effects:
        values = [emitter.value(v) for v in effect.values]
        thing = (
            emitter.read(effect.place)
            if isinstance(effect.place, Place)
            else s.held(effect.place, "thing")
        )
        value = f"({''.join(f'{v}, ' for v in values)})"
        if effect.how == "put":
            value = values[0] if values else s.bind("MISSING", MISSING)
        elif effect.how == "fill":
            value = f"dict(zip({s.constant(effect.keys, 'keys')}, {value}))"
        rows.append((effect, thing, _named(s, value)))
    for effect, thing, value in rows:
        key = f"{s.constant(effect.keys[0], 'key')}, " if effect.how == "put" else ""
        s.line(f"{s.held(getattr(effect.table, effect.how))}({thing}, {key}{value})")


def _named(s: Code, expression: str) -> str:
    name = s.name("v")
    s.line(f"{name} = {expression}")
    return name
