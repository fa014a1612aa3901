"""Built-in functions and classes, `operator`, `functools`, `itertools`, ...: a line each, what they
read, write and call."""

from __future__ import annotations

import bisect
import builtins
import collections
import functools
import gc
import heapq
import inspect
import io
import itertools
import math
import operator
import os
import sys
import threading
import types
import weakref
from typing import Any, TypeAlias

import torch

from ..errors import SideEffectError, UnsupportedError
from ..subclass.values import ATOMS, is_a
from ..torch_api.owners import Owner, owner_of_file
from . import calls, kinds
from .calls import C_TABLE, CLASSES, Handler, callback
from .conversions import by_method
from .frames import instrumented_frame
from .iteration import as_mapping, is_lazy, iterate
from .kinds import (
    SIMPLE,
    VIEWS,
    Builtin,
    Function,
    Method,
)
from .net import watched
from .recorder import user_line
from .running import Running
from .special import is_python
from .values import MISSING, size_of

Args: TypeAlias = tuple[Any, ...]
Named: TypeAlias = dict[str, Any]


def plain(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """It reads nothing but atoms, or keeps what it is given."""
    if all(type(v) in SIMPLE for v in a):
        return f(*a, **k)
    return watched(f, tuple(map(rec.give, a)), k)


def _callable(rec: Running, f: Any, a: Args, k: Named) -> Any:
    if a and not kinds.is_immutable(type(a[0])):
        rec.lookup(type(a[0]), "__call__")
    return plain(rec, f, a, k)


# ---- containers, iteration
def _container(rec: Running, cls: Any, a: Args, k: Named) -> Any:
    if not a:
        return cls(**k)
    if issubclass(cls, dict):
        if hasattr(a[0], "keys"):
            return cls(as_mapping(rec, a[0], cls), *a[1:], **k)
        pairs = [*map(rec.give, iterate(rec, a[0]))]
        calls.operations.keyed(rec, [*map(first_of, pairs)])
        return cls(pairs, **k)
    return cls((_keys if cls in (set, frozenset) else iterate)(rec, a[0]), *a[1:], **k)


def _keys(rec: Running, o: Any, of: Any = ()) -> Any:
    """What is put into a set: a container as it is, of which C code makes another order than of its
    items."""
    given = iterate(rec, o, in_order=False)
    keys = [*map(rec.give, given)]
    calls.operations.keyed(rec, keys, of)
    return o if given is o and is_a(o, (dict, set, frozenset)) else keys


def first_of(pair: Any) -> Any:
    """The key of a pair."""
    return pair[0] if is_a(pair, (tuple, list)) and size_of(pair) else None


def _iterating(rec: Running, f: Any, a: Args, k: Named) -> Any:
    given = [
        v if type(v) in ATOMS else callback(v) if calls.is_function(v) else iterate(rec, v)
        for v in a
    ]
    return f(*given, **{name: callback(v) if callable(v) else v for name, v in k.items()})


def _by_function(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """`itertools.accumulate` and ``groupby``: the second argument is a callback."""
    named = dict(k)
    name = "func" if f is itertools.accumulate else "key"
    second = named.pop(name, a[1] if len(a) > 1 else None)
    if f is itertools.accumulate:
        second = callback(operator.add if second is None else second)
    else:
        second = _grouped_by(rec, second)
    return f(iterate(rec, a[0]), second, *a[2:], **named)


def _grouped_by(rec: Running, key: Any) -> Any:
    """C code compares what it gives."""
    call = callback(key) if key is not None else lambda v: v

    def found(value: Any) -> Any:
        given = call(value)
        if not _is_plain(given) and is_python(type(given), "__eq__"):
            calls.refuse_change(rec, given, "groupby")
        return given

    return found


def _selected(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """`itertools.compress` asks for the truth of its selectors."""
    data, selectors = inspect.signature(lambda data, selectors: None).bind(*a, **k).args
    return f(iterate(rec, data), map(callback(bool), iterate(rec, selectors)))


def _mapping_function(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """The first argument is a callback, or None: the truth of an item."""
    first = callback(bool if a[0] is None else a[0])
    return f(first, *[iterate(rec, v) if type(v) not in ATOMS else v for v in a[1:]], **k)


def _next(rec: Running, f: Any, a: Args, k: Named) -> Any:
    step = rec.special(type(a[0]), "__next__")
    if is_a(a[0], kinds.ITERATORS) and rec.place_of(a[0]) is None:
        return rec.give(next(*a))
    if type(step) is Function:
        try:
            return rec.call(step, a[0])
        except StopIteration:
            if len(a) > 1:
                return a[1]
            raise
    if rec.place_of(a[0]) is not None:
        calls.refuse_change(rec, a[0], "next()")
    return rec.give(watched(next, a, {}))


def _iter(rec: Running, f: Any, a: Args, k: Named) -> Any:
    return iter(callback(a[0]), a[1]) if len(a) == 2 else iter(iterate(rec, a[0]))


def _reversed(rec: Running, f: Any, a: Args, k: Named) -> Any:
    o = a[0]
    method = rec.special(type(o), "__reversed__")
    if type(method) is Function:
        return rec.call(method, o)
    if is_a(o, (list, tuple, collections.deque)):
        rec.touch(o)
        return reversed([*rec.each(o)]) if rec.stand_ins else reversed(o)
    if is_a(o, (dict, *VIEWS, range, str)):
        rec.touch(o)
        return map(rec.give, reversed(o))
    n = rec.call(len, o)
    return (calls.operations.item((o, i)) for i in range(n - 1, -1, -1))


def _comparing(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """``sorted``, ``max``, ``min``: with the user's own ``__lt__`` they are done in Python."""
    by_value = k.get("key") is None and is_a(a[0], (set, frozenset))
    in_order = not by_value or not all(type(v) in (str, bytes, int, float) for v in a[0])
    given = a if len(a) > 1 else iterate(rec, a[0], in_order=in_order)
    key = callback(k["key"]) if k.get("key") is not None else None
    held, keys = list[Any](given if f is sorted else ()), list[Any]()
    for value in held if f is sorted else given:
        if f is not sorted:
            held.append(rec.give(value))
        if key:  # of `max` and `min` before the next one is made
            keys.append(key(held[len(keys)]))
    if not held and f is not sorted:
        return f(held, **k)
    keys = keys if key else held
    compare = calls.operations.compare
    if not all(map(_is_plain, keys)):
        name, sign = ("gt", 1) if f is max else ("lt", -1)

        def order(x: Any, y: Any) -> int:
            return sign if compare(name, (x, y)) else 0

        keys = [functools.cmp_to_key(order)(v) for v in keys]
    rest = {name: v for name, v in k.items() if name not in ("key", "default")}
    got = f(range(len(held)), key=keys.__getitem__, **rest)
    return [held[i] for i in got] if f is sorted else held[got]


def _is_plain(value: Any) -> bool:
    """Does C code alone compare it?"""
    return type(value) in SIMPLE or (type(value) is tuple and all(map(_is_plain, value)))


def _length_hint(rec: Running, f: Any, a: Args, k: Named) -> Any:
    if rec.special(type(a[0]), "__len__") is not MISSING:
        return rec.call(len, a[0])
    method = rec.special(type(a[0]), "__length_hint__")
    if type(method) is not Function:
        return calls.opaque(rec, f, a, k)
    try:
        got = rec.call(method, a[0])
    except TypeError:
        got = NotImplemented
    if type(got) is int and got < 0:
        raise ValueError("__length_hint__() should return >= 0")
    return (a[1] if len(a) > 1 else 0) if got is NotImplemented else got


def _sum(rec: Running, f: Any, a: Args, k: Named) -> Any:
    if f in (any, all):
        truth = calls.operations.truth
        return next(
            (f is any for v in iterate(rec, a[0]) if bool(truth(v)) is (f is any)), f is all
        )
    held = [*map(rec.give, iterate(rec, a[0]))]
    if f is sum and not all(map(_is_plain, held)):
        out = a[1] if len(a) > 1 else k.get("start", 0)
        for value in held:
            out = calls.operations.binary("+", (out, value))
        return out
    return watched(f, (held, *map(rec.give, a[1:])), k)


# ---- numbers and texts
def _id(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """As a key of a memo in Python's own code; else it is another number in each call."""
    frame = instrumented_frame()
    if owner_of_file(frame.f_code.co_filename) is Owner.USER:
        rec.refuse(
            SideEffectError(
                "the region calls id",
                code="asks-for-id",
                path=user_line(),
                fix="compare objects by `is`, or give them names",
            )
        )
    return id(a[0])


# ---- operator, functools
def _operation(name: str, *static: Any) -> Handler:
    return lambda rec, f, a, k: getattr(calls.operations, name)(
        *static, a[0] if name == "unary" else a
    )


def _pow(rec: Running, f: Any, a: Args, k: Named) -> Any:
    two = len(a) == 2 and not k
    return calls.operations.binary("**", a) if two else calls.opaque(rec, f, a, k)


def _changes_first(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """It changes the container that it is given first."""
    if f is not _COUNT:
        return calls.opaque(rec, f, a, k, keeps=False)
    if is_lazy(a[1]):  # which may look at what was counted so far
        for item in iterate(rec, a[1]):
            count = rec.call(a[0].get, item, 0)
            calls.operations.set_item((calls.operations.binary("+", (count, 1)), a[0], item))
        return None
    rec.write(a[0])
    return f(a[0], _keys(rec, a[1], a[0]))


_COUNT: Any = collections._count_elements  # type: ignore[attr-defined]
#: `heapq`, `bisect`, and what `Counter` is made of
_CHANGE_FIRST = (
    *(f for name, f in vars(heapq).items() if type(f) is Builtin and "heap" in name),
    *(bisect.insort_left, bisect.insort_right),
    _COUNT,
)


def _of_library(why: str) -> Handler:
    """Python's own code may ask."""

    def handler(rec: Running, f: Any, a: Args, k: Named) -> Any:
        if owner_of_file(instrumented_frame().f_code.co_filename) is Owner.USER:
            rec.refuse(
                UnsupportedError(
                    f"the region asks for {why}", code="asks-for-unseen", path=user_line()
                )
            )
        return f(*a, **k)

    return handler


def _refuse_call(why: str) -> Handler:
    def handler(rec: Running, f: Any, a: Args, k: Named) -> Any:
        rec.refuse(
            UnsupportedError(f"the region asks for {why}", code="asks-for-unseen", path=user_line())
        )

    return handler


CLASSES.update(
    {
        **dict.fromkeys(
            (list, tuple, set, frozenset, dict, collections.OrderedDict, collections.deque),
            _container,
        ),
        **dict.fromkeys((zip, enumerate), _iterating),
        **dict.fromkeys((map, filter), _mapping_function),
        **{kind: _iterating for kind in vars(itertools).values() if is_a(kind, type)},
        **dict.fromkeys(
            (itertools.takewhile, itertools.dropwhile, itertools.filterfalse),
            _mapping_function,
        ),
        **dict.fromkeys((itertools.accumulate, itertools.groupby), _by_function),
        itertools.compress: _selected,
        itertools.starmap: lambda rec, f, a, k: f(
            callback(a[0]), (iterate(rec, v) for v in iterate(rec, a[1]))
        ),
        reversed: _reversed,
        float: by_method("__float__"),
        int: by_method("__int__"),
        complex: by_method("__complex__"),
        bool: by_method("__bool__"),
        str: by_method("__str__"),
        collections.defaultdict: lambda rec, t, a, k: t(
            *a[:1], *[iterate(rec, v) for v in a[1:]], **k
        ),
        **dict.fromkeys(
            (
                Method,
                property,
                staticmethod,
                classmethod,
                slice,
                range,
                object,
                Function,
                weakref.ref,
            ),
            plain,
        ),
        **dict.fromkeys((operator.attrgetter, operator.itemgetter, operator.methodcaller), plain),
        **dict.fromkeys(
            (
                io.BytesIO,
                io.StringIO,
                types.SimpleNamespace,
                types.MappingProxyType,
                torch.Size,
                torch.device,
            ),
            plain,
        ),
    }
)
_TWO = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
}
_TWO |= {"matmul": "@", "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>"}
#: C functions behind ``os.path`` that compute with texts, by their names in some version of Python
_TEXTS = ("_path_normpath", "_path_splitroot", "_path_splitroot_ex")
_OF_PATHS = [f for f in vars(os.path).values() if type(f) is Builtin and f.__name__ in _TEXTS]
C_TABLE.update(
    {
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
        dict.fromkeys: lambda rec, f, a, k: f(_keys(rec, a[0]), *a[1:]),
        itertools.chain.from_iterable: lambda rec, f, a, k: f(
            iterate(rec, v) for v in iterate(rec, a[0])
        ),
        next: _next,
        iter: _iter,
        **dict.fromkeys((sum, any, all, math.prod, math.fsum), _sum),
        **dict.fromkeys((sorted, max, min), _comparing),
        functools.reduce: _mapping_function,
        callable: _callable,
        id: _id,
        divmod: _operation("binary", "divmod"),
        pow: _pow,
        builtins.__import__: plain,
        operator.getitem: _operation("item"),
        operator.setitem: lambda rec, f, a, k: calls.operations.set_item((a[2], a[0], a[1])),
        operator.delitem: _operation("del_item"),
        operator.contains: lambda rec, f, a, k: calls.operations.contains(False, (a[1], a[0])),
        operator.is_: lambda rec, f, a, k: calls.operations.__dict__["is"](False, a),
        operator.is_not: lambda rec, f, a, k: calls.operations.__dict__["is"](True, a),
        operator.not_: lambda rec, f, a, k: not calls.operations.truth(a[0]),
        **{
            getattr(operator, name): _operation("compare", name)
            for name in ("eq", "ne", "lt", "le", "gt", "ge")
        },
        **{getattr(operator, name): _operation("binary", symbol) for name, symbol in _TWO.items()},
        **{
            getattr(operator, "i" + name.strip("_")): _operation("binary", symbol + "=")
            for name, symbol in _TWO.items()
        },
        **{getattr(operator, name): _operation("unary", name) for name in ("neg", "pos", "invert")},
        operator.length_hint: _length_hint,
        operator.iconcat: _operation("binary", "+="),
        sys.exc_info: _of_library("the exception that is handled"),
        threading.get_ident: _of_library("the number of the thread"),
        **dict.fromkeys(_CHANGE_FIRST, _changes_first),
        sys._getframe: _refuse_call("a frame"),
        gc.isenabled: _refuse_call("whether the collector runs, which a trace halts"),
        **dict.fromkeys((os.fspath, sys.intern, *_OF_PATHS), plain),
        sys.audit: plain,  # which tells those who watch the interpreter
    }
)
