"""Methods that Dynamo has taken apart: its guards compare the objects, and not what stands in their
classes.

Dynamo keeps serving the old code after ``Model.step = other``. A region that it serves looks at the
classes before each call.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Iterator
from typing import Any

from . import words
from .owners import Owner, owner_of_name

_here = threading.local()


def heard(codes: frozenset[types.CodeType]) -> None:
    """Dynamo has made a graph of these code objects."""
    listener = getattr(_here, "listener", None)
    if listener is not None:
        listener.codes |= codes


class TracedMethods:
    """The methods in what Dynamo has compiled for one region, as they were then."""

    def __init__(self) -> None:
        self.codes: set[types.CodeType] = set()
        self._learnt = 0
        self._methods: list[tuple[type, str, Any]] = []  # class, name, function that it found
        self._words: list[Any] = []
        self._versions: list[int] = []

    def before_call(self) -> TracedMethods | None:
        """Forget what Dynamo has compiled, if a method is another one by now; hear of what it
        compiles in this call. Who
        heard of it before: see `after_call`."""
        before: TracedMethods | None = getattr(_here, "listener", None)
        _here.listener = self
        if len(self.codes) != self._learnt:
            self._learn()
        elif [*map(words.value_of, self._words)] != self._versions or (
            self._methods and not self._words
        ):
            if any(
                _function_of(cls, name) is not function for cls, name, function in self._methods
            ):
                _forget_compiled()
                self.codes.clear()
                self._methods.clear()
            self._learnt = len(self.codes)
            self._pin()
        return before

    @staticmethod
    def after_call(before: TracedMethods | None) -> None:
        """Who heard of it before hears of it again."""
        _here.listener = before

    def _learn(self) -> None:
        self._learnt = len(self.codes)
        self._methods = []
        for cls in {*_classes(object)}:
            space = type.__dict__["__dict__"].__get__(cls)  # a metaclass may have its own
            module = space.get("__module__")
            if type(module) is not str or owner_of_name(module) is Owner.TORCH:
                continue
            for name, member in list(space.items()):
                function = _unwrapped(member)
                if type(function) is types.FunctionType and function.__code__ in self.codes:
                    self._methods += [
                        (c, name, _function_of(c, name)) for c in (cls, *_classes(cls))
                    ]
        self._pin()

    def _pin(self) -> None:
        found = {cls: words.class_version(cls) for cls, _, _ in self._methods}
        self._words = (
            [word for word in found.values() if word is not None]
            if None not in found.values()
            else []
        )
        self._versions = [*map(words.value_of, self._words)]


def _classes(cls: Any) -> Iterator[type]:
    for sub in type.__subclasses__(cls):
        yield sub
        yield from _classes(sub)


def _unwrapped(member: Any) -> Any:
    """The function in a static or class method, or in a property. No code of the member's class
    runs."""
    if type(member) is property:
        return member.fget
    return member.__func__ if type(member) in (staticmethod, classmethod) else member


def _function_of(cls: type, name: str) -> Any:
    member = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    function = _unwrapped(member)
    return function.__code__ if type(function) is types.FunctionType else function


def _forget_compiled() -> None:
    import torch._dynamo

    getattr(torch._dynamo, "reset_code_caches", torch._dynamo.reset)()
