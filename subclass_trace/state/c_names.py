"""Built-in functions about attributes, names and classes."""

from __future__ import annotations
import __future__

import abc
import builtins
import types
import typing
from typing import Any, TypeAlias

import torch

from ..errors import UnsupportedError
from ..subclass.protocol import is_plain_parameter
from ..subclass.values import is_a
from ..torch_api.kinds import is_fake
from ..torch_api.numbers import PYTHON_CLASSES
from ..torch_api.owners import Owner, owner_of_file
from . import attributes
from .attribute_writes import put
from .boundary import TORCH, kind_of
from .calls import C_TABLE, CLASSES, refuse_change
from .frames import instrumented_frame
from .instrument import clone, instrument
from .iteration import iterate
from .kinds import (
    Function,
    is_immutable,
)
from .net import unwatched, watched
from .recorder import user_line
from .rows import base_value
from .running import Running
from .special import is_python
from .values import MISSING, lookup

Args: TypeAlias = tuple[Any, ...]
Named: TypeAlias = dict[str, Any]


def _plain_name(rec: Running, text: Any) -> Any:
    """The name itself, of a subclass of text (a member of an enumeration) what it is."""
    if is_python(type(text), "__eq__", "__hash__"):
        refuse_change(rec, text, "a name that is compared")
    return base_value(text) if is_a(text, str) and type(text) is not str else text


def _getattr(rec: Running, f: Any, a: Args, k: Named) -> Any:
    try:
        return attributes.get(rec, a[0], _plain_name(rec, a[1]))
    except AttributeError:
        if len(a) > 2:
            return a[2]
        raise


def _hasattr(rec: Running, f: Any, a: Args, k: Named) -> Any:
    try:
        attributes.get(rec, a[0], _plain_name(rec, a[1]))
        return True
    except AttributeError:
        return False


def _setattr(rec: Running, f: Any, a: Args, k: Named) -> Any:
    put(rec, a[0], _plain_name(rec, a[1]), a[2] if f is setattr else MISSING)


def _vars(rec: Running, f: Any, a: Args, k: Named) -> Any:
    return attributes.get(rec, a[0], "__dict__") if a else instrumented_frame().f_locals


def _globals(rec: Running, f: Any, a: Args, k: Named) -> Any:
    space = instrumented_frame().f_globals
    rec.root(space)
    return space


def _locals(rec: Running, f: Any, a: Args, k: Named) -> Any:
    return instrumented_frame().f_locals


#: of a code object: what ``from __future__`` has set
_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag


def _eval(rec: Running, f: Any, a: Args, k: Named) -> Any:
    frame = instrumented_frame()
    flags = frame.f_code.co_flags & _FUTURE
    code = (
        compile(a[0], "<eval>", f.__name__, flags, dont_inherit=True) if is_a(a[0], str) else a[0]
    )
    given = [v for v in a[1:] if v is not None]
    spaces = given or (frame.f_globals, frame.f_locals)
    if is_python(type(spaces[-1]), "__getitem__", "__missing__"):
        refuse_change(rec, spaces[-1], f.__name__)
    if "__name__" in spaces[0]:
        rec.root(spaces[0])
    return f(instrument(types.CodeType.replace(code)), *spaces)


def _dir(rec: Running, f: Any, a: Args, k: Named) -> Any:
    if not a:
        return sorted(instrumented_frame().f_locals)
    o = a[0]
    if type(method := rec.special(type(o), "__dir__")) is Function:
        return sorted(iterate(rec, rec.call(method, o)))
    if is_a(o, types.ModuleType):
        rec.root(o.__dict__)
        own = rec.item(o.__dict__, "__dir__", o.__dict__.get("__dir__", MISSING))
        if own is not MISSING:
            return sorted(iterate(rec, rec.call(own)))
        rec.row(o.__dict__, "keys", list(o.__dict__))
    else:
        space: Any = getattr(o, "__dict__", None)
        if is_a(space, dict):
            rec.row(attributes.get(rec, o, "__dict__"), "keys", list(space))
        for cls in (o if is_a(o, type) else type(o)).__mro__:
            if not is_immutable(cls):
                rec.class_dict(cls)
    return dir(o)


def _isinstance(rec: Running, f: Any, a: Args, k: Named) -> Any:
    o, cls = rec.give(a[0]), a[1]
    kind: Any = type(rec.real(o))
    if f is isinstance and is_a(o, torch.Tensor) and is_plain_parameter(kind):
        o = rec.real(o)  # what stands for it is a plain tensor
    if is_a(cls, tuple):
        if rec.place_of(cls) is not None:
            rec.touch(cls)
        return any(_isinstance(rec, f, (o, c), k) for c in cls)
    if is_a(cls, types.UnionType):
        return any(_isinstance(rec, f, (o, c), k) for c in cls.__args__)
    symbol = PYTHON_CLASSES.get(type(o))
    if f is isinstance and symbol is not None:
        return is_a(cls, type) and (issubclass(symbol, cls) or is_a(o, cls))
    if f is isinstance and type(o) is cls:
        return not is_fake(o)  # what stands for a tensor of the user's
    meta = type(cls)
    if not is_a(cls, type):
        hook = rec.special(meta, _hook_of(f))
        return bool(rec.call(hook, cls, o)) if type(hook) is Function else f(o, cls)
    if meta is type:
        return f(o, cls)
    return _by_metaclass(rec, f, o, cls, meta)


def _hook_of(f: Any) -> str:
    return "__instancecheck__" if f is isinstance else "__subclasscheck__"


_CHECKS = {
    "__instancecheck__": abc.ABCMeta.__instancecheck__,
    "__subclasscheck__": abc.ABCMeta.__subclasscheck__,
}

#: what torch asks a tensor for, to tell whether it is one of these
_MARKS = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}


def _by_metaclass(rec: Running, f: Any, o: Any, cls: Any, meta: type) -> Any:
    if (
        f is isinstance
        and lookup(cls, "_is_protocol") is True
        and lookup(cls, "_is_runtime_protocol") is True
    ):
        names = (
            typing._get_protocol_attrs(cls)
            if hasattr(typing, "_get_protocol_attrs")
            else cls.__protocol_attrs__
        )
        for name in names:
            _hasattr(rec, hasattr, (o, name), {})
        return unwatched(f, o, cls)
    hook = _hook_of(f)
    method = rec.special(meta, hook)
    if type(method) is Function and method.__code__ is not _CHECKS[hook].__code__:
        code = method.__code__
        if kind_of(code) != TORCH and owner_of_file(code.co_filename) is not Owner.PYTHON:
            return bool(rec.call(method, cls, o))
    if is_a(o, torch.Tensor) and cls in _MARKS:
        _hasattr(rec, hasattr, (o, _MARKS[cls]), {})
    if is_a(cls, abc.ABCMeta):
        found = unwatched(f, o, cls)
        kind = o if f is issubclass else type(rec.real(o))
        rec.at(rec.child(rec.root(issubclass), "call", (kind, cls)), found)
        return found
    return unwatched(f, o, cls)


def _super(rec: Running, f: Any, a: Args, k: Named) -> Any:
    return super(*a)


def _build_class(rec: Running, f: Any, a: Args, k: Named) -> Any:
    return rec.made_class(watched(f, (clone(a[0]), *a[1:]), k))


def _make_class(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """``type(name, bases, dict)``: C code takes the module's name from the frame that calls."""
    hooks = [lookup(base, "__init_subclass__") for base in a[1]]
    hooks += [lookup(type(value), "__set_name__") for value in a[2].values()]
    if any(type(getattr(hook, "__func__", hook)) is Function for hook in hooks):
        rec.refuse(
            UnsupportedError(
                "the region makes a class by type(), which calls code of the user's",
                code="class-made",
                path=user_line(),
                fix="make it outside of the region",
            )
        )
    module = instrumented_frame().f_globals.get("__name__")
    return rec.made_class(watched(type, (a[0], a[1], {"__module__": module, **a[2]}), k))


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
        builtins.__build_class__: _build_class,
    }
)
CLASSES.update({super: _super, type: _make_class})
