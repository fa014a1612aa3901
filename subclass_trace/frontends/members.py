"""What objects, classes and functions hold: their attributes as tables, the functions behind the names of a class, and whose
code it is."""

from __future__ import annotations

import contextvars
import functools
import sysconfig
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ..capture.user_code import is_foreign, is_user_code
from ..runtime.held import ABSENT, Slotted
from ..subclass.arguments import FOREIGN, NAMESPACES

CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_STANDARD = sysconfig.get_paths()["stdlib"]


def attributes_of(value: Any) -> Any:
    """The own attributes of an object, as a dict-like view; None where it has none."""
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict) and not is_thread_local(value):
        return held
    has_slots = any("__slots__" in vars(cls) for cls in type(value).__mro__[:-1])
    return Slotted(value) if has_slots or is_thread_local(value) else None


def is_plain_object(value: Any) -> bool:
    """An instance of a class of the user's: neither a tensor, a module, a class or function, nor of a foreign library."""
    cls = type(value)
    if cls in NAMESPACES:
        return True
    if isinstance(value, (torch.Tensor, torch.nn.Module, type, types.ModuleType, *CONTAINERS)) or callable_code(value):
        return False
    return not is_foreign(cls) and attributes_of(value) is not None


def callable_code(value: Any) -> bool:
    """Is it a function, method or partial, whose code is looked at?"""
    return isinstance(value, (types.FunctionType, types.MethodType, functools.partial, types.BuiltinFunctionType))


def is_short(value: Any) -> bool:
    """Is it one of the containers in which libraries keep settings?"""
    return type(value) in (list, tuple, dict) and len(value) <= 32


def is_installed(code: types.CodeType) -> bool:
    """Is it the code of an installed library?"""
    return "site-packages" in code.co_filename


def is_own(code: types.CodeType) -> bool:
    """Is it neither torch's, nor ours, nor of the standard library?"""
    name = code.co_filename
    standard = name.startswith(_STANDARD) and "site-packages" not in name
    return is_user_code(code) and not standard and not name.startswith("<frozen")


#: members of a class that are called where no object of it is at hand, or for people
SKIPPED = frozenset({"__init__", "__new__", "__repr__", "__str__", "__del__", "__init_subclass__"})


def methods_of(cls: type) -> Mapping[str, tuple[types.FunctionType, ...]]:
    """The functions behind each name of a class: of a property its getter; those of base classes too (``super()``)."""
    found: dict[str, tuple[types.FunctionType, ...]] = {}
    for base in cls.__mro__:
        if not is_foreign(base):
            for name, held in vars(base).items():
                if name not in SKIPPED:
                    found[name] = (*found.get(name, ()), *functions_in(held))
    return {name: functions for name, functions in found.items() if functions}


def functions_in(held: Any) -> Iterator[types.FunctionType]:
    """The function behind a member of a class."""
    if hasattr(type(held), "__getattr__"):  # a proxy, which would ask what it stands for
        return
    for value in (held, getattr(held, "fget", None), getattr(held, "__func__", None), getattr(held, "func", None)):
        if isinstance(value, types.FunctionType):
            yield value


def member_of(cls: type, name: str) -> Any:
    """What a class holds under a name, as it stands there; ABSENT where nothing does."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), ABSENT)


def is_data_descriptor(held: Any) -> bool:
    """Does it come before what an instance holds under the same name?"""
    return hasattr(type(held), "__set__")


def is_of_library(value: Any) -> bool:
    """Is it an object of torch or of the standard library that code may ask for attributes, for a context variable's value?

    Those of torch.distributed say what tensors are, not what is computed of them.
    """
    module = type(value).__module__
    if isinstance(value, contextvars.ContextVar) or is_thread_local(value):
        return True
    named = type(getattr(value, "__dict__", None)) is dict and not callable(value)
    return named and not module.startswith(("torch.distributed", "torch._", "subclass_trace"))


def is_thread_local(value: Any) -> bool:
    """Does each thread see attributes of its own?"""
    return isinstance(value, threading.local)


def imported_by(imports: Iterable[tuple[str, int]], table: Mapping[str, Any]) -> Iterator[str]:
    """The full names of the Python modules that import statements name, and of the packages around them, but for those of
    torch and the standard library. ``table``: the globals of the code."""
    for name, level in imports:
        package = table.get("__package__") or ""
        if level:
            around = package.split(".")[: len(package.split(".")) - level + 1]
            name = ".".join(filter(None, (*around, name)))
        parts = name.split(".")
        if parts[0] not in FOREIGN:
            yield from (".".join(parts[: k + 1]) for k in range(len(parts)))


def is_users_module(module: types.ModuleType) -> bool:
    """Is it a Python module of the user's, not one of an installed library?"""
    table = vars(module)  # it may have a `__getattr__`
    name, file = str(table.get("__name__")), str(table.get("__file__"))
    return name.partition(".")[0] not in FOREIGN and "site-packages" not in file
