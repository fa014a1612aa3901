"""Objects of which each call has its own: those that a region makes (see `capture.objects_made`), or has from elsewhere."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from .context import Lent, is_buffer, is_copied, same_context, snapshot
from .parts import with_lent


class Made(Lent):
    """Stands for such an object.

    Attributes:
        value: one like it, in which the marks of others that a call has, or makes, stand for these.
        alone: it stands in one place; ``is_copied``: in a context it is copied for each call anyway.
    """

    __slots__ = ("alone", "is_copied")

    def __init__(self, number: int, value: Any, alone: bool, mark: Callable[[Any], Any]) -> None:
        """``mark``: gives the mark of what is inside of the object, or that itself."""
        self.place, self.alone = ("made", number, (), ()), alone
        self.is_copied, self.value = is_copied(value) or is_buffer(value), _like(value, mark)

    def new(self, call: Mapping[Any, Any]) -> Any:
        """One for a call, which has these objects."""
        return _like(self.value, lambda v: with_lent(v, call))

    def inside(self) -> list[Any]:
        """What it holds."""
        if isinstance(self.value, dict):
            return list(self.value.values())
        if isinstance(self.value, (list, deque)):
            return list(self.value)
        return (
            [] if isinstance(self.value, (set, bytearray)) or is_buffer(self.value) else list(vars(self.value).values())
        )

    def fresh(self) -> Any:
        """One that nobody else has."""
        return self.new(_Fresh())

    def holds(self, now: Any) -> bool:
        """Is ``now`` another one of them?"""
        if type(now) is not type(self.value):
            return False
        if self.is_copied or not hasattr(now, "__dict__"):
            return same_context(self.value, now)
        return same_context(dict(vars(self.value)), dict(vars(now)))


@dataclass(frozen=True)
class Attribute:
    """A step to an attribute; other steps are keys of items."""

    name: str


#: the place of ``(args, kwargs)`` themselves
GIVEN = -1


class Elsewhere(Lent):
    """Stands for an object that a region has from an argument or by a name: each call has its own there.

    Attributes:
        position: of the argument among the flat ones, or `GIVEN`; None where ``read`` gives what a name leads to.
        steps: from there to the object.
    """

    __slots__ = ("position", "read", "steps")

    def __init__(
        self, number: int, value: Any, position: int | None, read: Callable[[], Any] | None, steps: tuple[Any, ...]
    ) -> None:
        self.place = ("elsewhere", number, (), ())
        try:
            self.value = snapshot(value)
        except RecursionError:  # it is inside of itself
            self.value = value
        self.position, self.read, self.steps = position, read, steps

    def of(self, argument: Any) -> Any:
        """The object of a call with this argument at the position."""
        value = argument if self.read is None else self.read()
        for step in self.steps:
            value = getattr(value, step.name) if type(step) is Attribute else value[step]
        return value


class _Fresh(dict[Any, Any]):
    """Gives each mark one object."""

    def __missing__(self, mark: Lent) -> Any:
        return self.setdefault(mark, mark.fresh())


def _like(value: Any, function: Callable[[Any], Any]) -> Any:
    """A copy of an object, with ``function`` applied to what it holds."""
    if isinstance(value, (set, bytearray)) or is_buffer(value):
        return copy.copy(value)
    if isinstance(value, list):
        return list(map(function, value))
    if isinstance(value, deque):
        return deque(map(function, value), value.maxlen)
    if isinstance(value, dict):
        made = copy.copy(value)
        dict.update(made, {k: function(v) for k, v in value.items()})  # a Counter's own adds
        return made
    other = SimpleNamespace() if type(value) is SimpleNamespace else object.__new__(type(value))
    other.__dict__.update({k: function(v) for k, v in vars(value).items()})
    return other
