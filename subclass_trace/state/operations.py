"""What each replaced instruction does: the same as the instruction, recorded. Without a recorder: the instruction alone.

See `instrument` for which instruction becomes which operation.
"""

from __future__ import annotations

import builtins
import collections
import decimal
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from .. import torch_api
from . import attributes, calls
from .boundary import ENTER, kind_of
from .current import current
from .frames import instrumented_frame
from .instrument import OPS
from .iteration import iterate, keys_of
from .kinds import CONTAINERS, LOCKS, SIMPLE, VALUES, VIEWS, Function, is_immutable
from .values import ATOMS, MISSING, is_a, lookup, pairs_of

Tensor = torch.Tensor
_builtins = builtins.__dict__
_SYMBOLS = frozenset(torch_api.PYTHON_CLASSES)


# ---------------------------------------------------------------------------------------------- calls
def call(f: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``f(*args, **kwargs)``."""
    rec = current()
    return f(*args, **kwargs) if rec is None else rec.call(f, *args, **kwargs)


def call0(pair: tuple[Any, Any]) -> Any:
    """[call, f] of ``f()``, or [f, argument] of a comprehension, a decorator, an assertion."""
    slot, f = pair
    return call(f) if slot is call else call(slot, f)


def call_ex(parts: tuple[Any, ...]) -> Any:
    """``f(*args, **kwargs)`` with both as they are written."""
    f, args, *named = parts
    rec = current()
    if rec is None:
        return f(*args, **(named[0] if named else {}))
    return rec.call(f, *iterate(rec, args), **(mapping(named[0]) if named else {}))


def call_tuple(parts: tuple[Any, ...]) -> Any:
    """Python 3.10: the callable and its arguments."""
    return call(*parts)


def call_kw(parts: tuple[Any, ...]) -> Any:
    """Python 3.10: the callable, its arguments, the names of the last ones."""
    *given, names = parts
    n = len(given) - len(names)
    return call(*given[:n], **dict(zip(names, given[n:], strict=True)))


# ---------------------------------------------------------------------------------------------- names
def attr(name: str, o: Any) -> Any:
    """``o.name``."""
    rec = current()
    return getattr(o, name) if rec is None else attributes.get(rec, o, name)


def super_attr(name: str, parts: tuple[Any, Any, Any]) -> Any:
    """``super(cls, o).name``."""
    rec = current()
    made, cls, o = parts
    if rec is None or made is not super:
        return getattr(made(cls, o), name)
    return attributes.after(rec, cls, o, name)


def set_attr(name: str, pair: tuple[Any, Any]) -> None:
    """``pair[1].name = pair[0]``."""
    rec = current()
    setattr(pair[1], name, pair[0]) if rec is None else attributes.put(rec, pair[1], name, pair[0])


def del_attr(name: str, o: Any) -> None:
    """``del o.name``."""
    rec = current()
    delattr(o, name) if rec is None else attributes.put(rec, o, name, MISSING)


def read_global(name: str) -> Any:
    """A global variable, or a built-in."""
    rec, space = current(), instrumented_frame(2).f_globals
    value = space.get(name, MISSING)
    if rec is not None:
        rec.root(space)
        given = rec.item(space, name, value)
        if value is not MISSING:
            return given
        rec.root(_builtins)
        value = _builtins.get(name, MISSING)
        rec.item(_builtins, name, value)
    elif value is MISSING:
        value = _builtins.get(name, MISSING)
    if value is MISSING:
        raise NameError(f"name '{name}' is not defined")
    return value


def read_name(name: str) -> None:
    """A name in the body of a class or of an ``eval``: where it is no local one, the global one is read."""
    rec, frame = current(), instrumented_frame(2)
    if rec is None:
        return
    local, space = frame.f_locals, frame.f_globals
    if rec.place_of(local) is not None:
        rec.fix(rec.item(local, name, local.get(name, MISSING)), None)
    if name in local and local is not space:
        return
    rec.root(space)
    value = space.get(name, MISSING)
    rec.fix(rec.item(space, name, value), None)
    if value is MISSING and name in _builtins:
        rec.root(_builtins)
        rec.item(_builtins, name, _builtins[name])


def write_global(name: str) -> None:
    """A global variable is about to be set or deleted."""
    rec = current()
    if rec is not None:
        space = instrumented_frame(2).f_globals
        rec.root(space)
        rec.write(space, name, whole=False, table=calls.NAMES)


def cell(name: str, held: Any) -> Any:
    """A variable of a function around."""
    rec = current()
    try:
        value = held.cell_contents
    except ValueError:
        raise NameError(
            f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
        ) from None
    return value if rec is None else rec.step(held, "contents", None, value)


def write_cell(held: Any) -> None:
    """A variable of a function around is about to be set."""
    rec = current()
    if rec is not None:
        rec.write(held)


# ---------------------------------------------------------------------------------------------- items
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


def _item_of_tensor(rec: Any, t: Any, key: Any) -> Any:
    if type(key) not in ATOMS and not is_a(key, Tensor):
        calls.read_argument(rec, key)
        key = rec.mapped(key)
    cls = type(rec.real(t))
    getter = MISSING if attributes.is_of_torch_class(cls) else rec.lookup(cls, "__getitem__")
    if type(getter) is Function and kind_of(getter.__code__) == ENTER:
        return rec.call(getter, t, key)
    return t[rec.give(key)]


def _item_of_class(rec: Any, o: type, key: Any) -> Any:
    getter = rec.lookup(type(o), "__getitem__")
    if type(getter) is Function:
        return rec.call(getter, o, key)
    found = rec.lookup(o, "__class_getitem__")
    if is_a(found, classmethod) and type(found.__func__) is Function:
        return rec.call(attributes.get(rec, o, "__class_getitem__"), key)
    return o[key]  # type: ignore[index]


def _index(rec: Any, key: Any) -> Any:
    """A number from what has ``__index__`` of the user's."""
    if type(key) in ATOMS or type(key) in _SYMBOLS or is_a(key, Tensor):
        return key
    return rec.call(rec.lookup(type(key), "__index__"), key) if is_a(lookup(type(key), "__index__"), Function) else key


def item_of_container(rec: Any, o: Any, key: Any) -> Any:
    """``o[key]`` of a built-in container, or as the C code of a subclass finds it."""
    if is_a(o, dict):
        return _item_of_dict(rec, o, key)
    if type(key) is slice:
        key = slice(*(_plain(_index(rec, k)) for k in (key.start, key.stop, key.step)))
    elif type(key) is not int:
        key = _plain(_index(rec, key))
    base: Any = next(kind for kind in (list, tuple, collections.deque) if is_a(o, kind))
    try:
        value = base.__getitem__(o, key)
    except IndexError:
        rec.length(o, "len", len(o))
        raise
    return rec.item(o, key, value)


def _plain(key: Any) -> Any:
    return int(key) if type(key) in _SYMBOLS else key


def _item_of_dict(rec: Any, o: Any, key: Any) -> Any:
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


def found_in(rec: Any, o: Any, key: Any) -> tuple[Any, Any]:
    """A key of a dict as it stands there, and its value: a tensor is a key as the real one, or as the stand-in where the
    run has made the dict."""
    hashed(rec, key, o)
    key = torch_api.plain_number(key)
    real = rec.real(key)
    value = dict.get(o, real, MISSING)
    if value is MISSING and real is not key:
        found = dict.get(o, key, MISSING)
        if found is not MISSING:
            return key, found
    return real, value


def hashed(rec: Any, key: Any, of: Any = ()) -> None:
    """The hash of a key is asked, and the keys of a container ``of`` are compared with it: by identity, if its class says no
    more."""
    kind = type(key)
    if kind in ATOMS or is_a(key, (type, str, Tensor)):
        return
    if kind in _SYMBOLS:
        hash(torch_api.PYTHON_CLASSES[kind](key))
        return
    if kind is tuple or kind is frozenset:
        for part in key:
            hashed(rec, part)
        return
    method = _python_method(rec, key, "__hash__")
    if method is None:
        rec.pin(key)
        return
    code = rec.call(method, key)
    equal = _python_method(rec, key, "__eq__")
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


def _contains(rec: Any, o: Any, key: Any) -> bool:
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


def in_container(rec: Any, o: Any, key: Any) -> bool:
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


def write_whole(rec: Any, o: Any, how: str) -> None:
    """A container is about to be changed in any way; anything else of C that was there before is refused."""
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


# ---------------------------------------------------------------------------------------------- operators
def identical(negated: bool, pair: tuple[Any, Any]) -> bool:
    """``a is b``."""
    a, b = pair
    rec = current()
    if rec is not None and a is not None and b is not None:
        a, b = rec.give(a), rec.give(b)
        if type(a) in _SYMBOLS:
            a, b = _bool_of(a, b), b
        if type(b) in _SYMBOLS:
            b = _bool_of(b, a)
        if a is not b:
            rec.distinguish(a, b)
    return (a is b) is not negated


def _bool_of(symbol: Any, other: Any) -> Any:
    """``flag is True`` of a truth that is known by its guard."""
    return bool(symbol) if type(other) is bool and torch_api.PYTHON_CLASSES[type(symbol)] is bool else symbol


_PLAIN = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
    "&": "and",
    "|": "or",
    "^": "xor",
    "<<": "lshift",
    ">>": "rshift",
}
_IN_C = {"and": "and_", "or": "or_"}
_DO: dict[str, Callable[[Any, Any], Any]] = {s: getattr(operator, _IN_C.get(n, n)) for s, n in _PLAIN.items()}
_DO |= {s + "=": getattr(operator, "i" + n) for s, n in _PLAIN.items()}


def _python_method(rec: Any, o: Any, name: str) -> Any:
    kind = type(o)
    if is_immutable(kind) or is_a(o, Tensor) or kind in _SYMBOLS:
        return None
    method = rec.lookup(kind, name)
    return method if type(method) is Function else None


def binary(symbol: str, pair: tuple[Any, Any]) -> Any:
    """An operator of two operands, also in place (``+=``)."""
    a, b = pair
    rec, do = current(), _DO[symbol]
    if rec is None or (type(a) in ATOMS and type(b) in ATOMS):
        return do(a, b)
    a, b = rec.give(a), rec.give(b)
    if type(a) in SIMPLE and type(b) in SIMPLE:
        return do(a, b)
    name = _PLAIN[symbol.removesuffix("=")]
    if symbol.endswith("=") and (method := _python_method(rec, a, f"__i{name}__")) is not None:
        value = rec.call(method, a, b)
        if value is not NotImplemented:
            return value
    left, right = _python_method(rec, a, f"__{name}__"), _python_method(rec, b, f"__r{name}__")
    if left or right:
        order = [(left, a, b), (right, b, a)]
        if right is not None and type(a) is not type(b) and is_a(b, type(a)):
            order.reverse()
        for method, x, y in order:
            if method is not None and (value := rec.call(method, x, y)) is not NotImplemented:
                return value
        if (left and right) or not (is_a(a, Tensor) or is_a(b, Tensor)):
            return do(a, b)
    return _binary_of_c(rec, symbol, do, a, b)


def _binary_of_c(rec: Any, symbol: str, do: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    for o in (a, b):
        if is_a(o, CONTAINERS):
            rec.touch(o)
        elif type(o) is decimal.Decimal:
            context = rec.call(decimal.getcontext)
            for name in ("prec", "rounding"):
                attributes.get(rec, context, name)
        elif type(o) not in SIMPLE and not is_a(o, Tensor) and type(o) not in VALUES:
            rec.deep(o, symbol)
    if symbol.endswith("=") and is_a(a, (list, dict, set, collections.deque)):
        if not is_a(b, CONTAINERS):
            b = iterate(rec, b)
        rec.write(a)
        return do(a, rec.given(b) if is_a(b, (list, dict, set)) else b)
    if symbol == "+" and is_a(a, (list, tuple)) and is_a(b, (list, tuple)):
        return do(
            type(a)(iterate(rec, a)) if type(a) in (list, tuple) else a,
            type(b)(iterate(rec, b)) if type(b) in (list, tuple) else b,
        )
    return do(rec.mapped(a), rec.mapped(b))


_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def compare(name: str, pair: tuple[Any, Any]) -> Any:
    """``a < b`` and its kin."""
    a, b = pair
    rec, do = current(), getattr(operator, name)
    if rec is None or (type(a) in ATOMS and type(b) in ATOMS):
        return do(a, b)
    a, b = rec.give(a), rec.give(b)
    if type(a) in SIMPLE and type(b) in SIMPLE:
        return do(a, b)
    left, right = _python_method(rec, a, f"__{name}__"), _python_method(rec, b, f"__{_SWAPPED[name]}__")
    if name == "ne" and not left and not right:
        if _python_method(rec, a, "__eq__") or _python_method(rec, b, "__eq__"):
            return not truth(compare("eq", pair))
    order = [(left, a, b), (right, b, a)]
    if right is not None and type(a) is not type(b) and is_a(b, type(a)):
        order.reverse()
    for method, x, y in order:
        if method is not None and (value := rec.call(method, x, y)) is not NotImplemented:
            return value
    if left or right:
        return do(a, b) if name not in ("eq", "ne") else (a is b) is (name == "eq")
    return _compare_in_c(rec, name, do, a, b)


def _compare_in_c(rec: Any, name: str, do: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    equality = name in ("eq", "ne")
    if equality and type(a) is type(b) and is_a(a, (list, tuple, dict)):
        return _containers_equal(rec, a, b) is (name == "eq")
    if is_a(a, Tensor) or is_a(b, Tensor):
        return do(rec.mapped(a), rec.mapped(b))
    for o in (a, b):
        if equality and _by_identity(o):
            continue
        rec.deep(o, name)
    if equality and (_by_identity(a) or _by_identity(b)) and a is not b:
        rec.distinguish(a, b)
    return do(a, b)


def _by_identity(o: Any) -> bool:
    """Does ``==`` say of this whether it is the same object?"""
    return lookup(type(o), "__eq__") is object.__eq__ and type(o) not in ATOMS


def _containers_equal(rec: Any, a: Any, b: Any) -> bool:
    rec.touch(a)
    rec.touch(b)
    if len(a) != len(b):
        return False

    def equal(x: Any, y: Any) -> bool:
        return x is y or bool(truth(compare("eq", (x, y))))

    if is_a(a, dict):
        rows = [(k, rec.given_item(a, k, v)) for k, v in pairs_of(a)]
        return all(k in b and equal(rec.given_item(b, k, b[k]), value) for k, value in rows)
    return all(map(equal, rec.each(a), rec.each(b)))


def unary(name: str, o: Any) -> Any:
    """``-o`` and its kin."""
    rec = current()
    if rec is None:
        return getattr(operator, name)(o)
    if (method := _python_method(rec, o, f"__{name}__")) is not None:
        return rec.call(method, o)
    return getattr(operator, name)(rec.give(o))


def truth(o: Any) -> Any:
    """``bool(o)``."""
    rec = current()
    kind = type(o)
    if kind is bool:
        return o
    if rec is None or kind in ATOMS:
        return bool(o)
    if is_a(o, Tensor) or kind in _SYMBOLS:
        return bool(rec.give(o))
    return bool(calls.truth_of(rec, o))


def truth_kept(o: Any) -> Any:
    """The operand of a jump that keeps it."""
    truth(o)
    return o


# ---------------------------------------------------------------------------------------------- iteration, contexts, text
def iterated(o: Any) -> Any:
    """What is iterated or unpacked."""
    rec = current()
    return o if rec is None else iterate(rec, o)


def mapping(o: Any) -> Any:
    """What follows ``**``."""
    rec = current()
    if rec is None:
        return o
    if is_a(o, dict) and type(lookup(type(o), "keys")) is not Function:
        rec.touch(o)
        return {key: rec.given_item(o, key, value) for key, value in pairs_of(o)}
    return keys_of(rec, o) if hasattr(o, "keys") else o


class Manager:
    """A context manager of Python code, its methods instrumented."""

    def __init__(self, o: Any) -> None:
        self.o = o

    def _method(self, rec: Any, name: str) -> Any:
        cls = type(self.o)
        return attributes.bound(rec, rec.lookup(cls, name), self.o, cls, name)

    def __enter__(self) -> Any:
        rec = current()
        return call(self._method(rec, "__enter__") if rec else self.o.__enter__)

    def __exit__(self, *error: Any) -> Any:
        rec = current()
        return call(self._method(rec, "__exit__") if rec else self.o.__exit__, *error)


def manager(o: Any) -> Any:
    """What follows ``with``."""
    rec = current()
    enter = lookup(type(o), "__enter__")
    if rec is None:
        return o
    if type(enter) is not Function:
        if rec.place_of(o) is not None and type(o) not in LOCKS and not calls.is_torchs(o):
            calls.refuse_change(rec, o, "with")
        return o
    return o if kind_of(enter.__code__) != ENTER else Manager(o)


def formatted(o: Any) -> Any:
    """What an f-string takes the text of: with code of the user's it is the text itself."""
    rec = current()
    kind = type(o)
    if rec is None or kind in ATOMS or kind in _SYMBOLS or is_a(o, Tensor):
        return o
    if not is_immutable(kind):
        for name in ("__format__", "__str__", "__repr__"):
            if type(rec.lookup(kind, name)) is Function:
                return calls.Text(o)
    rec.deep(o, "format")
    return rec.mapped(o)


def get_len(o: Any) -> None:
    """``match`` asks for the length."""
    call(len, o)


def match_keys(pair: tuple[Any, Any]) -> None:
    """``match`` asks for keys."""
    rec = current()
    if rec is None:
        return
    for key in pair[1]:
        if is_a(pair[0], dict):
            rec.fix(rec.item(pair[0], key, dict.get(pair[0], key, MISSING)), None)
        else:
            rec.deep(pair[0], "match")


def match_class(positional: int, parts: tuple[Any, Any, Any]) -> None:
    """``match`` asks for a class and attributes."""
    rec = current()
    if rec is None:
        return
    o, cls, names = parts
    if not call(isinstance, o, cls):
        return
    named: Any = ()
    if positional and lookup(cls, "__match_args__") is not MISSING:
        named = attr("__match_args__", cls)[:positional]
    for name in (*named, *names):
        try:
            rec.fix(attributes.get(rec, o, name), None)
        except AttributeError:
            return


def and_back(op: str, *parts: Any) -> tuple[Any, ...]:
    """Python 3.10: an operation that leaves its operands, in reverse."""
    OPS[op](*parts)
    return tuple(reversed(parts[-1]))


OPS.update(
    {
        "attr": attr,
        "super_attr": super_attr,
        "set_attr": set_attr,
        "del_attr": del_attr,
        "global": read_global,
        "name": read_name,
        "write_global": write_global,
        "cell": cell,
        "write_cell": write_cell,
        "item": item,
        "set_item": set_item,
        "del_item": del_item,
        "slice": read_slice,
        "set_slice": set_slice,
        "is": identical,
        "contains": contains,
        "binary": binary,
        "compare": compare,
        "unary": unary,
        "truth": truth,
        "truth_kept": truth_kept,
        "iter": iterated,
        "mapping": mapping,
        "manager": manager,
        "format": formatted,
        "get_len": get_len,
        "match_keys": match_keys,
        "match_class": match_class,
        "call": call,
        "call0": call0,
        "call_ex": call_ex,
        "call_tuple": call_tuple,
        "call_kw": call_kw,
        "and_back": and_back,
    }
)
calls.operations = types.SimpleNamespace(
    **OPS,
    item_of_container=item_of_container,
    in_container=in_container,
    found_in=found_in,
    hashed=hashed,
)
