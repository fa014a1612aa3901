"""Objects of C that are called: partials, getters, caches, weak references, context variables."""

from __future__ import annotations

import decimal
import functools
import operator
import weakref
from typing import Any, TypeAlias

import torch

from ..errors import SideEffectError, UnsupportedError
from ..subclass.values import ATOMS, is_a
from ..torch_api.modes import no_modes, no_overrides
from . import attributes, calls
from .calls import BY_TYPE, C_TABLE, FUNCTIONS
from .current import current, set_current
from .iteration import as_mapping, iterate
from .kinds import (
    LruCache,
    Partial,
)
from .net import unwatched, watched
from .recorder import user_line
from .running import Running
from .values import MISSING

Args: TypeAlias = tuple[Any, ...]
Named: TypeAlias = dict[str, Any]


def _attrgetter(rec: Running, f: Any, a: Args, k: Named) -> Any:
    names = f.__reduce__()[1]
    rec.row(f, "is", f)

    def one(name: str) -> Any:
        value = a[0]
        for part in name.split("."):
            value = attributes.get(rec, value, part)
        return value

    return one(names[0]) if len(names) == 1 else tuple(map(one, names))


def _itemgetter(rec: Running, f: Any, a: Args, k: Named) -> Any:
    rec.row(f, "is", f)
    keys = f.__reduce__()[1]
    got = [calls.operations.item((a[0], key)) for key in keys]
    return got[0] if len(keys) == 1 else tuple(got)


def _methodcaller(rec: Running, f: Any, a: Args, k: Named) -> Any:
    rec.row(f, "is", f)
    made = f.__reduce__()
    (name, *args), named = (
        (made[1], {})
        if made[0] is operator.methodcaller
        else ((made[0].args[0], *made[1]), made[0].keywords)
    )
    return rec.call(attributes.get(rec, a[0], name), *args, **named)


def _partial_of(rec: Running, cls: Any, a: Args, k: Named) -> Any:
    """One of another one takes over what that holds."""
    if a and type(a[0]) is cls and rec.place_of(a[0]) is not None:
        for name in ("func", "args", "keywords"):
            rec.touch(rec.step(a[0], "inner", name, getattr(a[0], name)))
    return watched(cls, tuple(map(rec.give, a)), k)


def _partial(rec: Running, f: Any, a: Args, k: Named) -> Any:
    args, named = f.args, f.keywords
    if rec.place_of(f) is not None:
        for name in ("func", "args", "keywords"):
            rec.step(f, "inner", name, getattr(f, name))
        rec.touch(args)
        rec.touch(named)
        args = iterate(rec, args)
        named = as_mapping(rec, named)
    return rec.call(f.func, *args, *a, **{**named, **k})


def _lru_cache(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """What a cache keeps has no other place: the guard asks it again."""
    rec.step(f, "inner", "__wrapped__", f.__wrapped__)
    given = (*a, *k.values())
    for value in given:
        if type(value) not in ATOMS and not is_a(value, torch.Tensor):
            rec.pin(value)
    plain = all(
        type(v) in ATOMS or (rec.place_of(v) is not None and not is_a(v, torch.Tensor))
        for v in given
    )
    place = rec.place_of(f)
    if place is None:  # the run has made it, of a callback
        return rec.give(watched(f, tuple(map(rec.mapped, a)), k))
    if not plain:
        if f.cache_info().currsize:
            _refuse_cached(f)
        return rec.call(f.__wrapped__, *a, **k)
    misses, recorder = f.cache_info().misses, set_current(None)
    # A miss runs the function once, for real, as in eager mode; then its result is what is kept.
    try:
        with no_overrides(), no_modes():
            out = unwatched(f, *a, **k)
    finally:
        set_current(recorder)
    if rec.written and f.cache_info().misses != misses:
        raise rec.refused(
            UnsupportedError(
                "a cache is filled by a function that may read what the region has written before",
                code="cache-filled",
                path=f"{getattr(f, '__qualname__', 'a cache')} at {user_line()}",
                fix="call the function once before the region",
            )
        )
    return rec.at(rec.child(place, "cached", (a, (*k.items(),))), out)


def _refuse_cached(f: Any) -> None:
    raise current().refused(
        SideEffectError(
            "functools.lru_cache keeps what the region computes, or what it is called with",
            code="cache-kept",
            path=f"{getattr(f, '__qualname__', 'a cache')} at {user_line()}",
            expected="cached numbers, texts and the like, of numbers and texts",
            fix="call the function once before the region, and hold what it returns in a variable",
        )
    )


def weakly(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """What a weak reference leads to, while it is there."""
    out, place = weakref.ref.__call__(f, *a, **k), rec.place_of(f)
    return rec.give(out) if place is None else rec.at(rec.child(place, "weak", None), out)


def asks(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """A call whose result is state itself: a flag, the current context of decimal numbers."""
    out = f(*a, **k)
    return rec.at(rec.child(rec.place_of(f) or rec.root(f), "call", a), out)


def context_variable(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """``ContextVar.get``, ``.set`` and ``.reset``: what is set has to be what it was in the end
    (`Run.check_variables`)."""
    variable, name = f.__self__, f.__name__
    if name != "get":
        before, out = variable.get(MISSING), f(*a, **k)
        if name == "set":
            rec.variables.setdefault(id(variable), (variable, before, out))
        elif a and rec.variables.get(id(variable), (None,))[-1] is a[0]:
            del rec.variables[id(variable)]  # it holds what it held
        return out
    out = f(*a, **k)
    place = rec.place_of(variable)
    if place is None or id(variable) in rec.variables:
        return rec.give(out)
    return rec.at(rec.child(rec.child(place, "inner", "get"), "call", a), out)


BY_TYPE.update(
    {
        operator.attrgetter: _attrgetter,
        operator.itemgetter: _itemgetter,
        operator.methodcaller: _methodcaller,
        Partial: _partial,
        LruCache: _lru_cache,
        weakref.ref: weakly,
        weakref.KeyedRef: weakly,
    }
)
C_TABLE[decimal.getcontext] = asks
calls.CLASSES[Partial] = _partial_of


def _dispatched(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """``functools.singledispatch``: which function its table has for a class. Its cache, which
    follows from the table, is not asked: the region may have changed that."""
    cells = dict(zip(f.__code__.co_freevars, f.__closure__, strict=True))
    registry = cells["registry"].cell_contents
    rec.cells_of(f)
    rec.step(cells["registry"], "contents", None, registry)
    rec.touch(registry)
    find_impl = functools._find_impl  # type: ignore[attr-defined]
    found = registry.get(a[0]) or unwatched(find_impl, a[0], registry)
    keys = [key for key, held in registry.items() if held is found]
    return rec.item(registry, keys[0], found) if keys else found


FUNCTIONS[functools.singledispatch(callable).dispatch.__code__] = _dispatched
