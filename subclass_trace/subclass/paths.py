"""Printable accessors: where in the arguments a value sits.

>>> str(Path("args").item(0).attr("weight").attr("_local_tensor"))
'args[0].weight._local_tensor'
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_STEPS = re.compile(r"^\w+|\.\w+|\[(?:'[^']*'|[^\[\]])*\]")


@dataclass(frozen=True, slots=True)
class Path:
    """A path is a root name and steps that print as code. Making one is cheap: text is built only by ``str``.

    The idea is optree's ``PyTreeAccessor``.
    """

    root: str
    steps: tuple[str, ...] = ()

    @staticmethod
    def of(text: str) -> Path:
        """The path that prints as ``text``.

        >>> Path.of("args[0].weight['k']").steps
        ('[0]', '.weight', "['k']")
        """
        root, *steps = _STEPS.findall(text) or [""]
        return Path(root, tuple(steps)) if "".join([root, *steps]) == text else Path(text)

    def attr(self, name: str) -> Path:
        """The path of attribute ``name`` of this value."""
        return Path(self.root, (*self.steps, f".{name}"))

    def item(self, key: object) -> Path:
        """The path of item ``key`` of this value."""
        return Path(self.root, (*self.steps, f"[{key!r}]"))

    def __str__(self) -> str:
        return self.root + "".join(self.steps)
