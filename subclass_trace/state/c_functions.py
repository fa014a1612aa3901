"""Built-in functions and classes, `operator`, `functools`, `itertools`, ...: a line each, what they read, write and call."""

from __future__ import annotations
import __future__

import abc
import bisect
import builtins
import collections
import contextvars
import decimal
import functools
import heapq
import io
import itertools
import math
import operator
import os
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from .. import torch_api
from ..errors import NeedsEager, SideEffectError, UnsupportedError
from ..subclass.protocol import is_plain_parameter
from . import attributes, calls, kinds
from .boundary import TORCH, is_of_library, is_users, kind_of
from .calls import BY_TYPE, C_TABLE, CLASSES, Handler, callback, opaque, referents, unwatched
from .current import current, set_current
from .frames import instrumented_frame
from .instrument import clone, instrument
from .iteration import iterate, keys_of
from .kinds import (
    CONTAINERS,
    VALUES,
    VIEWS,
    Builtin,
    Function,
    LruCache,
    Method,
    Partial,
    is_immutable,
)
from .recorder import user_line
from .values import ATOMS, MISSING, is_a, lookup, pairs_of

Args: TypeAlias = tuple[Any, ...]
Named: TypeAlias = dict[str, Any]


def plain(rec: Any, f: Any, a: Args, k: Named) -> Any:
    """It reads nothing but atoms, or keeps what it is given."""
    return f(*map(rec.give, a), **k)


# ---------------------------------------------------------------------------------------------- attributes and names
def _getattr(rec: Any, f: Any, a: Args, k: Named) -> Any:
    try:
        return attributes.get(rec, a[0], a[1])
    except AttributeError:
        if len(a) > 2:
            return a[2]
        raise


def _hasattr(rec: Any, f: Any, a: Args, k: Named) -> Any:
    try:
        attributes.get(rec, a[0], a[1])
        return True
    except AttributeError:
        return False


def _setattr(rec: Any, f: Any, a: Args, k: Named) -> Any:
    attributes.put(rec, a[0], a[1], a[2] if f is setattr else MISSING)


def _vars(rec: Any, f: Any, a: Args, k: Named) -> Any:
    return attributes.get(rec, a[0], "__dict__") if a else instrumented_frame().f_locals


def _globals(rec: Any, f: Any, a: Args, k: Named) -> Any:
    space = instrumented_frame().f_globals
    rec.root(space)
    return space


def _locals(rec: Any, f: Any, a: Args, k: Named) -> Any:
    return instrumented_frame().f_locals


def _eval(rec: Any, f: Any, a: Args, k: Named) -> Any:
    frame = instrumented_frame()
    flags = frame.f_code.co_flags & _FUTURE
    code = compile(a[0], "<eval>", f.__name__, flags, dont_inherit=True) if is_a(a[0], str) else a[0]
    given = [v for v in a[1:] if v is not None]
    spaces = given or (frame.f_globals, frame.f_locals)
    if "__name__" in spaces[0]:
        rec.root(spaces[0])
    return f(instrument(types.CodeType.replace(code)), *spaces)


#: of a code object: what ``from __future__`` has set
_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag


def _dir(rec: Any, f: Any, a: Args, k: Named) -> Any:
    if not a:
        return sorted(instrumented_frame().f_locals)
    o = a[0]
    if is_a(o, types.ModuleType):
        rec.root(o.__dict__)
        rec.row(o.__dict__, "keys", list(o.__dict__))
    else:
        space: Any = getattr(o, "__dict__", None)
        if is_a(space, dict):
            rec.row(attributes.get(rec, o, "__dict__"), "keys", list(space))
        for cls in (o if is_a(o, type) else type(o)).__mro__:
            if not is_immutable(cls):
                rec.class_dict(cls)
    return dir(o)


# ---------------------------------------------------------------------------------------------- classes
def _isinstance(rec: Any, f: Any, a: Args, k: Named) -> Any:
    o, cls = rec.give(a[0]), a[1]
    if f is isinstance and is_a(o, torch.Tensor) and is_plain_parameter(type(rec.real(o))):
        o = rec.real(o)  # what stands for it is a plain tensor
    if is_a(cls, tuple):
        if rec.place_of(cls) is not None:
            rec.touch(cls)
        return any(_isinstance(rec, f, (o, c), k) for c in cls)
    if is_a(cls, types.UnionType):
        return any(_isinstance(rec, f, (o, c), k) for c in cls.__args__)
    symbol = torch_api.PYTHON_CLASSES.get(type(o))
    if f is isinstance and symbol is not None:
        return is_a(cls, type) and (issubclass(symbol, cls) or is_a(o, cls))
    if f is isinstance and type(o) is cls:
        return True
    meta = type(cls)
    if meta is type or not is_a(cls, type):
        return f(o, cls)
    return _by_metaclass(rec, f, o, cls, meta)


_CHECKS = {"__instancecheck__": abc.ABCMeta.__instancecheck__, "__subclasscheck__": abc.ABCMeta.__subclasscheck__}

#: what torch asks a tensor for, to tell whether it is one of these
_MARKS = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}


def _by_metaclass(rec: Any, f: Any, o: Any, cls: Any, meta: type) -> Any:
    if f is isinstance and lookup(cls, "_is_protocol") is True and lookup(cls, "_is_runtime_protocol") is True:
        names = typing._get_protocol_attrs(cls) if hasattr(typing, "_get_protocol_attrs") else cls.__protocol_attrs__
        for name in names:
            _hasattr(rec, hasattr, (o, name), {})
        return unwatched(f, o, cls)
    hook = "__instancecheck__" if f is isinstance else "__subclasscheck__"
    method = rec.lookup(meta, hook)
    if type(method) is Function and method.__code__ is not _CHECKS[hook].__code__:
        if kind_of(method.__code__) != TORCH and not is_of_library(method.__code__.co_filename):
            return bool(rec.call(method, cls, o))
    if is_a(o, torch.Tensor) and cls in _MARKS:
        _hasattr(rec, hasattr, (o, _MARKS[cls]), {})
    if is_a(cls, abc.ABCMeta):
        found = unwatched(f, o, cls)
        kind = o if f is issubclass else type(rec.real(o))
        rec.at(rec.child(rec.root(issubclass), "call", (kind, cls)), found)
        return found
    return unwatched(f, o, cls)


def _super(rec: Any, f: Any, a: Args, k: Named) -> Any:
    return super(*a)


def _build_class(rec: Any, f: Any, a: Args, k: Named) -> Any:
    return calls.watched(f, (clone(a[0]), *a[1:]), k)


def _make_class(rec: Any, f: Any, a: Args, k: Named) -> Any:
    """``type(name, bases, dict)``: C code takes the module's name from the frame that calls."""
    return type(a[0], a[1], {"__module__": instrumented_frame().f_globals.get("__name__"), **a[2]}, **k)


# ---------------------------------------------------------------------------------------------- containers, iteration
def _container(rec: Any, cls: Any, a: Args, k: Named) -> Any:
    if cls is dict and a and hasattr(a[0], "keys") and not is_a(a[0], dict):
        a = (keys_of(rec, a[0]), *a[1:])
    if a and is_a(a[0], dict) and cls in (dict, collections.OrderedDict):
        held = a[0]
        rec.touch(held)
        a = ({rec.give(n): rec.given_item(held, n, v) for n, v in pairs_of(held)}, *a[1:])
    else:
        a = (*(iterate(rec, v) for v in a[:1]), *a[1:])
    out = cls(*a, **k)
    if cls in (set, frozenset):
        for value in out:
            calls.operations.hashed(rec, value)
    return out


def _iterating(rec: Any, f: Any, a: Args, k: Named) -> Any:
    given = [iterate(rec, v) if type(v) not in ATOMS and not calls.is_function(v) else v for v in a]
    return f(*given, **{name: callback(v) if callable(v) else v for name, v in k.items()})


def _mapping_function(rec: Any, f: Any, a: Args, k: Named) -> Any:
    """The first argument is a callback, or None."""
    first = a[0] if a[0] is None else callback(a[0])
    return f(first, *[iterate(rec, v) if type(v) not in ATOMS else v for v in a[1:]], **k)


def _next(rec: Any, f: Any, a: Args, k: Named) -> Any:
    step = lookup(type(a[0]), "__next__")
    if type(step) is Function:
        rec.lookup(type(a[0]), "__next__")
        try:
            return rec.call(step, a[0])
        except StopIteration:
            if len(a) > 1:
                return a[1]
            raise
    if rec.place_of(a[0]) is not None:
        calls.refuse_change(rec, a[0], "next()")
    return rec.give(next(*a))


def _iter(rec: Any, f: Any, a: Args, k: Named) -> Any:
    return iter(callback(a[0]), a[1]) if len(a) == 2 else iter(iterate(rec, a[0]))


def _reversed(rec: Any, f: Any, a: Args, k: Named) -> Any:
    o = a[0]
    method = rec.lookup(type(o), "__reversed__")
    if type(method) is Function:
        return rec.call(method, o)
    if is_a(o, (list, tuple, collections.deque)):
        rec.touch(o)
        return reversed([*iterate(rec, o)]) if rec.stand_ins else reversed(o)
    if is_a(o, (dict, *VIEWS, range, str)):
        rec.touch(o)
        return map(rec.give, reversed(o))
    n = rec.call(len, o)
    return (calls.operations.item((o, i)) for i in range(n - 1, -1, -1))


def _comparing(rec: Any, f: Any, a: Args, k: Named) -> Any:
    """``sorted``, ``max``, ``min``: with the user's own ``__lt__`` they are done in Python."""
    held = list(iterate(rec, a[0])) if len(a) == 1 else [*map(rec.give, a)]
    if not held and f is not sorted:
        return f(held, **k)
    key = callback(k["key"]) if k.get("key") is not None else None
    keys = [key(v) for v in held] if key else held
    compare = calls.operations.compare
    if any(type(lookup(type(v), "__lt__")) is Function for v in keys):

        def order(x: Any, y: Any) -> int:
            return -1 if compare("lt", (x, y)) else 1 if compare("lt", (y, x)) else 0

        keys = [functools.cmp_to_key(order)(v) for v in keys]
    else:
        for value in keys:
            rec.deep(value, "comparison")
    rest = {name: v for name, v in k.items() if name not in ("key", "default")}
    got = f(range(len(held)), key=keys.__getitem__, **rest)
    return [held[i] for i in got] if f is sorted else held[got]


def _sum(rec: Any, f: Any, a: Args, k: Named) -> Any:
    if f in (any, all):
        truth = calls.operations.truth
        return next((f is any for v in iterate(rec, a[0]) if bool(truth(v)) is (f is any)), f is all)
    held = list(iterate(rec, a[0]))
    if f is sum and any(is_a(lookup(type(v), "__add__"), Function) for v in held if not is_a(v, torch.Tensor)):
        out = a[1] if len(a) > 1 else k.get("start", 0)
        for value in held:
            out = calls.operations.binary("+", (out, value))
        return out
    return f(held, *map(rec.give, a[1:]), **k)


# ---------------------------------------------------------------------------------------------- numbers and texts
_SIZED = (list, tuple, dict, set, frozenset, collections.deque)


def by_method(name: str) -> Handler:
    """``float(o)``, ``len(o)``, ...: the method of the class where it is Python code."""

    def handler(rec: Any, f: Any, a: Args, k: Named) -> Any:
        if not a:
            return f(**k)
        o = rec.give(a[0])
        kind = type(o)
        if kind in ATOMS:
            return f(*a, **k)
        if kind in torch_api.PYTHON_CLASSES:
            return _of_symbol(f, o, a[1:], k)
        if is_a(o, torch.Tensor):
            return _of_tensor(rec, f, o, a[1:], k)
        method, a = _method_for(rec, name, kind, o, a)
        if type(method) is Function:
            got = rec.call(method, *a, **k)
            return got != 0 if name == "__bool__" and method is lookup(kind, "__len__") else got
        if name == "__hash__":
            rec.pin(o)
        if name == "__len__" and is_a(o, _SIZED):
            rec.length(o, "len", len(o))
            return f(o)
        if name == "__bool__" and (is_a(o, _SIZED) or method is MISSING):
            rec.length(o, "truth", bool(o))
            return bool(o)
        if kind in VALUES or is_a(o, (type, types.ModuleType)) or is_a(o, kinds.VALUE_BASES):
            return f(*a, **k)
        rec.deep(o, name)
        return f(rec.mapped(o), *a[1:], **k)

    return handler


def _method_for(rec: Any, name: str, kind: type, o: Any, a: Args) -> tuple[Any, Args]:
    method = rec.lookup(kind, name)
    if method is MISSING and name in ("__float__", "__int__", "__complex__"):
        method = rec.lookup(kind, "__index__")
    if method is MISSING and name == "__bool__":
        method = rec.lookup(kind, "__len__")
    if name == "__format__" and method is object.__format__:
        method, a = rec.lookup(kind, "__str__"), (o,)
        name = "__str__"
    if name == "__str__" and method is object.__str__:
        method = rec.lookup(kind, "__repr__")
    return method, a


def _of_symbol(f: Any, n: Any, rest: Args, k: Named) -> Any:
    if f is float:
        return torch_api.to_float(n)
    if f is int:
        return torch_api.to_int(n, *rest, **k)
    if f in (str, repr, format, hash, complex):
        return f(torch_api.PYTHON_CLASSES[type(n)](n), *rest, **k)
    return f(n, *rest, **k)


def _of_tensor(rec: Any, f: Any, t: Any, rest: Args, k: Named) -> Any:
    if f is float and not rest:
        return torch_api.to_float(t)
    if f is int and not rest and not k:
        return torch_api.to_int(t)
    return f(t, *rest, **k)


def _id(rec: Any, f: Any, a: Args, k: Named) -> Any:
    """As a key of a memo in Python's own code; else it is another number in each call."""
    frame = instrumented_frame()
    if is_users(frame.f_code.co_filename):
        rec.refuse(
            SideEffectError("the region calls id", path=user_line(), fix="compare objects by `is`, or give them names")
        )
    return id(a[0])


# ---------------------------------------------------------------------------------------------- operator, functools
def _operation(name: str, *static: Any) -> Handler:
    return lambda rec, f, a, k: getattr(calls.operations, name)(*static, a[0] if name == "unary" else a)


def _attrgetter(rec: Any, f: Any, a: Args, k: Named) -> Any:
    names = f.__reduce__()[1]
    rec.row(f, "is", f)

    def one(name: str) -> Any:
        value = a[0]
        for part in name.split("."):
            value = attributes.get(rec, value, part)
        return value

    return one(names[0]) if len(names) == 1 else tuple(map(one, names))


def _itemgetter(rec: Any, f: Any, a: Args, k: Named) -> Any:
    rec.row(f, "is", f)
    keys = f.__reduce__()[1]
    got = [calls.operations.item((a[0], key)) for key in keys]
    return got[0] if len(keys) == 1 else tuple(got)


def _methodcaller(rec: Any, f: Any, a: Args, k: Named) -> Any:
    rec.row(f, "is", f)
    made = f.__reduce__()
    (name, *args), named = (
        (made[1], {}) if made[0] is operator.methodcaller else ((made[0].args[0], *made[1]), made[0].keywords)
    )
    return rec.call(attributes.get(rec, a[0], name), *args, **named)


def _partial(rec: Any, f: Any, a: Args, k: Named) -> Any:
    args, named = f.args, f.keywords
    if rec.place_of(f) is not None:
        for name in ("func", "args", "keywords"):
            rec.step(f, "inner", name, getattr(f, name))
        rec.touch(args)
        rec.touch(named)
        args = iterate(rec, args)
        named = calls.operations.mapping(named)
    return rec.call(f.func, *args, *a, **{**named, **k})


def _lru_cache(rec: Any, f: Any, a: Args, k: Named) -> Any:
    """What a cache keeps has no other place: the guard asks it again."""
    rec.step(f, "inner", "__wrapped__", f.__wrapped__)
    for value in a:
        if type(value) not in ATOMS and not is_a(value, torch.Tensor):
            rec.pin(value)
    plain = all(type(v) in ATOMS or (rec.place_of(v) is not None and not is_a(v, torch.Tensor)) for v in a)
    if rec.place_of(f) is None or k or not plain:
        if rec.place_of(f) is not None and _has_kept(f, a, k):
            _refuse_cached(f)
        return rec.call(f.__wrapped__, *a, **k)
    misses, recorder = f.cache_info().misses, set_current(None)
    try:  # a miss runs the function once, for real, as it does in eager mode; from then on its result is what is kept
        with torch_api.no_overrides(), torch_api.no_modes():
            out = unwatched(f, *a)
    finally:
        set_current(recorder)
    if rec.written and f.cache_info().misses != misses:
        raise rec.refused(
            NeedsEager(
                "a cache is filled by a function that may read what the region has written before",
                path=f"{getattr(f, '__qualname__', 'a cache')} at {user_line()}",
                fix="call the function once before the region",
            )
        )
    return rec.at(rec.child(rec.place_of(f), "call", a), out)


def _has_kept(f: Any, a: Args, k: Named) -> bool:
    """Is anything kept, of calls whose arguments are no atoms?"""
    return bool(f.cache_info().currsize)


def _refuse_cached(f: Any) -> None:
    raise current().refused(
        SideEffectError(
            "functools.lru_cache keeps what the region computes, or what it is called with",
            path=f"{getattr(f, '__qualname__', 'a cache')} at {user_line()}",
            expected="cached numbers, texts and the like, of numbers and texts",
            fix="call the function once before the region, and hold what it returns in a variable",
        )
    )


def asks(rec: Any, f: Any, a: Args, k: Named) -> Any:
    """A call whose result is state itself: a weak reference, a flag, the current context of decimal numbers."""
    out = f(*a, **k)
    place = rec.place_of(f)
    if place is None:
        if is_a(f, weakref.ref):
            return rec.give(out)
        place = rec.root(f)
    return rec.at(rec.child(place, "call", a), out)


def context_variable(rec: Any, f: Any, a: Args, k: Named) -> Any:
    """``ContextVar.get``, ``.set`` and ``.reset``: what is set has to be what it was in the end (`Run.check_variables`)."""
    variable, name = f.__self__, f.__name__
    if name != "get":
        before, out = variable.get(MISSING), f(*a, **k)
        if name == "set":
            rec.variables.setdefault(id(variable), (variable, before, out))
        return out
    out = f(*a, **k)
    place = rec.place_of(variable)
    if place is None or id(variable) in rec.variables:
        return rec.give(out)
    return rec.at(rec.child(rec.child(place, "inner", "get"), "call", a), out)


def _changes_first(rec: Any, f: Any, a: Args, k: Named) -> Any:
    """It changes the container that it is given first."""
    for value in a:
        rec.deep(value, f.__name__)
    rec.write(a[0])
    return rec.give(f(a[0], *map(rec.mapped, a[1:]), **k))


#: `heapq`, `bisect`, and what `Counter` is made of
_CHANGE_FIRST = (
    *(f for name, f in vars(heapq).items() if type(f) is Builtin and "heap" in name),
    *(bisect.insort_left, bisect.insort_right),
    collections._count_elements,  # type: ignore[attr-defined]
)


def _of_library(why: str) -> Handler:
    """Python's own code may ask."""

    def handler(rec: Any, f: Any, a: Args, k: Named) -> Any:
        if is_users(instrumented_frame().f_code.co_filename):
            rec.refuse(UnsupportedError(f"the region asks for {why}", path=user_line()))
        return f(*a, **k)

    return handler


def _refuse_call(why: str) -> Handler:
    def handler(rec: Any, f: Any, a: Args, k: Named) -> Any:
        rec.refuse(UnsupportedError(f"the region asks for {why}", path=user_line()))

    return handler


CLASSES.update(
    {
        **dict.fromkeys((list, tuple, set, frozenset, dict, collections.OrderedDict, collections.deque), _container),
        **dict.fromkeys((zip, enumerate), _iterating),
        **dict.fromkeys((map, filter), _mapping_function),
        **{kind: _iterating for kind in vars(itertools).values() if is_a(kind, type)},
        **dict.fromkeys(
            (itertools.starmap, itertools.takewhile, itertools.dropwhile, itertools.filterfalse), _mapping_function
        ),
        reversed: _reversed,
        float: by_method("__float__"),
        int: by_method("__int__"),
        complex: by_method("__complex__"),
        bool: by_method("__bool__"),
        str: by_method("__str__"),
        super: _super,
        collections.defaultdict: lambda rec, t, a, k: t(*a[:1], *[iterate(rec, v) for v in a[1:]], **k),
        **dict.fromkeys(
            (Partial, Method, property, staticmethod, classmethod, slice, range, object, Function, weakref.ref), plain
        ),
        **dict.fromkeys((operator.attrgetter, operator.itemgetter, operator.methodcaller), plain),
        **dict.fromkeys(
            (io.BytesIO, io.StringIO, types.SimpleNamespace, types.MappingProxyType, torch.Size, torch.device), plain
        ),
        type: _make_class,
    }
)
_TWO = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
_TWO |= {"matmul": "@", "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>"}
C_TABLE.update(
    {
        getattr: _getattr,
        hasattr: _hasattr,
        setattr: _setattr,
        delattr: _setattr,
        vars: _vars,
        globals: _globals,
        locals: _locals,
        eval: _eval,
        exec: _eval,
        dir: _dir,
        isinstance: _isinstance,
        issubclass: _isinstance,
        len: by_method("__len__"),
        repr: by_method("__repr__"),
        format: by_method("__format__"),
        hash: by_method("__hash__"),
        abs: by_method("__abs__"),
        round: by_method("__round__"),
        operator.truth: by_method("__bool__"),
        operator.index: by_method("__index__"),
        math.floor: by_method("__floor__"),
        math.ceil: by_method("__ceil__"),
        math.trunc: by_method("__trunc__"),
        dict.fromkeys: lambda rec, f, a, k: f(iterate(rec, a[0]), *a[1:]),
        next: _next,
        iter: _iter,
        **dict.fromkeys((sum, any, all, math.prod, math.fsum), _sum),
        **dict.fromkeys((sorted, max, min), _comparing),
        functools.reduce: _mapping_function,
        callable: plain,
        id: _id,
        builtins.__build_class__: _build_class,
        builtins.__import__: plain,
        operator.getitem: _operation("item"),
        operator.setitem: lambda rec, f, a, k: calls.operations.set_item((a[2], a[0], a[1])),
        operator.delitem: _operation("del_item"),
        operator.contains: lambda rec, f, a, k: calls.operations.contains(False, (a[1], a[0])),
        operator.is_: lambda rec, f, a, k: calls.operations.__dict__["is"](False, a),
        operator.is_not: lambda rec, f, a, k: calls.operations.__dict__["is"](True, a),
        operator.not_: lambda rec, f, a, k: not calls.operations.truth(a[0]),
        **{getattr(operator, name): _operation("compare", name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
        **{getattr(operator, name): _operation("binary", symbol) for name, symbol in _TWO.items()},
        **{
            getattr(operator, "i" + name.strip("_")): _operation("binary", symbol + "=")
            for name, symbol in _TWO.items()
        },
        **{getattr(operator, name): _operation("unary", name) for name in ("neg", "pos", "invert")},
        sys.exc_info: _of_library("the exception that is handled"),
        threading.get_ident: _of_library("the number of the thread"),
        **dict.fromkeys(_CHANGE_FIRST, _changes_first),
        sys._getframe: _refuse_call("a frame"),
        **dict.fromkeys((os.fspath, sys.intern), plain),
        decimal.getcontext: asks,
        sys.audit: plain,  # which tells those who watch the interpreter
    }
)
BY_TYPE.update(
    {
        operator.attrgetter: _attrgetter,
        operator.itemgetter: _itemgetter,
        operator.methodcaller: _methodcaller,
        Partial: _partial,
        LruCache: _lru_cache,
        weakref.ref: asks,
        weakref.KeyedRef: asks,
    }
)
_CONTAINERS, _CV, _BUILTIN, _OPAQUE, _REF = CONTAINERS, contextvars, Builtin, opaque, referents
_CALLABLE: type = Callable  # type: ignore[assignment]
