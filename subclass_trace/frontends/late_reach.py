"""What a walk (`reach`) leaves aside: code that only runs in backwards, which is looked at there (`late_code`)."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .mentions import Mentions, mentions


class LateParts:
    """Of one walk.

    Attributes:
        todo: looks at such code after all. ``places``: the slots that lead there.
        hooks: names of attributes that are such code.
    """

    def __init__(self) -> None:
        self.todo: list[Callable[[], None]] = []
        self.places = set[tuple[int, str | None]]()
        self.hooks = set[str]()
        self._codes: list[types.CodeType] = []

    def look(self, names: Iterable[str]) -> None:
        """The code that is reached names these: may the function run a backward itself? Then nothing is left aside."""
        if not {"grad", "vjp"}.isdisjoint(names):
            while self.todo:
                self.todo.pop()()

    def is_place(self, holder: Any, key: str | None) -> bool:
        """Does a slot lead to such code? From now on it does not."""
        known = (id(holder), key) in self.places
        self.places.discard((id(holder), key))
        return known

    def add(self, said: Mentions, walk_code: Callable[[types.CodeType], None], reads: set[str]) -> None:
        """What a piece of code registers as hooks."""
        self.hooks |= said.late
        self._codes += said.late_inside
        for inner in said.late_inside:
            self.todo.append(lambda inner=inner: walk_code(inner))  # type: ignore[misc]
        if said.late:
            self.todo.append(lambda: reads.update(said.late))

    def names(self, methods: Iterable[Mapping[str, tuple[types.FunctionType, ...]]]) -> set[str]:
        """The attributes that such code names. ``methods``: of the classes that were met."""
        codes = [*self._codes]
        codes += [f.__code__ for found in methods for n in self.hooks for f in found.get(n, ())]
        found = set[str]()
        while codes:
            said = mentions(codes.pop())
            found |= said.reads | said.calls | said.counted | said.stores
            codes += [*said.inside, *said.late_inside]
        return found
