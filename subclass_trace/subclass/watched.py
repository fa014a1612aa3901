"""Plain values that tell when anybody does more with them than to pass them on.

>>> used = []
>>> number = watched(4, lambda: used.append("number"))
>>> kept = [number]; isinstance(number, int), used
(True, [])
>>> kept[0] > 3, used
(True, ['number'])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: what making, keeping and looking up an object needs
_SILENT = frozenset(
    {"__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__doc__"}
    | {"__init_subclass__", "__subclasshook__", "__sizeof__"}
)


def watched(value: Any, note: Callable[[], object]) -> Any:
    """The same int, float, complex, str or bytes, of a subclass that calls ``note`` when it is computed with, compared,
    hashed, printed or asked for anything. C code that reads the number itself is not seen."""
    kind = type(value)
    if kind not in _CLASSES:
        _CLASSES[kind] = _class_of(kind)
    made = _CLASSES[kind](value)
    made._note = note
    return made


_CLASSES: dict[type, type] = {}


def _class_of(base: type) -> type:
    names: dict[str, Any] = {}
    for name in dir(base):
        if name in _SILENT:
            continue
        found = getattr(base, name)
        names[name] = _noting(found) if callable(found) else property(_noting(getattr(base, name).__get__))
    return type(base.__name__, (base,), names)


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._note()
        return function(self, *args, **kwargs)

    return noting
