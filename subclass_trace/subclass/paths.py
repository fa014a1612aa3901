"""Printable accessors: where in the arguments a value sits.

>>> str(Path("args").item(0).attr("weight").attr("_local_tensor"))
'args[0].weight._local_tensor'
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Path:
    """A path is a root name and steps that print as code. Making one is cheap: text is built only
    by ``str``.

    The idea is optree's ``PyTreeAccessor``.
    """

    root: str
    steps: tuple[str, ...] = ()

    def attr(self, name: str) -> Path:
        """The path of attribute ``name`` of this value."""
        return Path(self.root, (*self.steps, f".{name}"))

    def item(self, key: object) -> Path:
        """The path of item ``key`` of this value."""
        return Path(self.root, (*self.steps, f"[{key!r}]"))

    def __str__(self) -> str:
        return self.root + "".join(self.steps)
