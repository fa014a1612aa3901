"""Results of a program, which are dense tensors, as what the function gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import ExportError
from ..plan.values import (
    BackReference,
    Constant,
    Make,
    New,
    Output,
    Recipe,
    dict_setter,
    empty,
    entries_in,
    holds_its_items,
    make,
)


def check_recipe(recipe: Recipe) -> None:
    """A program gives tensors and numbers alone.

    Raises:
        ExportError: the result holds an object of the call.
    """
    for entry in entries_in(recipe):
        fix = "return what is in it"
        raise ExportError(
            "the result holds an object that stands in the call", path=entry.place, fix=fix
        )


def made(recipe: Recipe, outputs: Sequence[Any], known: dict[int, Any] | None = None) -> Any:
    """The value that a recipe makes of flat outputs."""
    known = {} if known is None else known

    def of(part: Recipe) -> Any:
        return made(part, outputs, known)

    if isinstance(recipe, Output):
        return outputs[recipe.index]
    if isinstance(recipe, Constant):
        return recipe.value
    if isinstance(recipe, BackReference):
        return known[recipe.number]
    if isinstance(recipe, Make):
        return make(recipe.cls, [*map(of, recipe.items)])
    assert isinstance(recipe, New)
    if holds_its_items(recipe.cls):
        new = make(recipe.cls, [*map(of, recipe.items or ())])
    else:
        new = empty(recipe.cls)
    known[recipe.number] = new
    _fill(new, recipe, of)
    return new


def _fill(new: Any, recipe: New, of: Any) -> None:
    for item in () if holds_its_items(recipe.cls) else recipe.items or ():
        list.append(new, of(item)) if isinstance(new, list) else set.add(new, of(item))
    for key, value in recipe.pairs or ():
        dict_setter(recipe.cls)(new, of(key), of(value))
    for name, value in recipe.fields:
        object.__setattr__(new, name, of(value))
    if recipe.factory is not None:
        new.default_factory = of(recipe.factory)


def numbers_in(recipe: Recipe) -> Iterator[int]:
    """The flat outputs that a recipe needs."""
    if isinstance(recipe, Output):
        yield recipe.index
    elif isinstance(recipe, Make):
        for item in recipe.items:
            yield from numbers_in(item)
    elif isinstance(recipe, New):
        parts = [
            *(recipe.items or ()),
            *(p for pair in recipe.pairs or () for p in pair),
            *(v for _, v in recipe.fields),
        ]
        for part in parts:
            yield from numbers_in(part)
