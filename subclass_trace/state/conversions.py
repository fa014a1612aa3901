"""What asks an object for a number, a text or a length (``float(o)``, ``len(o)``, ``str(o)``): by
the method of its class, as C code finds it."""

from __future__ import annotations

import operator
import types
from typing import Any, TypeAlias

import torch

from ..subclass.values import ATOMS, is_a
from ..torch_api.numbers import PYTHON_CLASSES, to_float, to_int
from ..torch_api.owners import Owner, owner_of_file
from . import kinds
from .calls import Handler
from .frames import instrumented_frame
from .iteration import read_hashes
from .kinds import CONTAINERS, VALUES, Function
from .net import watched
from .running import Running
from .values import MISSING

Args: TypeAlias = tuple[Any, ...]
Named: TypeAlias = dict[str, Any]


def by_method(name: str) -> Handler:
    """``float(o)``, ``len(o)``, ...: the method of the class where it is Python code."""

    def handler(rec: Running, f: Any, a: Args, k: Named) -> Any:
        if not a:
            return f(**k)
        o = rec.give(a[0])
        kind = type(o)
        if f is hash and owner_of_file(instrumented_frame().f_code.co_filename) is not Owner.TORCH:
            read_hashes(rec, a)  # torch finds by them, and keeps some
        if kind in ATOMS:
            return f(*a, **k)
        if kind in PYTHON_CLASSES:
            return _of_symbol(f, o, a[1:], k)
        if is_a(o, torch.Tensor):
            return _of_tensor(rec, f, o, a[1:], k)
        if name == "__index__" and is_a(o, int):
            return f(o)
        method, a = _method_for(rec, name, kind, o, a)
        if type(method) is Function:
            got = rec.call(method, *a, **k)
            if f is hash and got == -1:
                return -2  # what C code gives for it
            if f in (float, complex) and method is rec.special(kind, "__index__"):
                return rec.call(f, got)
            of_length = name == "__bool__" and method is rec.special(kind, "__len__")
            got = _as_returned(kind, "__len__" if of_length else name, got)
            return got != 0 if of_length else got
        if name == "__hash__":
            rec.pin(o)
        if name == "__len__" and is_a(o, CONTAINERS):
            rec.length(o, "len", len(o))
            return f(o)
        if name == "__bool__" and (is_a(o, CONTAINERS) or method is MISSING):
            rec.length(o, "truth", bool(o))
            return bool(o)
        if kind in VALUES or is_a(o, (type, types.ModuleType)) or is_a(o, kinds.VALUE_BASES):
            return f(*a, **k)
        rec.deep(o, name)
        out = watched(f, (rec.mapped(o), *a[1:]), k)
        if type(out) is str and " at 0x" in out:  # an address
            rec.pin(o)
            read_hashes(rec, [o])
        return out

    return handler


#: what C code takes from a method, without a look at it
_RETURNS = {
    "__bool__": bool,
    "__len__": int,
    "__int__": int,
    "__index__": int,
    "__hash__": int,
    "__float__": float,
    "__complex__": complex,
    "__str__": str,
    "__repr__": str,
    "__format__": str,
}


def _as_returned(kind: type, name: str, got: Any) -> Any:
    """What C code makes of what a method of Python's has returned: often an error."""
    want = _RETURNS.get(name, object)
    if is_a(got, want) or PYTHON_CLASSES.get(type(got)) is want:
        return got
    asks: dict[str, Any] = {"__len__": len, "__index__": operator.index, "__hash__": hash}
    ask = asks.get(name) or (format if name == "__format__" else want)
    return ask(type(kind.__name__, (), {name: lambda *_: got})())


def _method_for(rec: Running, name: str, kind: type, o: Any, a: Args) -> tuple[Any, Args]:
    method = rec.special(kind, name)
    if method is MISSING and name in ("__float__", "__int__", "__complex__"):
        method = rec.special(kind, "__index__")
    if method is MISSING and name == "__bool__":
        method = rec.special(kind, "__len__")
    if name == "__format__" and len(a) == 1:
        a = (o, "")
    if name == "__format__" and method is object.__format__ and not a[1]:  # else C code raises
        method, a = rec.special(kind, "__str__"), (o,)
        name = "__str__"
    if name == "__str__" and method is object.__str__:
        method = rec.special(kind, "__repr__")
    return method, a


def _of_symbol(f: Any, n: Any, rest: Args, k: Named) -> Any:
    if f is float:
        return to_float(n)
    if f is int:
        return to_int(n, *rest, **k)
    if f in (str, repr, format, hash, complex):
        return f(PYTHON_CLASSES[type(n)](n), *rest, **k)
    return f(n, *rest, **k)


def _of_tensor(rec: Running, f: Any, t: Any, rest: Args, k: Named) -> Any:
    if f is float and not rest:
        return to_float(t)
    if f is int and not rest and not k:
        return to_int(t)
    return f(t, *rest, **k)
