"""Attributes, as the interpreter finds them, each lookup recorded: classes by their order of bases,
descriptors, the dict of the object, ``__getattr__``; of modules, classes and ``super`` in their own
ways. Code of the user's that this runs (properties, ``__getattribute__``, ``__set__``) runs as
clones.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from ..subclass.values import ATOMS, is_a
from ..torch_api.kinds import FAKE_TYPES, is_fake
from ..torch_api.modes import functions_are_seen
from ..torch_api.numbers import PYTHON_CLASSES
from .boundary import TORCH, kind_of
from .kinds import (
    C_CALLABLES,
    GETTERS,
    THREAD_LOCAL,
    Builtin,
    Function,
    LruCache,
    Method,
    Partial,
    is_immutable,
)
from .recorder import instance_dict
from .running import Running
from .special import is_python
from .values import MISSING, lookup

#: what a property may have for a getter, of which the recorder knows what it reads
_CALLED = (Function, Method, Partial, LruCache, *GETTERS)
_OF_MODULE: Any = torch.nn.Module.__getattr__
_C_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    Builtin,
    types.ClassMethodDescriptorType,
)
#: attributes of a tensor that its metadata, or the capture, answer for
_OF_TENSOR = frozenset(
    (
        "shape",
        "dtype",
        "device",
        "requires_grad",
        "is_leaf",
        "grad",
        "_base",
        "layout",
        "ndim",
        "data",
    )
)
#: those of which a stand-in has its own, where no mode of the capture answers: in a backward
_OF_LEAF = ("is_leaf", "requires_grad")
#: attributes of a tensor of which a stand-in has its own
_ASKED_OF_REAL = ("_post_accumulate_grad_hooks", "_backward_hooks")


def get(rec: Running, o: Any, name: str) -> Any:
    """``o.name``."""
    kind = type(o)
    if kind is types.ModuleType or (is_a(o, types.ModuleType) and name in o.__dict__):
        return _of_python_module(rec, o, name)
    if is_a(o, type):
        return _of_class(rec, o, kind, name)
    if kind is super:
        return after(rec, o.__thisclass__, o.__self__, name)
    if kind in PYTHON_CLASSES:
        return PYTHON_CLASSES[kind] if name == "__class__" else getattr(o, name)
    if is_a(o, torch.Tensor):
        return _of_tensor(rec, o, name)
    own = rec.special(kind, "__getattribute__")
    if type(own) is Function:
        return _by_own(rec, o, kind, own, name)
    if kind is THREAD_LOCAL or issubclass(kind, THREAD_LOCAL):
        return _of_thread(rec, o, name)
    value = plain(rec, o, kind, name)
    if value is not MISSING:
        return value
    if kind is Method:  # a bound method has the attributes of its function
        return get(rec, o.__func__, name)
    return _fallback(rec, o, kind, name)


def _of_thread(rec: Running, o: Any, name: str) -> Any:
    """An attribute of a thread-local, which has a dict for each thread."""
    space = THREAD_LOCAL.__getattribute__(o, "__dict__")
    try:
        value = getattr(o, name)
    except AttributeError:
        rec.step(o, "getattr", name, MISSING, space)
        raise
    return rec.step(o, "getattr", name, value, space)


def _by_own(rec: Running, o: Any, kind: type, own: Any, name: str) -> Any:
    try:
        return rec.call(own, o, name)
    except AttributeError:
        fallback = rec.special(kind, "__getattr__")
        if fallback is MISSING:
            raise
        return rec.call(fallback, o, name)


def _fallback(rec: Running, o: Any, kind: type, name: str) -> Any:
    """``__getattr__``, or the error that there is no such attribute."""
    found = rec.special(kind, "__getattr__")
    if found is MISSING or is_immutable(kind):
        return object.__getattribute__(o, name)  # raises as it should
    if found is _OF_MODULE:
        return child_of_module(rec, o, name)
    if type(found) is Function:
        return rec.call(found, o, name)
    return rec.call(found.__get__(o, kind), name)  # of C code


def plain(rec: Running, o: Any, kind: type, name: str) -> Any:
    """As ``object.__getattribute__`` finds it; `MISSING` where it does not."""
    member = rec.lookup(kind, name)
    if member is not MISSING and rec.is_data(member):
        return bound(rec, member, o, kind, name)
    space = instance_dict(o) if kind.__dictoffset__ else None
    if space is not None:
        value = space.get(name, MISSING)
        if id(o) in rec.known:
            if id(space) in rec.written:
                rec.shares(o, space)
            value = rec.step(o, "attr", name, value, space)
        elif id(space) in rec.known:  # made here, with a dict that was there before
            value = rec.item(space, name, value)
        if value is not MISSING:
            return rec.give(value)
    if member is MISSING:
        return MISSING
    return bound(rec, member, o, kind, name) if rec.binds(member) else member


def child_of_module(rec: Running, o: Any, name: str) -> Any:
    """What ``nn.Module.__getattr__`` finds: a parameter, a buffer, a module."""
    space = instance_dict(o) or {}
    for table in ("_parameters", "_buffers", "_modules"):
        held = space.get(table)
        if held is None:
            continue
        rec.step(o, "attr", table, held, space)
        value = dict.get(held, name, MISSING)
        if value is not MISSING or table == "_parameters" or held:
            value = rec.item(held, name, value)
        else:
            rec.length(held, "truth", False)
        if value is not MISSING:
            return value
    raise AttributeError(f"'{type(o).__name__}' object has no attribute '{name}'")


def bound(rec: Running, member: Any, o: Any, cls: type, name: str) -> Any:
    """``member.__get__(o, cls)``."""
    if o is None:  # which is a missing instance to ``__get__``
        return getattr(o, name)
    kind = type(member)
    if kind is Function or kind is LruCache:
        return Method(member, o)
    if kind is property:
        return _of_property(rec, member, o, cls, name)
    if kind is staticmethod:
        return rec.step(member, "inner", "__func__", member.__func__)
    if kind is classmethod:
        rec.step(member, "inner", "__func__", member.__func__)
        return member.__get__(o, cls)
    if kind in _C_DESCRIPTORS:
        return member.__get__(o, cls)
    getter = rec.special(kind, "__get__")
    if type(getter) is Function:
        return rec.call(getter, member, o, cls)
    try:
        value = member.__get__(o, cls)
    except AttributeError:
        rec.step(o, "getattr", name, MISSING)
        raise
    if name == "__dict__" and type(value) is dict and value is instance_dict(o):
        rec.namespace(o, value)
        return value
    return rec.step(o, "getattr", name, value)


def _of_property(rec: Running, member: Any, o: Any, cls: type, name: str) -> Any:
    if member.fget is None:
        return member.__get__(o, cls)
    rec.step(member, "inner", "fget", member.fget)
    if is_a(member.fget, _CALLED) or is_python(type(member.fget), "__call__"):
        return rec.call(member.fget, o)
    value = member.__get__(o, cls)
    return rec.step(o, "getattr", name, value) if type(value) in ATOMS else value


# ---- tensors
def _of_tensor(rec: Running, o: Any, name: str) -> Any:
    """An attribute of a tensor: what its class has is asked of the traced one, its own attributes
    are the real one's."""
    o = rec.give(o)
    if name == "grad":
        rec.refuse_unseen(o, name)
    real = rec.real(o)
    cls = type(real) if real is not o or not is_fake(o) else _class_of_fake(o)
    if name == "__class__":
        return cls
    space = vars(o)
    own = rec.own.get(id(o))
    placed = rec.place_of(o) is not None
    if placed and own is None and not is_fake(o):
        own = frozenset()  # a real tensor, which a backward has met
    if name in space and (own is None or name in own or not placed):
        return _inside(rec, o, real, name, space[name])
    member = rec.lookup(cls, name)
    if placed and name == "__dict__":
        return _namespace(rec, o, real)
    of_real = name in _ASKED_OF_REAL or (real is o and name in _OF_TENSOR and not is_fake(o))
    if placed and (of_real or (name in _OF_LEAF and not functions_are_seen())):
        return rec.step(o, "getattr", name, object.__getattribute__(real, name))
    data = member is not MISSING and rec.is_data(member)
    if not data and own is not None and name not in own:
        value = rec.step(o, "attr", name, _attribute_of(rec, o, real, name), space)
        if value is not MISSING:
            return value
    if member is MISSING or name == "__dict__":
        try:
            return getattr(o, name)
        except AttributeError as error:
            raise retold(error, o) from None
    kind = type(member)
    if kind in (Function, staticmethod, classmethod, property) and not _is_torchs(member):
        return bound(rec, member, o, cls, name)
    return getattr(o, name)


def _namespace(rec: Running, o: Any, real: Any) -> dict[str, Any]:
    """``t.__dict__`` of a tensor that was there before: its own attributes, as they are."""
    held, place = vars(real), rec.place_of(o)
    if id(held) not in rec.known and place is not None:
        rec.known[id(held)] = held, rec.child(place, "getattr", "__dict__")
    rec.row(held, "keys", list(held))
    return {name: rec.step(o, "attr", name, value) for name, value in list(held.items())}


def _attribute_of(rec: Running, o: Any, real: Any, name: str) -> Any:
    """What stands in the dict of the real tensor, or what the run has put there instead."""
    return (
        vars(real).get(name, MISSING)
        if id(vars(o)) not in rec.written
        else vars(o).get(name, MISSING)
    )


def _inside(rec: Running, o: Any, real: Any, name: str, value: Any) -> Any:
    """What the class of a wrapper has set: an inner tensor, a part of its context. An inner one
    stands for the real one's."""
    if real is not o and is_a(value, torch.Tensor) and id(value) not in rec.known:
        there = vars(real).get(name)
        place = rec.place_of(o)
        if is_a(there, torch.Tensor) and place is not None:
            rec.adopt(value, there, rec.child(place, "attr", name))
            rec.stand_ins.setdefault(id(there), value)
    return value


def _class_of_fake(t: torch.Tensor) -> type:
    return torch.nn.Parameter if isinstance(t, torch.nn.Parameter) else torch.Tensor


def retold(error: Exception, *operands: Any) -> Exception:
    """An error of Python's that names classes, with those that the user's code sees."""
    for o in operands:
        if is_fake(o):
            name = f"'{_class_of_fake(o).__name__}'"
            error.args = tuple(
                a.replace("'FakeTensor'", name, 1) if type(a) is str else a for a in error.args
            )
    return error


def class_of(rec: Running, value: Any) -> type:
    """``type(value)``, as the user's code sees it: of a traced tensor what the caller has, of a
    symbol ``int``."""
    kind = type(value)
    if kind in PYTHON_CLASSES:
        return PYTHON_CLASSES[kind]
    if kind not in FAKE_TYPES:
        return kind
    real = rec.real(value)
    return _class_of_fake(value) if real is value else type(real)


def is_of_torch_class(cls: type) -> bool:
    """Is it torch's own class of tensors, of which nothing is patched but by tests?"""
    return cls in (torch.Tensor, torch.nn.Parameter)


def _is_torchs(member: Any) -> bool:
    function = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return type(function) is not Function or kind_of(function.__code__) == TORCH


# ---- modules and classes
def _of_python_module(rec: Running, o: Any, name: str) -> Any:
    space = o.__dict__
    rec.root(space)
    value = space.get(name, MISSING)
    if value is MISSING and hasattr(types.ModuleType, name):
        return getattr(o, name)
    if o.__name__.startswith("torch.ops") or o.__name__.startswith("torch._ops"):
        return getattr(o, name)
    given = rec.item(space, name, value)
    if value is not MISSING:
        return given
    fallback = space.get("__getattr__", MISSING)
    rec.item(space, "__getattr__", fallback)
    if fallback is MISSING or type(o) is not types.ModuleType:
        return getattr(o, name)  # also where the class of a module has its own way
    return rec.call(fallback, name)


def _of_class(rec: Running, o: type, meta: type, name: str) -> Any:
    if meta is not type and type(own := rec.special(meta, "__getattribute__")) is Function:
        return rec.call(own, o, name)
    member = rec.lookup(meta, name) if meta is not type else lookup(type, name)
    if member is not MISSING and rec.is_data(member):
        if type(member) is property:
            return bound(rec, member, o, meta, name)
        value = member.__get__(o, meta)
        if not is_immutable(o) and name != "__mro__":
            if name == "__dict__":
                rec.class_dict(o)
                return value
            rec.root(o)
            return rec.step(o, "getattr", name, value)
        return value
    value = rec.lookup(o, name)
    if value is not MISSING:
        return _from_class(rec, value, o)
    if member is not MISSING:
        return bound(rec, member, o, meta, name) if rec.binds(member) else member
    fallback = rec.special(meta, "__getattr__")
    if fallback is not MISSING:
        return rec.call(fallback, o, name)
    return type.__getattribute__(o, name)


def _from_class(rec: Running, value: Any, o: type) -> Any:
    kind = type(value)
    if kind is Function or not rec.binds(value):
        return rec.give(value)
    if kind is staticmethod:
        return rec.step(value, "inner", "__func__", value.__func__)
    if kind is classmethod:
        rec.step(value, "inner", "__func__", value.__func__)
        return value.__get__(None, o)
    getter = rec.special(kind, "__get__")
    return rec.call(getter, value, None, o) if type(getter) is Function else value.__get__(None, o)


def after(rec: Running, cls: type, o: Any, name: str) -> Any:
    """``super(cls, o).name``."""
    kind = o if is_a(o, type) and issubclass(o, cls) else type(rec.real(o))
    if name == "__class__" or cls not in kind.__mro__:
        return getattr(super(cls, o), name)
    value = rec.lookup_after((kind, cls, name))
    if value is MISSING:
        return getattr(super(cls, o), name)
    if is_a(o, type) and o is kind:
        return value if type(value) is Function else _from_class(rec, value, o)
    return bound(rec, value, o, kind, name) if rec.binds(value) else value


def is_plain(value: Any) -> bool:
    """Is it a value that tells no more than itself?"""
    return type(value) in ATOMS or is_a(value, C_CALLABLES)
