"""Side effects: what a call does to Python state, after its forward or its backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from .values import Given, Recipe, build


class Place(Protocol):
    """What is written: see `state.source.Holder`."""

    path: str

    def now(self, call: Any) -> Any:
        """The thing in a given call."""

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """Write one value."""

    def fill(self, thing: Any, table: Any) -> None:
        """Make it hold exactly this."""


@dataclass(frozen=True, eq=False)
class Put:
    """``holder[key] = value``; without a value: that key is taken away."""

    holder: Place
    key: Any
    value: Recipe | None


@dataclass(frozen=True, eq=False)
class Extend:
    """Items that are added at the end of a list or a deque."""

    holder: Place
    values: tuple[Recipe, ...]


@dataclass(frozen=True, eq=False)
class Fill:
    """All that a container holds, in order."""

    holder: Place
    rows: tuple[tuple[Any, Recipe], ...]


@dataclass(frozen=True, eq=False)
class Set:
    """A setting of torch or Python: ``function(value)``."""

    function: Callable[[Any], None]
    value: Recipe


SideEffect: TypeAlias = Put | Extend | Fill | Set


def recipes_of(effect: SideEffect) -> list[Recipe]:
    """The recipes of what is written."""
    if isinstance(effect, Extend):
        return list(effect.values)
    if isinstance(effect, Fill):
        return [recipe for _, recipe in effect.rows]
    return [] if effect.value is None else [effect.value]


def deliver(effects: Sequence[SideEffect], call: Any, given: Given, missing: Any) -> None:
    """Do to the sources of a call what the region did to those of its trace: all values first, one may be read by another."""
    made: list[tuple[SideEffect, Any, Any]] = []
    for effect in effects:
        thing = None if isinstance(effect, Set) else effect.holder.now(call)
        if isinstance(effect, Extend):
            made.append((effect, thing, [build(v, given) for v in effect.values]))
        elif isinstance(effect, Fill):
            made.append((effect, thing, {key: build(v, given) for key, v in effect.rows}))
        else:
            made.append((effect, thing, missing if effect.value is None else build(effect.value, given)))
    for effect, thing, value in made:
        if isinstance(effect, Put):
            effect.holder.put(thing, effect.key, value)
        elif isinstance(effect, Extend):
            effect.holder.base.extend(thing, value)  # type: ignore[attr-defined]
        elif isinstance(effect, Fill):
            effect.holder.fill(thing, value)
        else:
            effect.function(value)
