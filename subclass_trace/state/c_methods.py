"""Methods of C: of built-in containers (what each reads and writes of them), of texts, of all
objects (``__reduce_ex__``, ``__setattr__``, ...)."""

from __future__ import annotations

import collections
import contextvars
import copyreg
import operator
import types
import weakref
from typing import Any, TypeAlias

import torch

from ..subclass.values import ATOMS, is_a
from ..torch_api.compiled_inside import owners_of_c_functions
from ..torch_api.owners import Owner, owner_of_name
from . import attributes, calls, classes, kinds
from .attribute_writes import plain_put
from .c_callables import context_variable, weakly
from .c_functions import first_of
from .calls import callback, opaque, refuse_change, tensor_method, torch_call
from .iteration import as_mapping, is_lazy, iterate, read_hashes, read_order
from .kinds import CONTAINERS, LOCKS, VIEWS, WORLDLY, Function, is_immutable
from .net import watched
from .recorder import instance_dict
from .running import Running
from .special import is_python
from .texts import text_of
from .values import MISSING, base_of, has, lookup, size_of
from .world import refuse_world, world_name

Args: TypeAlias = tuple[Any, ...]
Named: TypeAlias = dict[str, Any]

_READING = """
    keys values items copy __iter__ index count union intersection difference issubset issuperset
    isdisjoint symmetric_difference __reversed__ __eq__ __ne__ __repr__ __str__ __add__ __or__
    __ror__ __mul__ __rmul__ __and__ __sub__ __xor__ __reduce_ex__ __reduce__ elements most_common
    __lt__ __gt__ __le__ __ge__ __copy__ __deepcopy__
"""
_WRITING = """
    append extend insert remove clear sort reverse update add discard popitem appendleft popleft
    extendleft rotate move_to_end __iadd__ __ior__ difference_update intersection_update
    symmetric_difference_update __init__ subtract pop __delitem__ __setitem__
"""
_TAKING = """
    extend update extendleft __init__ __iadd__ difference_update symmetric_difference_update
    intersection_update __ior__
"""
#: methods that read the whole container, and write nothing
_READ = frozenset(_READING.split())
#: methods that write it in any way; of these the ones that read it, too
_WRITE = frozenset(_WRITING.split())
_READ_AND_WRITE = frozenset(
    ("pop", "popitem", "remove", "discard", "popleft", "sort", "reverse", "rotate", "insert")
)
#: methods that take what can be iterated
_TAKE_MANY = frozenset(_TAKING.split())
_CHANGING = """
    append extend insert pop remove clear reverse __setitem__ __delitem__ __iadd__ __imul__ fill
    sort put resize itemset partition setfield setflags byteswap __isub__ __itruediv__ __ifloordiv__
    __imod__ __ipow__ __ior__ __iand__ __ixor__
"""
#: methods that change an array or a bytearray
_CHANGE = frozenset(_CHANGING.split())
#: methods that compare items
_COMPARE = frozenset(["index", "count", "__eq__", "__ne__", "__lt__", "remove"])
_OF_OBJECTS = ("__init_subclass__", "__setattr__", "__getattribute__", "__delattr__")
#: whose methods in C read their value, also of classes derived from them
_VALUES = (str, bytes, int, float, complex)
_COPYING = ("__reduce_ex__", "__getstate__", "__reduce__")
_OF_PYTHON = (types.FunctionType, types.MethodType, property, staticmethod, classmethod)
_NEW_OBJECT: Any = vars(copyreg)["__newobj__"]
_OF_ATTRIBUTES = (types.MemberDescriptorType, types.GetSetDescriptorType)
_OF_A_COPY = ("__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__")


def method_of_c(rec: Running, f: Any, owner: Any, a: Args, k: Named) -> Any:
    """A method of C, or a function of a module of C."""
    name = f.__name__
    if is_a(owner, torch.Tensor):
        return tensor_method(rec, getattr(rec.give(owner), name, f), rec.give(owner), a, k)
    if is_a(owner, CONTAINERS) and name not in _OF_OBJECTS:
        if name in _COPYING:
            rec.touch(owner)
            return _of_object(rec, f, owner, name, a, k)
        return _of_container(rec, owner, name, f, a, k)
    if is_a(owner, contextvars.ContextVar):
        return context_variable(rec, f, a, k)
    if is_a(owner, weakref.ref) and name == "__call__":  # of a class of Python's
        return weakly(rec, owner, a, k)
    if name == "apply" and is_a(owner, type) and issubclass(owner, torch.autograd.Function):
        return calls.FUNCTIONS[APPLY](rec, f, (owner, *a), k)
    if is_a(owner, torch.autograd.graph.Node) and name in ("register_hook", "register_prehook"):
        a = tuple(map(callback, a))
        rec.hooks_nodes = True
    if name == "__hash__":
        read_hashes(rec, [owner])
    if type(owner) in LOCKS and name == "__exit__":  # the end of a `with`, in Python 3.10
        return f(*a, **k)
    world = world_name(f, owner)
    if world is not None:
        refuse_world(rec, world)
        return f(*map(rec.mapped, a), **k)
    changes = (is_a(owner, kinds.ARRAYS) and name in _CHANGE) or name in (
        "__setstate__",
        "cache_clear",
    )
    if changes and rec.place_of(owner) is not None:
        return refuse_change(rec, owner, name)
    if type(f) is types.MethodWrapperType or name in (*_COPYING, "__new__"):
        return _of_object(rec, f, owner, name, a, k)
    if type(owner) in LOCKS or type(owner) in WORLDLY:
        return refuse_change(rec, owner, name) if rec.place_of(owner) is not None else f(*a, **k)
    if is_a(owner, _VALUES):
        rec.deep(owner, name)
    if is_a(owner, (str, bytes)) and name == "join":
        return f(iterate(rec, a[0]))
    if is_a(owner, str) and name in ("format", "format_map"):
        return _format(rec, f, a, k)
    if owner is not None and (type(owner) in ATOMS or is_a(owner, _VALUES)):
        return opaque(rec, f, a, k, keeps=False, pure=True)
    if _is_of_torch(f, owner):
        return torch_call(rec, f, a, k)
    if is_a(owner, VIEWS):
        rec.touch(owner)
        return f(*a, **k)
    return opaque(rec, f, a, k)


#: what the functions of torch's in C are methods of
_OWNERS = owners_of_c_functions()
#: the key of `torch.autograd.Function.apply` in the table of functions
APPLY = "torch.autograd.Function.apply"


def _is_of_torch(f: Any, owner: Any) -> bool:
    if id(owner) in _OWNERS:
        return True
    names: tuple[Any, ...] = (
        getattr(f, "__module__", None),
        type(owner).__module__,
        getattr(owner, "__module__", None),
    )
    if is_a(owner, types.ModuleType):
        names = (*names, owner.__name__)
    return any(type(name) is str and owner_of_name(name) is Owner.TORCH for name in names)


def _of_container(rec: Running, o: Any, name: str, f: Any, a: Args, k: Named) -> Any:
    if name == "__getitem__":
        return calls.operations.item_of_container(rec, o, a[0])
    if name == "__contains__":
        return calls.operations.in_container(rec, o, a[0])
    if name == "__len__":
        rec.length(o, "len", size_of(o))
        return f()
    if is_a(o, dict) and name in ("get", "setdefault", "pop", "__setitem__", "__delitem__"):
        return _at_key(rec, o, name, f, a, k)
    if name in _READ:
        return _reading(rec, o, name, f, a, k)
    if name in _WRITE:
        return _writing(rec, o, name, f, a, k)
    return opaque(rec, f, a, k)


def _at_key(rec: Running, o: Any, name: str, f: Any, a: Args, k: Named) -> Any:
    """A method of a dict that is about one key."""
    key, value = calls.operations.found_in(rec, o, a[0])
    given = value if name == "__setitem__" else rec.item(o, key, value)
    if name == "get":
        return (a[1] if len(a) > 1 else k.get("default")) if value is MISSING else given
    there = value is not MISSING
    if not (name == "setdefault" and there) and not (name == "pop" and not there):
        rec.write(o, key, whole=False, removes=name in ("pop", "__delitem__"))
    got = f(key, *a[1:], **k)
    return given if there and got is value else got


def _reading(rec: Running, o: Any, name: str, f: Any, a: Args, k: Named) -> Any:
    rec.touch(o)
    a = tuple(iterate(rec, v, in_order=False) if is_a(v, CONTAINERS) else v for v in a)
    if name in _COMPARE:
        for value in (o, *a):
            rec.deep(value, name)
    if name in ("keys", "values", "items"):
        return f(*a, **k)
    if is_a(o, (set, frozenset)) and name in ("__repr__", "__str__"):
        read_order(rec, o)
    if name in ("__repr__", "__str__"):
        return watched(f, a, k)
    if name in ("__iter__", "__reversed__"):
        if name == "__iter__":
            return iter(iterate(rec, o))
        return calls.CLASSES[reversed](rec, reversed, (o,), {})
    if name == "copy" and (rec.stand_ins or rec.symbols) and type(o) in (list, dict, set):
        held = rec.given(o)
        return f() if held is o else held
    owner = rec.given(o) if type(o) in (list, dict, set) else o
    return watched(f if owner is o else getattr(owner, name), a, k)


def _writing(rec: Running, o: Any, name: str, f: Any, a: Args, k: Named) -> Any:
    if name in _READ_AND_WRITE:
        rec.touch(o)
        if is_a(o, set) and name == "pop":
            read_order(rec, o)
    if name in ("remove", "discard", "sort", "index") and not k:
        for value in (o, *a):
            rec.deep(value, name)
    if (one := _one_of_many(o, name)) is not None and any(map(is_lazy, a)):
        if not (is_a(o, dict) and has(type(a[0]), "keys")):
            return _filled(rec, o, one, name, f, a, k)
    if name in _TAKE_MANY:
        a = tuple(_many(rec, o, v) for v in a)
    elif name in ("remove", "discard", "add"):
        a = tuple(map(_as_member(rec, o), a))
        if is_a(o, set):
            calls.operations.keyed(rec, a, o)
    if name in ("append", "extend") and is_a(o, (list, collections.deque)):
        a = (list(a[0]),) if name == "extend" else a
        rec.grow(o, a[0] if name == "extend" else a)
    elif name in ("add", "discard") and is_a(o, set):
        rec.write(o, a[0], whole=False)
    else:
        rec.write(o)
    named = {n: callback(v) if callable(v) else v for n, v in k.items()}
    return rec.give(watched(f, a, named))


def _one_of_many(o: Any, name: str) -> str | None:
    """The method that does with one item what this one does with many, one after the other."""
    if is_a(o, dict):
        return "__setitem__" if name in ("update", "__ior__") else None
    if is_a(o, set):
        return {"update": "add", "difference_update": "discard"}.get(name)
    return {"extend": "append", "__iadd__": "append", "extendleft": "appendleft"}.get(name)


def _filled(rec: Running, o: Any, one: str, name: str, f: Any, a: Args, k: Named) -> Any:
    """Item by item: what makes the next one may look at what is there by now."""
    do = getattr(base_of(o), one).__get__(o)
    for items in a:
        if not is_lazy(items):
            _writing(rec, o, name, f, (items,), {})
            continue
        each = iterate(rec, items)
        if is_a(o, list):
            operator.length_hint(each)  # as C code asks, once the iterator is made
        for item in each:
            given = tuple(iterate(rec, item)) if one == "__setitem__" else (item,)
            if one == "__setitem__" and len(given) != 2:
                return base_of(o).update(o, [given])  # which raises
            _of_container(rec, o, one, do, given, {})
    for key, value in k.items():
        _of_container(rec, o, one, do, (key, value), {})
    return o if name in ("__iadd__", "__ior__") else None


def _many(rec: Running, o: Any, value: Any) -> Any:
    if type(value) in ATOMS or calls.is_function(value):
        return value
    if is_a(o, dict) and hasattr(value, "keys"):
        held = as_mapping(rec, value, type(o))
        calls.operations.keyed(rec, held, o)
        return held
    given = iterate(rec, value, in_order=not is_a(o, set))
    if is_a(o, set) and given is value and is_a(value, (dict, set, frozenset)):
        if all(type(v) in ATOMS for v in value):
            return value
    if is_a(o, (set, dict)):
        given = [*map(_as_member(rec, o), given)]
        calls.operations.keyed(rec, [*map(first_of, given)] if is_a(o, dict) else given, o)
    return given


def _as_member(rec: Running, o: Any) -> Any:
    """A stand-in as the real tensor, where the set was there before."""
    return rec.real if rec.place_of(o) is not None and is_a(o, (set, dict)) else rec.give


def _format(rec: Running, f: Any, a: Args, k: Named) -> Any:
    return f(*map(text_of, a), **{name: text_of(v) for name, v in k.items()})


def _of_object(rec: Running, f: Any, o: Any, name: str, a: Args, k: Named) -> Any:
    """``object.__getattribute__(o, n)`` and the like."""
    if name == "__getattribute__":
        if is_a(o, (type, types.ModuleType)):
            return attributes.get(rec, o, a[0])
        value = attributes.plain(rec, o, type(o), a[0])
        return object.__getattribute__(o, a[0]) if value is MISSING else value
    if name == "__setattr__":
        return plain_put(rec, o, *a)
    if name == "__delattr__":
        return plain_put(rec, o, a[0], MISSING)
    if name == "__call__" and not is_python(type(o), name):
        return classes.construct(rec, o, a, k) if is_a(o, type) else rec.call(o, *a, **k)
    if name in _COPYING:
        return _copied(rec, o, name, f, a, k)
    if name == "__init__" and rec.place_of(o) is not None:
        if is_a(o, CONTAINERS):
            return _writing(rec, o, name, f, a, k)
        if f != object.__init__.__get__(o, type(o)):
            return refuse_change(rec, o, name)
    if type(o) in _OF_ATTRIBUTES and a and lookup(type(a[0]), o.__name__) is o:
        if name == "__get__":
            return attributes.get(rec, a[0], o.__name__)
        if name in ("__set__", "__delete__"):
            return plain_put(rec, a[0], o.__name__, *(a[1:] or (MISSING,)))
    if name == "__get__" and a and type(o) not in _OF_PYTHON:
        rec.deep(a[0], name)
    if name == "__new__" and not (is_a(o, type) and issubclass(o, type)):
        a = (*a[:1], *(iterate(rec, v) if is_a(v, CONTAINERS) else v for v in a[1:]))
    if name in ("__init__", "__new__", "__init_subclass__", "__get__", "__set_name__", "__set__"):
        return rec.made_class(watched(f, tuple(map(rec.mapped, a)), k))
    kinds_of_python = (*CONTAINERS, str, int, float, type)
    pure = is_a(o, kinds_of_python) or owner_of_name(type(o).__module__) is Owner.PYTHON
    return opaque(rec, f, a, k, pure=pure)


def _copied(rec: Running, o: Any, name: str, f: Any, a: Args, k: Named) -> Any:
    """What ``copy`` and ``pickle`` take of an object: by methods of its class, which C code calls,
    or of what it holds."""
    cls = type(o)
    base = next(c for c in cls.__mro__ if is_immutable(c))
    reduce, state, *arguments = (rec.special(cls, method) for method in _OF_A_COPY)
    if name == "__reduce_ex__" and type(reduce) is Function:
        return rec.call(reduce, o)
    is_told = base is object and {*arguments} == {MISSING} and a[:1] > (1,)
    if name == "__reduce_ex__" and type(state) is Function and is_told:
        return _NEW_OBJECT, (cls,), rec.call(state, o), None, None
    if not is_a(o, CONTAINERS) and base is not object:
        rec.deep(o, name)  # an object of C code: an exception, a partial
    space = instance_dict(o)
    if space is not None and not is_a(o, type):
        rec.namespace(o, space)
        rec.touch(space)
    for c in cls.__mro__:
        for n, member in c.__dict__.items():
            if type(member) is types.MemberDescriptorType and hasattr(o, n):
                rec.fix(attributes.get(rec, o, n), member.__get__(o))
    return watched(f, a, k)


calls.method_of_c = method_of_c
