"""Python numbers that a call brings, and where they stand: among its arguments, or in what the function reaches.

>>> settings = {"heads": [4, 8]}
>>> place = NumberPlace(Path("settings").item("heads").item(1), holder=settings, key="heads", items=(1,))
>>> place.read(), str(place.path)
(8, "settings['heads'][1]")
"""

from __future__ import annotations

import functools
import operator
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedError
from .paths import Path


@dataclass(frozen=True, eq=False)
class NumberPlace:
    """Where Python code finds a number.

    Attributes:
        path: for people.
        position: among the flat arguments of a call; None for another place.
        holder: a closure cell, or a dict (of globals, of an object's attributes, or a view of those), and then ``key`` in it.
        items: the keys that lead on from what stands there, through lists and dicts.
    """

    path: Path
    position: int | None = None
    holder: Any = None
    key: str | None = None
    items: tuple[Any, ...] = ()

    def read(self, flat: Sequence[Any] = ()) -> Any:
        """What stands there now, in a call with these flat arguments."""
        if self.position is not None:
            return flat[self.position]
        start = self.holder.cell_contents if self.key is None else self.holder[self.key]
        return functools.reduce(operator.getitem, self.items, start)

    def container(self) -> Any:
        """What holds it: a cell, a dict or a list; for a place that is no flat argument."""
        if not self.items:
            return self.holder
        start = self.holder.cell_contents if self.key is None else self.holder[self.key]
        return functools.reduce(operator.getitem, self.items[:-1], start)

    def write(self, value: Any) -> None:
        """Put something else there; not for a flat argument."""
        container = self.container()
        if isinstance(container, types.CellType):
            container.cell_contents = value
        else:
            container[self.items[-1] if self.items else self.key] = value


class _Container:
    """A list, a dict (or the attributes of an object with ``__slots__``, seen as one) or a cell in which numbers are
    replaced, and what it holds."""

    def __init__(self, place: NumberPlace) -> None:
        self.holder: Any = place.container()
        self.before = self._content()
        self.while_replaced: dict[Any, Any] = {}

    def _content(self) -> dict[Any, Any]:
        held = self.holder
        if isinstance(held, types.CellType):
            return {None: held.cell_contents}
        return dict(enumerate(held)) if isinstance(held, (list, deque)) else {key: held[key] for key in held}

    def note(self) -> None:
        """The numbers are replaced now."""
        self.while_replaced = self._content()

    def leave(self) -> bool:
        """Make it what it was; False where something else was done to it."""
        now = self._content()
        same = list(now) == list(self.while_replaced) and all(now[k] is v for k, v in self.while_replaced.items())
        if isinstance(self.holder, types.CellType):
            self.holder.cell_contents = self.before[None]
            return same
        if isinstance(self.holder, (list, deque)):
            if not same:
                self.holder.clear()
                self.holder.extend(self.before.values())
        elif list(now) != list(self.before):  # in their old order
            for key in now:
                del self.holder[key]
        for key, value in self.before.items():
            if not same or self.holder[key] is not value:
                self.holder[key] = value
        return same


def real_numbers(places: Iterable[NumberPlace]) -> list[tuple[NumberPlace, Any]]:
    """What stands at these places now; without those that are gone."""
    found = []
    for place in places:
        with suppress(AttributeError, LookupError, TypeError, ValueError):
            found.append((place, place.read()))
    return found


@contextmanager
def standing_in(rows: Sequence[tuple[NumberPlace, Any]]) -> Iterator[None]:
    """Inside, these values stand in their places. Afterwards the containers are as they were.

    Raises:
        UnsupportedError: code inside has changed one of them otherwise than by assigning to it.
    """
    found: dict[int, _Container] = {}
    try:
        for place, _ in rows:
            container = place.container()
            found.setdefault(id(getattr(container, "value", container)), _Container(place))  # an object's, or its own
            place.read()
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # a backward that is traced later
        raise UnsupportedError(
            "a number that the region was traced with is gone", path=place.path, got=f"{type(error).__name__}: {error}"
        ) from error
    for place, value in rows:
        place.write(value)
    for container in found.values():
        container.note()
    changed = False
    try:
        yield
    finally:
        for container in found.values():
            changed |= not container.leave()
    if changed:
        raise UnsupportedError(
            "the region changes a container whose numbers differ between calls",
            path=rows[0][0].path,
            expected="numbers that are assigned or appended",
            got="items that were inserted, moved or removed",
            fix="assign a new list, or do this outside of the region",
        )
