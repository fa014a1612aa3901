"""Items of containers and tensors: read, written, deleted, looked for."""

from __future__ import annotations

import builtins
import collections
import types
from typing import Any

import torch

from ..subclass.values import ATOMS, is_a
from ..torch_api.numbers import PYTHON_CLASSES, plain_number
from . import attributes, calls
from .boundary import ENTER, kind_of
from .current import current
from .iteration import iterate
from .kinds import CONTAINERS, VIEWS, Function
from .operators import compare, python_method, truth
from .running import Running
from .values import MISSING, lookup

Tensor = torch.Tensor
_builtins = builtins.__dict__
_SYMBOLS = frozenset(PYTHON_CLASSES)


def item(pair: tuple[Any, Any]) -> Any:
    """``o[key]``."""
    o, key = pair
    rec = current()
    if rec is None:
        return o[key]
    kind = type(o)
    if is_a(o, Tensor):
        return _item_of_tensor(rec, rec.give(o), key)
    if is_a(o, type):
        return _item_of_class(rec, o, key)
    getter = rec.lookup(kind, "__getitem__")
    if type(getter) is Function:
        return rec.call(getter, o, key)
    if is_a(o, CONTAINERS):
        return item_of_container(rec, o, key)
    if kind is types.MappingProxyType:
        inner = calls.referents(o)[0]
        rec.step(o, "ref", 0, inner)
        return item((inner, key)) if is_a(inner, dict) else o[key]
    if kind not in ATOMS:
        rec.deep(o, "[]")
    return rec.give(o[_index(rec, key)])


def _item_of_tensor(rec: Running, t: Any, key: Any) -> Any:
    if type(key) not in ATOMS and not is_a(key, Tensor):
        calls.read_argument(rec, key)
        key = rec.mapped(key)
    cls = type(rec.real(t))
    getter = MISSING if attributes.is_of_torch_class(cls) else rec.lookup(cls, "__getitem__")
    if type(getter) is Function and kind_of(getter.__code__) == ENTER:
        return rec.call(getter, t, key)
    return t[rec.give(key)]


def _item_of_class(rec: Running, o: type, key: Any) -> Any:
    getter = rec.lookup(type(o), "__getitem__")
    if type(getter) is Function:
        return rec.call(getter, o, key)
    found = rec.lookup(o, "__class_getitem__")
    if is_a(found, classmethod) and type(found.__func__) is Function:
        return rec.call(attributes.get(rec, o, "__class_getitem__"), key)
    return o[key]  # type: ignore[index]


def _index(rec: Running, key: Any) -> Any:
    """A number from what has ``__index__`` of the user's."""
    if type(key) in ATOMS or type(key) in _SYMBOLS or is_a(key, (int, Tensor)):
        return key
    return (
        rec.call(rec.lookup(type(key), "__index__"), key)
        if is_a(lookup(type(key), "__index__"), Function)
        else key
    )


def item_of_container(rec: Running, o: Any, key: Any) -> Any:
    """``o[key]`` of a built-in container, or as the C code of a subclass finds it."""
    if is_a(o, dict):
        return _item_of_dict(rec, o, key)
    if type(key) is slice:
        key = slice(*(_plain(_index(rec, k)) for k in (key.start, key.stop, key.step)))
    elif type(key) is not int:
        key = _plain(_index(rec, key))
    kinds = (list, torch.Size, tuple, collections.deque)
    base: Any = next(kind for kind in kinds if is_a(o, kind))
    try:
        value = base.__getitem__(o, key)
    except IndexError:
        rec.length(o, "len", len(o))
        raise
    return rec.item(o, key, value)


def _plain(key: Any) -> Any:
    return int(key) if type(key) in _SYMBOLS else key


def _item_of_dict(rec: Running, o: Any, key: Any) -> Any:
    key, value = found_in(rec, o, key)
    given = rec.item(o, key, value)
    if value is not MISSING:
        return given
    missing = rec.lookup(type(o), "__missing__")
    if type(missing) is Function:
        return rec.call(missing, o, key)
    if is_a(o, collections.defaultdict):
        rec.step(o, "getattr", "default_factory", o.default_factory)
        if o.default_factory is not None:
            value = rec.call(o.default_factory)
            rec.write(o, key, whole=False)
            dict.__setitem__(o, key, value)
            return value
    return dict.__getitem__(o, key)


def found_in(rec: Running, o: Any, key: Any) -> tuple[Any, Any]:
    """A key of a dict as it stands there, and its value: a tensor is a key as the real one, or as
    the stand-in where the run has made the dict."""
    hashed(rec, key, o)
    key = plain_number(key)
    real = rec.real(key)
    value = dict.get(o, real, MISSING)
    if value is MISSING and real is not key:
        found = dict.get(o, key, MISSING)
        if found is not MISSING:
            return key, found
    return real, value


def hashed(rec: Running, key: Any, of: Any = ()) -> None:
    """The hash of a key is asked, and the keys of a container ``of`` are compared with it: by
    identity, if its class says no more."""
    kind = type(key)
    if kind in ATOMS or is_a(key, (type, str, Tensor)):
        return
    if kind in _SYMBOLS:
        hash(PYTHON_CLASSES[kind](key))
        return
    if kind is tuple or kind is frozenset:
        for part in key:
            hashed(rec, part)
        return
    method = python_method(rec, key, "__hash__")
    if method is None:
        rec.pin(key)
        return
    code = rec.call(method, key)
    equal = python_method(rec, key, "__eq__")
    for other in list(of) if equal is not None else ():
        if type(other) is kind and other is not key and rec.call(method, other) == code:
            rec.deep(other, "hash")
            rec.call(equal, key, other)


def contains(negated: bool, pair: tuple[Any, Any]) -> bool:
    """``key in o``."""
    key, o = pair
    rec = current()
    if rec is None:
        return (key not in o) if negated else (key in o)
    return _contains(rec, o, key) is not negated


def _contains(rec: Running, o: Any, key: Any) -> bool:
    kind = type(o)
    method = rec.lookup(kind, "__contains__")
    if type(method) is Function and not is_a(o, Tensor):
        return bool(truth(rec.call(method, o, key)))
    if is_a(o, CONTAINERS):
        return in_container(rec, o, key)
    if is_a(o, VIEWS):
        rec.touch(o)
        return rec.real(key) in o or key in o
    if kind is types.MappingProxyType:
        inner = calls.referents(o)[0]
        rec.step(o, "ref", 0, inner)
        return _contains(rec, inner, key)
    if kind in ATOMS or is_a(o, Tensor):
        return key in o
    return any(held is key or truth(compare("eq", (held, key))) for held in iterate(rec, o))


def in_container(rec: Running, o: Any, key: Any) -> bool:
    """``key in o`` of a built-in container."""
    if is_a(o, dict):
        key, value = found_in(rec, o, key)
        rec.item(o, key, value)
        return value is not MISSING
    rec.touch(o)
    if is_a(o, (set, frozenset)):
        hashed(rec, key, o)
        return rec.real(key) in o or key in o
    return any(held is key or truth(compare("eq", (held, key))) for held in rec.each(o))


def set_item(parts: tuple[Any, Any, Any]) -> None:
    """``o[key] = value``."""
    value, o, key = parts
    rec = current()
    if rec is None:
        o[key] = value
        return
    kind = type(o)
    if is_a(o, Tensor):
        if type(key) not in ATOMS and not is_a(key, Tensor):
            calls.read_argument(rec, key)
        rec.give(o)[rec.mapped(key)] = rec.give(value)
        return
    setter = rec.lookup(kind, "__setitem__")
    if type(setter) is Function:
        rec.call(setter, o, key, value)
    elif is_a(o, dict):
        key, _ = found_in(rec, o, key)
        rec.write(o, key, whole=False)
        o[key] = value
    else:
        write_whole(rec, o, "[...] = ...")
        o[_index(rec, key)] = value


def write_whole(rec: Running, o: Any, how: str) -> None:
    """A container is about to be changed in any way; anything else of C that was there before is
    refused."""
    if is_a(o, CONTAINERS):
        rec.write(o)
    elif rec.place_of(o) is not None:
        calls.refuse_change(rec, o, how)


def del_item(pair: tuple[Any, Any]) -> None:
    """``del o[key]``."""
    o, key = pair
    rec = current()
    if rec is None:
        del o[key]
        return
    deleter = rec.lookup(type(o), "__delitem__")
    if type(deleter) is Function:
        rec.call(deleter, o, key)
        return
    if is_a(o, dict):
        key, value = found_in(rec, o, key)
        rec.item(o, key, value)
        rec.write(o, key, whole=False)
    else:
        write_whole(rec, o, "del [...]")
    del o[key]


def read_slice(parts: tuple[Any, Any, Any]) -> Any:
    """``o[a:b]``."""
    return item((parts[0], slice(parts[1], parts[2])))


def set_slice(parts: tuple[Any, ...]) -> None:
    """``o[a:b] = value``."""
    value, o, start, stop = parts
    set_item((value, o, slice(start, stop)))
