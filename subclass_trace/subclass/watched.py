"""Values that tell when anybody does more with them than to pass them on.

>>> used = []
>>> number = watched(4, lambda: used.append("number"))
>>> kept = [number]; isinstance(number, int), used
(True, [])
>>> kept[0] > 3, used
(True, ['number'])
>>> items = watched_whole([1, 2], lambda: used.append("items"))
>>> kept = [items]; isinstance(items, list), used
(True, ['number'])
>>> len(kept[0]), used
(2, ['number', 'items'])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: what making, keeping and looking up an object needs
_SILENT = frozenset(
    {"__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__doc__"}
    | {"__init_subclass__", "__subclasshook__", "__sizeof__"}
)
_OF_CLASSES = frozenset({"__dict__", "__module__", "__qualname__", "__slots__", "__weakref__"})


def watched(value: Any, note: Callable[[], object]) -> Any:
    """The same int, float, complex, str or bytes, of a subclass that calls ``note`` when it is computed with, compared,
    hashed, printed or asked for anything. C code that reads the number itself is not seen."""
    kind = type(value)
    if kind not in _CLASSES:
        _CLASSES[kind] = _class_of(kind)
    made = _CLASSES[kind](value)
    made._note = note
    return made


def watched_whole(value: Any, note: Callable[[], object]) -> Any:
    """What passes for a container or an array, and calls ``note`` before it answers whatever it is asked.

    It is none, so that C code which reads such a value without asking raises.
    """
    kind = type(value)
    if kind not in _WHOLE_CLASSES:
        _WHOLE_CLASSES[kind] = _whole_class_of(kind)
    return _WHOLE_CLASSES[kind](value, note)


_CLASSES: dict[type, type] = {}
_WHOLE_CLASSES: dict[type, type] = {}


class _Whole:
    __slots__ = ("_note", "_value")

    def __init__(self, value: Any, note: Callable[[], object]) -> None:
        self._value, self._note = value, note


def _whole_class_of(kind: type) -> type:
    names: dict[str, Any] = {"__slots__": (), "__class__": property(lambda self: kind)}
    for name, value in ((n, v) for k in reversed(kind.__mro__) for n, v in vars(k).items()):
        if name not in _SILENT | _OF_CLASSES:
            names[name] = _answering(name, callable(value))
    return type(kind.__name__, (_Whole,), names)


def _answering(name: str, is_method: bool) -> Any:
    def found(self: Any) -> Any:
        self._note()
        return getattr(self._value, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return found(self)(*args, **kwargs)

    return method if is_method else property(found)


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
