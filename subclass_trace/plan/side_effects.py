"""Side effects: what a call does to Python state, after its forward or its backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from .values import Recipe


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
