"""Special methods that a class of the user's has from elsewhere: ``__setattr__ =
dict.__setitem__``, ``__call__ = staticmethod(f)``.

C code finds them in the class, and calls them whatever they are: functions, C code of another slot,
``partialmethod``, properties, any descriptor, any object that is called. To us such a one is a
Python function that calls it, so that what it reads and writes is seen.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from ..subclass.values import is_a
from .kinds import BUILTINS, GETTERS, Function, LruCache, Method, Partial, is_immutable
from .values import MISSING, lookup

#: whose code is entered like the user's
_FILE = "<special method>"
_OF_C = (types.WrapperDescriptorType, types.MethodDescriptorType)


def special_of(cls: type, name: str) -> Any:
    """The special method of a class, by the order of its bases. (`Running.special` reads it.)"""
    return as_function(lookup(cls, name), cls, name)


def is_python(cls: type, *names: str) -> bool:
    """Is one of these methods of a class a function of Python's?"""
    return any(type(special_of(cls, name)) is Function for name in names)


def as_function(value: Any, cls: type, name: str) -> Any:
    """What a class has under the name of a special method: a function where that is none."""
    kind = type(value)
    if kind is Function or value is MISSING or value is None or is_immutable(cls):
        return value
    if kind in _OF_C and not _is_from_elsewhere(value, cls, name):
        return value
    calls = _CALLS.get(kind)
    if calls is None and (kind is property or is_python(kind, "__get__")):
        calls = _gets
    elif calls is None and (is_a(value, type) or is_python(kind, "__call__")):
        calls = _stands_alone
    return value if calls is None else _function(calls, value)


def _is_from_elsewhere(value: Any, cls: type, name: str) -> bool:
    """Has a class of Python's given a slot what C code has for another one, or another class?"""
    for base in type.__dict__["__mro__"].__get__(cls):
        if name in type.__dict__["__dict__"].__get__(base):
            return value.__objclass__ is not base and not is_immutable(base)
    return False


def _binds(value: Any) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: value(self, *args, **kwargs)


def _stands_alone(value: Any) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: value(*args, **kwargs)


def _of_static(value: Any) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: value.__func__(*args, **kwargs)


def _of_class(value: Any) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: value.__func__(type(self), *args, **kwargs)


def bound_of(descriptor: Any, o: Any) -> Any:
    """What a descriptor of a class gives of an object. (`calls.FUNCTIONS` says how it is read.)"""
    return descriptor.__get__(o, type(o))


def _gets(value: Any) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: bound_of(value, self)(*args, **kwargs)


_CALLS: dict[type, Callable[[Any], Callable[..., Any]]] = {
    **dict.fromkeys((*_OF_C, LruCache), _binds),
    **dict.fromkeys((*BUILTINS, *GETTERS, types.MethodWrapperType, Method, Partial), _stands_alone),
    staticmethod: _of_static,
    classmethod: _of_class,
}


@functools.cache
def _code(calls: Callable[[Any], Callable[..., Any]]) -> types.CodeType:
    """One for all that are called in this way: it is instrumented once, and keeps none alive."""
    made: Any = calls(None)
    code: types.CodeType = made.__code__
    return code.replace(co_filename=_FILE)


def _function(calls: Callable[[Any], Callable[..., Any]], value: Any) -> Any:
    made: Any = calls(value)
    made.__code__ = _code(calls)
    return made
