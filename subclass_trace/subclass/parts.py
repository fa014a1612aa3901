"""The parts of contexts, and objects there that results have from the inputs ("device mesh in, device mesh out", PyTorch PR
173270).

A class often hands its context on (``cls(out, x.config)``). In eager mode the result then has the very object of the input,
so that what changes one changes the other. A traced wrapper has a copy of what can be changed in place; where a result has
that very copy, its spec has a mark (`Lent`) there, and a call hands on the object of its own input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .context import Lent, Part, map_parts
from .spec import OpaqueSpec, Spec, WrapperSpec

#: the parts that lead to a value of a context, from outside in
Steps = tuple[Part, ...]


def mark_source(mark: Lent, variable: str, name_of: Callable[[Any], str]) -> str:
    """The expression that reads it, as source. ``variable``: the input; ``name_of``: what stands there for a key."""
    _, _, names, steps = mark.place
    found = ".".join((variable, *names))
    if steps is None:
        return found
    found += ".__tensor_flatten__()[1]"
    for kind, key in steps:
        found = f"{found}[{name_of(key)}]" if kind == "item" else f"{found}.{key}"
    return found


def with_lent(value: Any, call: Mapping[Any, Any]) -> Any:
    """An attribute of a result with the objects of a call in the place of marks."""
    return call[value] if isinstance(value, Lent) else map_parts(value, lambda v: with_lent(v, call))


def marks_in(specs: Iterable[Spec | None], attributes: Iterable[Any] = ()) -> tuple[Lent, ...]:
    """The marks in specs and in attributes of results, each once."""
    found: dict[Lent, None] = {}

    def note(context: Any) -> Any:
        if isinstance(context, Lent):
            found[context] = None
            return context
        return map_parts(context, note)

    def look(spec: Spec | None) -> None:
        if isinstance(spec, OpaqueSpec):
            note(spec.value)
        if isinstance(spec, WrapperSpec):
            note(spec.context)
            for inner in spec.inners:
                look(inner)

    for spec in specs:
        look(spec)
    for value in attributes:
        note(value)
    return tuple(found)
