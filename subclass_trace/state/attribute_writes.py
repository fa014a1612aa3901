"""Attributes that are written, or taken away: as the interpreter does it, and as a row of what the
region writes."""

from __future__ import annotations

import types
from typing import Any

import torch

from ..errors import SideEffectError
from ..subclass.values import is_a
from .boundary import TORCH, kind_of
from .kinds import THREAD_LOCAL, Function, is_immutable
from .recorder import instance_dict, user_line
from .running import Running
from .special import special_of
from .values import MISSING
from .writes import CLASS, NAMES, SLOTS

#: attributes that are the object itself
_STRUCTURE = (
    *("__class__", "__dict__", "__code__", "__bases__"),
    *("__defaults__", "__kwdefaults__", "__closure__"),
)


def put(rec: Running, o: Any, name: str, value: Any) -> None:
    """``o.name = value``; `MISSING`: ``del o.name``."""
    delete = value is MISSING
    setter = rec.special(type(o), "__delattr__" if delete else "__setattr__")
    if type(setter) is Function and kind_of(setter.__code__) != TORCH:
        if not (setter is torch.nn.Module.__setattr__ and not _is_registered(o, name, value)):
            rec.call(setter, o, name) if delete else rec.call(setter, o, name, value)
            return
    plain_put(rec, o, name, value)


def _is_registered(module: Any, name: str, value: Any) -> bool:
    """Does ``nn.Module.__setattr__`` do more than to set an attribute?"""
    if is_a(value, (torch.Tensor, torch.nn.Module)):
        return True
    space = instance_dict(module) or {}
    return any(
        name in (space.get(table) or ()) for table in ("_parameters", "_buffers", "_modules")
    )


def plain_put(rec: Running, o: Any, name: str, value: Any) -> None:
    """As ``object.__setattr__`` does it; `MISSING`: as ``object.__delattr__``."""
    kind = type(rec.real(o))
    delete = value is MISSING
    member = rec.lookup(kind, name)
    if (
        type(member) is property
        and (function := member.fdel if delete else member.fset) is not None
    ):
        rec.step(member, "inner", "fdel" if delete else "fset", function)
        rec.call(function, o) if delete else rec.call(function, o, value)
        return
    hook = "__delete__" if delete else "__set__"
    setter = MISSING if member is MISSING else rec.special(type(member), hook)
    if type(setter) is Function:
        rec.call(setter, member, o) if delete else rec.call(setter, member, o, value)
        return
    rec.changes += 1
    if name in ("grad", "data", "requires_grad") and is_a(o, torch.Tensor):
        rec.refuse_unseen(o, name)
    if is_a(o, types.ModuleType):
        rec.root(o.__dict__)
        rec.write(o.__dict__, name, whole=False, table=NAMES)
    elif is_a(o, type):
        _note_class(rec, o, name)
    elif rec.place_of(o) is not None:
        if rec.waits is not None and member is MISSING:
            rec.wait_for_tensor(o, name, value)
        _note(rec, o, kind, name, member, delete)
    elif (space := instance_dict(o)) is not None and id(space) in rec.known:
        rec.write(space, name, whole=False, table=NAMES)  # made here, with a dict of others
    _store(o, name, value)


def _note_class(rec: Running, cls: type, name: str) -> None:
    if is_immutable(cls):
        return
    if name in _STRUCTURE:
        rec.refuse(
            SideEffectError(
                f"the region sets {name} of a class",
                code="class-changed",
                path=f"{cls.__qualname__} at {user_line()}",
            )
        )
    if id(cls) not in rec.made:
        rec.root(cls)
        rec.write(cls, name, whole=False, table=CLASS)
    for known in [known for known in rec.lookups if known[1] == name and issubclass(known[0], cls)]:
        del rec.lookups[known]


def _note(rec: Running, o: Any, kind: type, name: str, member: Any, removes: bool) -> None:
    """An attribute of an object that was there before is about to be written, or taken away."""
    if name in _STRUCTURE:
        rec.refuse(
            SideEffectError(
                f"the region sets {name} of an object",
                code="object-changed",
                path=f"{rec.place_of(o)}.{name} at {user_line()}",
            )
        )
    if name in rec.own.get(id(o), ()):
        return  # a part of the context of a wrapper, which the capture compares
    space = (
        vars(o) if is_a(o, torch.Tensor) else None if is_a(o, THREAD_LOCAL) else instance_dict(o)
    )
    data = member is not MISSING and rec.lookup(type(member), "__set__") is not MISSING
    if space is not None and type(space) is not dict:
        rec.refuse(
            SideEffectError(
                "the region sets an attribute of an object whose __dict__ is a "
                f"{type(space).__qualname__}",
                code="own-namespace",
                path=f"{rec.place_of(o)}.{name} at {user_line()}",
                fix="write a __getattr__ and a __setattr__ instead of self.__dict__ = self",
            )
        )
    if space is not None and not data:
        rec.write_names(o, space, name, removes=removes)
    elif type(member) is types.MemberDescriptorType and not is_immutable(member.__objclass__):
        rec.write(o, name, whole=False, table=SLOTS)
    elif is_a(o, THREAD_LOCAL):
        rec.write_names(o, THREAD_LOCAL.__getattribute__(o, "__dict__"), name)
    elif not is_a(o, torch.Tensor):  # whose data, gradient and flags the capture sees
        rec.refuse(
            SideEffectError(
                f"the region sets an attribute of a {kind.__qualname__}, which C code keeps",
                code="object-changed",
                path=f"{rec.place_of(o)}.{name} at {user_line()}",
            )
        )


def _store(o: Any, name: str, value: Any) -> None:
    if is_a(o, torch.Tensor):
        delattr(o, name) if value is MISSING else setattr(o, name, value)
        return
    base: Any = type if is_a(o, type) else object
    if is_a(o, (types.ModuleType, THREAD_LOCAL)):
        base = types.ModuleType if is_a(o, types.ModuleType) else THREAD_LOCAL
    elif (
        type(special_of(type(o), "__setattr__")) is not Function
    ):  # C code of its class may have its own way
        base = None
    if base is None:
        delattr(o, name) if value is MISSING else setattr(o, name, value)
    elif value is MISSING:
        base.__delattr__(o, name)
    else:
        base.__setattr__(o, name, value)
