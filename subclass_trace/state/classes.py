"""What a call of a class does: ``__new__`` and ``__init__`` of Python's run as clones."""

from __future__ import annotations

import types
from typing import Any

from ..errors import UnsupportedError
from ..subclass.values import is_a
from . import attributes
from .boundary import ENTER, kind_of
from .calls import CLASSES, is_of_package, opaque, refuse_change, torch_call
from .kinds import CONTAINERS, ITERATORS, VIEWS, Function, is_immutable
from .net import watched
from .recorder import user_line
from .running import Running
from .special import special_of
from .values import lookup


def call_class(rec: Running, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``cls(*args, **kwargs)``, by whatever the class is."""
    if cls is type and len(args) == 1:
        return attributes.class_of(rec, rec.give(args[0]))
    special = CLASSES.get(cls)
    if special is not None:
        return special(rec, cls, args, kwargs)
    meta = type(cls)
    if meta is not type:
        caller = rec.special(meta, "__call__")
        if type(caller) is Function:
            return rec.call_function(caller, (cls, *args), kwargs)
        if is_a(caller, type):  # of a TypedDict: dict
            return rec.call(caller, *args, **kwargs)
    if is_torchs_class(cls):
        return torch_call(rec, cls, args, kwargs)
    if is_of_package(cls):
        return cls(*args, **kwargs)
    if is_immutable(cls) and not issubclass(cls, BaseException):
        return opaque(rec, cls, args, kwargs, keeps=False)
    return construct(rec, cls, args, kwargs)


def is_torchs_class(cls: type) -> bool:
    """Is it a class of torch's that is made as a torch function would make it?"""
    if (cls.__module__ or "").partition(".")[0] != "torch":
        return False
    maker = lookup(cls, "__init__")
    return not (type(maker) is Function and kind_of(maker.__code__) == ENTER)


def construct(rec: Running, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``__new__``, then ``__init__``: what `type` does."""
    end = special_of(cls, "__del__")
    if type(end) is Function and kind_of(end.__code__) == ENTER:
        rec.refuse(
            UnsupportedError(
                f"the region makes a {cls.__qualname__}, whose __del__ runs unseen",
                code="finalizer",
                path=user_line(),
                fix="make it outside of the region",
            )
        )
    new, init = rec.lookup(cls, "__new__"), rec.special(cls, "__init__")
    function = rec.step(new, "inner", "__func__", new.__func__) if is_a(new, staticmethod) else new
    if type(function) is Function:
        made = rec.call(function, cls, *args, **kwargs)
    else:
        if function is not object.__new__:
            args, kwargs = _read(rec, args, kwargs)
        made = watched(function, (cls, *args), kwargs)
    if cls in type(made).__mro__:
        if type(init) is Function:
            rec.call(init, made, *args, **kwargs)
        elif init is not object.__init__:
            args, kwargs = _read(rec, args, kwargs)
            watched(init.__get__(made, cls), args, kwargs)
    return made


def _read(rec: Running, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What C code of a class looks into, but for the items of items."""
    for value in (*args, *kwargs.values()):
        if is_a(value, (*CONTAINERS, *VIEWS, types.MappingProxyType)):
            rec.touch(value)
        elif is_a(value, ITERATORS) and rec.place_of(value) is not None:
            refuse_change(rec, value, "iterated")
    return tuple(map(rec.mapped, args)), {name: rec.mapped(v) for name, v in kwargs.items()}
