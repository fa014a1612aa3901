"""Side effects: what a call does to Python state, after its forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .values import Recipe


@dataclass(frozen=True, eq=False)
class SideEffect:
    """One thing that is written.

    Attributes:
        holder: what holds it; see `state.source.Holder`.
        how: "put": ``holder[key] = value``, or the key is taken away where there is no value; "extend": values at the end of a
            list or a deque; "fill": all that a container holds, in order.
    """

    holder: Any
    how: str
    keys: tuple[Any, ...]
    values: tuple[Recipe, ...]
