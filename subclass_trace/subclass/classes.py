"""What guards keep of the classes of objects in contexts.

An attribute that an object does not hold is looked for in its class, where it is the same for all objects of the class
(``Config.scale = 2``). See docs/notes/contexts.md.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .arguments import ABSENT, FOREIGN, attribute_inside
from .context import is_atom, same_context
from .members import functions_in, names_in


class KeptClass:
    """What a class and its bases held in some attributes.

    Attributes:
        names: of the attributes; ``path``: where an object of the class was met.
        parts: what `kept` makes of what they hold.
    """

    __slots__ = ("cls", "names", "parts", "path")

    def __init__(self, cls: type, names: Iterable[str], path: str, keep: Callable[[Any], Any]) -> None:
        self.cls, self.names, self.path = cls, sorted(names), path
        self.parts = tuple(keep(_attribute(cls, name)) for name in self.names)

    def is_as_it_was(self) -> bool:
        """Does the class hold what it held?"""
        return next(self._changes(), None) is None

    def changed(self) -> str:
        """What it holds no more, as a sentence."""
        for name, part, now in self._changes():
            return f"{self.path}: expected {self.cls.__qualname__}.{name}={part!r:.200}, got {now!r:.200}"
        return f"{self.path}: its class was changed"

    def _changes(self) -> Iterator[tuple[str, Any, Any]]:
        for name, part in zip(self.names, self.parts, strict=True):
            now = _attribute(self.cls, name)
            if not (now is part and is_atom(now)) and not same_context(part, now):
                yield name, part, now


class Classes:
    """The classes that were met in contexts, with the attributes that count."""

    def __init__(self) -> None:
        self._rows: dict[type, tuple[str, set[str]]] = {}

    def add(self, value: Any, names: Iterable[str] | None, path: str) -> None:
        """An object, or a class, was met.

        Args:
            names: what the trace read of it; None: nobody knows, so that all that its class holds counts.
        """
        cls: Any = value if isinstance(value, type) else type(value)
        if _is_foreign(cls) or issubclass(cls, (torch.Tensor, enum.Enum)):
            return
        found = _data(cls) if names is None else [*(n for n in names if _may_be_of(cls, n)), *_asked_of_class(cls)]
        if value is not cls:
            found = [name for name in found if attribute_inside(value, name) is ABSENT]
        if found:
            self._rows.setdefault(cls, (f"the class of {path}", set()))[1].update(found)

    def rows(self, keep: Callable[[Any], Any]) -> tuple[KeptClass, ...]:
        """What guards keep of them. ``keep`` makes what is compared of a value, see `kept`."""
        return tuple(KeptClass(cls, names, path, keep) for cls, (path, names) in self._rows.items())


def _attribute(cls: type, name: str) -> Any:
    """What a class or its first base that has it holds under a name, whatever a metaclass says; or `ABSENT`."""
    for k in cls.__mro__:
        if name in k.__dict__:
            return k.__dict__[name]
    return ABSENT


def _data(cls: type) -> list[str]:
    """The attributes of a class and its bases that are no methods and no properties."""
    return [n for k in cls.__mro__ if not _is_foreign(k) for n, v in vars(k).items() if _is_data(n, v)]


def _is_data(name: str, value: Any) -> bool:
    return not (name.startswith("__") and name.endswith("__")) and not hasattr(type(value), "__get__")


def _may_be_of(cls: type, name: str) -> bool:
    """Has the class data of that name; or has nobody any, until somebody gives it to the class?"""
    holder = next((k for k in cls.__mro__ if name in k.__dict__), None)
    if holder is None:
        return _is_data(name, None)
    return not _is_foreign(holder) and _is_data(name, vars(holder)[name])


def _asked_of_class(cls: type) -> set[str]:
    """The data that methods may take of the class itself (``type(self).scale``, a method of the class): no object sees it."""
    words, found = {"type", "__class__", *(k.__name__ for k in cls.__mro__[:-1])}, set[str]()
    states = [vars(k) for k in cls.__mro__ if not _is_foreign(k)]
    for member in (v for state in states for name, v in state.items() if name not in _OF_NEW):
        for function in functions_in(member):
            if isinstance(function, types.FunctionType):
                names = set(names_in(function.__code__))
                if isinstance(member, classmethod) or names & words:
                    found |= names
    return found.intersection(_data(cls))


#: run when an object is made, or for people
_OF_NEW = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__repr__", "__str__", "__del__"})


def _is_foreign(cls: type) -> bool:
    return str(cls.__module__).partition(".")[0] in FOREIGN
