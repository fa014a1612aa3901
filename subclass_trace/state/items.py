"""Items of containers and tensors: read, written, deleted, looked for."""

from __future__ import annotations

import builtins
import collections
import operator
import types
import weakref
from typing import Any

import torch

from ..subclass.values import ATOMS, is_a
from ..torch_api.numbers import PYTHON_CLASSES, plain_number
from . import attributes, calls
from .boundary import ENTER, kind_of
from .current import current
from .iteration import iterate
from .kinds import CONTAINERS, SIMPLE, VIEWS, Function
from .net import watched
from .operators import compare, python_method, truth
from .running import Running
from .special import is_python
from .values import MISSING, base_of, items_of, size_of

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
    getter = rec.special(kind, "__getitem__")
    if type(getter) is Function:
        return rec.call(getter, o, key)
    if is_a(o, CONTAINERS):
        return item_of_container(rec, o, key)
    if kind is types.MappingProxyType:
        return item((_behind(rec, o), key))
    if kind not in ATOMS:
        rec.deep(o, "[]")
    return rec.give(o[_index(rec, key)])


def _behind(rec: Running, proxy: Any) -> Any:
    inner = calls.referents(proxy)[0]
    rec.step(proxy, "ref", 0, inner)
    return inner


def _item_of_tensor(rec: Running, t: Any, key: Any) -> Any:
    key = _key_of_tensor(rec, key)
    cls = type(rec.real(t))
    getter = MISSING if attributes.is_of_torch_class(cls) else rec.special(cls, "__getitem__")
    if type(getter) is Function and kind_of(getter.__code__) == ENTER:
        return rec.call(getter, t, key)
    return _asked(operator.getitem, t, key)


def _key_of_tensor(rec: Running, key: Any) -> Any:
    if (type(key) in ATOMS and type(key) is not slice) or is_a(key, Tensor):
        return rec.give(key)
    key = key if is_python(type(key), "__getitem__") else _index(rec, key)
    calls.read_argument(rec, key)
    return rec.mapped(key)


def _asked(f: Any, *args: Any) -> Any:
    """Torch's code may ask objects for numbers."""
    return watched(f, args, {}) if any(map(_has_objects, args)) else f(*args)


def _has_objects(key: Any) -> bool:
    if type(key) in (tuple, list, slice):
        return any(map(_has_objects, _ends(key) if type(key) is slice else key))
    return type(key) not in SIMPLE and not is_a(key, Tensor) and key is not ...


def _item_of_class(rec: Running, o: type, key: Any) -> Any:
    getter = rec.special(type(o), "__getitem__")
    if type(getter) is Function:
        return rec.call(getter, o, key)
    found = rec.lookup(o, "__class_getitem__")
    if is_a(found, classmethod) and type(found.__func__) is Function:
        return rec.call(attributes.get(rec, o, "__class_getitem__"), key)
    return o[key]  # type: ignore[index]


def _index(rec: Running, key: Any) -> Any:
    """A number from what has ``__index__`` of the user's."""
    if type(key) is slice:
        return slice(*(_index(rec, k) for k in _ends(key)))
    if type(key) is tuple:
        return tuple(_index(rec, k) for k in key)
    if type(key) in ATOMS or type(key) in _SYMBOLS or is_a(key, (int, Tensor)):
        return key
    method = rec.special(type(key), "__index__")
    return rec.call(method, key) if type(method) is Function else key


def item_of_container(rec: Running, o: Any, key: Any) -> Any:
    """``o[key]`` of a built-in container, or as the C code of a subclass finds it."""
    if is_a(o, dict):
        return _item_of_dict(rec, o, key)
    if type(key) is not int:
        key = _index(rec, key)
        key = slice(*map(_plain, _ends(key))) if type(key) is slice else _plain(key)
    try:
        value = base_of(o).__getitem__(o, key)
    except IndexError:
        rec.length(o, "len", size_of(o))
        raise
    return rec.item(o, key, value)


def _ends(key: slice) -> tuple[Any, Any, Any]:
    return key.start, key.stop, key.step


def _plain(key: Any) -> Any:
    return int(key) if type(key) in _SYMBOLS else key


def _item_of_dict(rec: Running, o: Any, key: Any) -> Any:
    key, value = found_in(rec, o, key)
    given = rec.item(o, key, value)
    if value is not MISSING:
        return given
    missing = rec.special(type(o), "__missing__")
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
    keyed(rec, [key], o)
    key = plain_number(key)
    real = rec.real(key)
    value = dict.get(o, real, MISSING)
    if value is MISSING and real is not key:
        found = dict.get(o, key, MISSING)
        if found is not MISSING:
            return key, found
    return real, value


def hashed(rec: Running, key: Any) -> None:
    """The hash of a key is asked: by identity, if its class says no more."""
    kind = type(key)
    if kind in ATOMS or is_a(key, Tensor):
        return
    if kind in _SYMBOLS:
        hash(PYTHON_CLASSES[kind](key))
    elif (parts := _parts(key)) is not None:
        for part in parts:
            hashed(rec, part)
    elif (method := python_method(rec, key, "__hash__")) is not None:
        rec.call_again(method, key)
    elif not is_a(key, (type, str)):
        rec.pin(key)


def keyed(rec: Running, keys: Any, of: Any = ()) -> None:
    """Keys are looked for in, or put into, a container of others: their hashes are asked, and
    where two of them are equal, the keys are compared, if their classes do that in Python."""
    for key in keys:
        hashed(rec, key)
    if _are_plain(rec, of) and not any(_compares(rec, key) for key in keys):
        return
    rec.touch(of)
    held = [*items_of(of)]
    met: dict[int, list[Any]] = {}
    for number, key in enumerate((*held, *keys)):
        others = met.setdefault(_code(rec, key), [])
        if number < len(held) or not any(_are_one(rec, other, key) for other in others):
            others.append(key)


def _are_plain(rec: Running, of: Any) -> bool:
    """Is no key of a container compared by code of Python's? Asked once while it has as many."""
    known = rec.plain.get(id(of))
    if known is None or known[0] is not of or known[1] != size_of(of):
        may = any(map(_may_compare, {*map(type, items_of(of))}))
        if may and any(_compares(rec, key) for key in items_of(of)):
            return False
        rec.plain[id(of)] = of, size_of(of)
    return True


def _may_compare(kind: type) -> bool:
    own = issubclass(kind, (tuple, frozenset, weakref.ref)) or is_python(kind, "__eq__")
    return own and kind not in ATOMS and not issubclass(kind, Tensor)


def _code(rec: Running, key: Any) -> int:
    key = rec.real(key)
    return hash(PYTHON_CLASSES[type(key)](key) if type(key) in _SYMBOLS else key)


def _are_one(rec: Running, other: Any, key: Any) -> bool:
    if other is key or not (_compares(rec, other) or _compares(rec, key)):
        return other is key or (type(key) in ATOMS and type(other) in ATOMS and other == key)
    return bool(truth(rec.call_again(operator.eq, other, key)))


def _compares(rec: Running, key: Any) -> bool:
    """Is a key compared by code of Python's?"""
    if type(key) in ATOMS or is_a(key, Tensor) or type(key) in _SYMBOLS:
        return False
    if (parts := _parts(key)) is not None:
        return any(_compares(rec, part) for part in parts)
    return python_method(rec, key, "__eq__") is not None


def _parts(key: Any) -> list[Any] | None:
    """What the hash of a key is made of, if C code makes it of others."""
    if is_a(key, weakref.ref):
        return [key()]
    if is_a(key, (tuple, frozenset)) and not is_python(type(key), "__hash__", "__eq__"):
        return [*items_of(key)]
    return None


def keyed_in(pair: tuple[Any, Any]) -> Any:
    """A key that is put into a container; that is None where it is not known."""
    key, of = pair
    rec = current()
    if rec is not None and type(key) not in ATOMS:
        if of is None and _compares(rec, key):
            calls.refuse_change(rec, key, "a key that is compared")
        keyed(rec, [key], of or ())
    return key


def contains(negated: bool, pair: tuple[Any, Any]) -> bool:
    """``key in o``."""
    key, o = pair
    rec = current()
    if rec is None:
        return (key not in o) if negated else (key in o)
    return _contains(rec, o, key) is not negated


def _contains(rec: Running, o: Any, key: Any) -> bool:
    kind = type(o)
    method = rec.special(kind, "__contains__")
    if type(method) is Function and not is_a(o, Tensor):
        return bool(truth(rec.call(method, o, key)))
    if is_a(o, CONTAINERS):
        return in_container(rec, o, key)
    if is_a(o, VIEWS):
        rec.touch(o)
        return any(watched(operator.contains, (o, k), {}) for k in (rec.real(key), key))
    if kind is types.MappingProxyType:
        return _contains(rec, _behind(rec, o), key)
    if kind in ATOMS or is_a(o, Tensor):
        return key in o
    if method is not MISSING:  # that of C code
        rec.deep(o, "in")
        return bool(watched(operator.contains, (o, rec.mapped(key)), {}))
    return any(held is key or truth(compare("eq", (held, key))) for held in iterate(rec, o))


def in_container(rec: Running, o: Any, key: Any) -> bool:
    """``key in o`` of a built-in container."""
    if is_a(o, dict):
        key, value = found_in(rec, o, key)
        rec.item(o, key, value)
        return value is not MISSING
    rec.touch(o)
    if is_a(o, (set, frozenset)):
        keyed(rec, [key], o)
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
        _asked(operator.setitem, rec.give(o), _key_of_tensor(rec, key), rec.give(value))
        return
    setter = rec.special(kind, "__setitem__")
    if type(setter) is Function:
        rec.call(setter, o, key, value)
    elif is_a(o, dict):
        key, _ = found_in(rec, o, key)
        rec.write(o, key, whole=False)
        o[key] = value
    else:
        key = _index(rec, key)
        if not (
            type(key) is int and is_a(o, (list, collections.deque)) and _at_number(rec, o, key)
        ):
            write_whole(rec, o, "[...] = ...")
        if type(key) is slice and is_a(o, CONTAINERS):
            value = iterate(rec, value)
        watched(operator.setitem, (o, key, value), {})


def _at_number(rec: Running, o: Any, key: int) -> bool:
    """An item that was there before is about to be written."""
    held = size_of(rec.box(o))
    number = key + size_of(o) if key < 0 else key
    if not 0 <= number < held:
        return False
    rec.sized(o, "len", held)
    rec.write(o, number, whole=False)
    return True


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
    deleter = rec.special(type(o), "__delitem__")
    if type(deleter) is Function:
        rec.call(deleter, o, key)
        return
    if is_a(o, dict):
        key, value = found_in(rec, o, key)
        rec.item(o, key, value)
        rec.write(o, key, whole=False, removes=True)
    else:
        write_whole(rec, o, "del [...]")
        key = _index(rec, key)
    del o[key]


def read_slice(parts: tuple[Any, Any, Any]) -> Any:
    """``o[a:b]``."""
    return item((parts[0], slice(parts[1], parts[2])))


def set_slice(parts: tuple[Any, ...]) -> None:
    """``o[a:b] = value``."""
    value, o, start, stop = parts
    set_item((value, o, slice(start, stop)))
