"""What a call does: functions of Python's run as clones, classes by ``__new__`` and ``__init__``, C
functions by their line of a table (`c_functions`, `c_methods`), torch functions as they are, all
others with everything that they are given read whole.
"""

from __future__ import annotations

import collections
import copy
import gc
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..errors import SideEffectError, UnsupportedError
from ..subclass.values import ATOMS, is_a
from ..torch_api.compiled_inside import (
    CompiledBy,
    backend_of_compiled,
    is_compiled,
    is_library_operator,
)
from ..torch_api.flags import CONSTANT_GETTERS
from ..torch_api.kinds import asked, is_fake
from ..torch_api.numbers import PYTHON_CLASSES
from ..torch_api.owners import Owner, owner_of
from . import attributes
from .attribute_writes import plain_put
from .boundary import (
    ENTER,
    is_compiled_by_dynamo,
    kind_of,
)
from .current import current
from .kinds import (
    BUILTINS,
    C_CALLABLES,
    ITERATORS,
    VIEWS,
    Function,
    Method,
    Partial,
)
from .net import unwatched, watched
from .recorder import user_line
from .running import Running
from .special import bound_of, is_python
from .texts import number_of
from .values import MISSING, items_of, lookup

#: handlers: (recorder, what is called, arguments, keywords) -> result
Handler = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]
#: functions of Python's with a meaning of their own; filled by the modules of C functions, torch
#: functions and the world
FUNCTIONS: dict[Any, Handler] = {
    bound_of: lambda rec, f, a, k: attributes.bound(rec, a[0], a[1], type(a[1]), "")
}
#: classes, functions of C, and objects that are called, by their classes
CLASSES: dict[Any, Handler] = {}
C_TABLE: dict[Any, Handler] = {}
BY_TYPE: dict[Any, Handler] = {}
#: what `operations` does, for the handlers; set by it
operations: Any = None
#: methods of C, by the class of their owner: see `c_methods`
method_of_c: Any = None
#: wrappers of `torch.compiler.disable`: see `torch_functions`
of_disabled: Any = None
#: higher order operators: see `branches`
with_branches: Any = None


def is_of_disabled(code: types.CodeType) -> bool:
    """Is it the code of a wrapper that `torch.compiler.disable` makes?"""
    return code.co_freevars in (("fn", "self"), ("fn",)) and code.co_name in (
        "_fn",
        "nonrecursive_disable_wrapper",
    )


referents = gc.get_referents


def refuse_change(rec: Running, o: Any, how: str) -> None:
    """An object of C that was there before is changed, and cannot be put back.

    Raises:
        SideEffectError: always.
    """
    rec.refuse(
        SideEffectError(
            "the region changes an object whose changes cannot be told or taken back",
            code="object-changed",
            path=f"{rec.place_of(o)} at {user_line()}",
            got=f"a {type(o).__name__} ({how})",
            fix="make it inside of the region, or pass what it gives as an argument",
        )
    )


def is_of_package(kind: type) -> bool:
    """Is it a class of this package's inner parts, whose objects hold no state of a region?"""
    module = kind.__module__
    return module.startswith("subclass_trace.") and not module.startswith(
        ("subclass_trace.zoo", "subclass_trace.authoring")
    )


# ---- callables handed to C code
def callback(f: Any, *, called_only: bool = True) -> Any:
    """The same callable, instrumented, for C code to call; ``called_only``: it does nothing else
    with it."""
    of_python = is_a(f, (Function, Method, Partial)) or (
        not is_a(f, type) and _has_own_call(type(f))
    )
    if not of_python and not (called_only and callable(f)):
        return f

    def called(*args: Any, **kwargs: Any) -> Any:
        rec = current()
        return f(*args, **kwargs) if rec is None else rec.call(f, *args, **kwargs)

    if type(f) is Function:
        called.__name__, called.__qualname__ = f.__name__, f.__qualname__
    return called


def is_function(value: Any) -> bool:
    """Is it there to be called, and not to be iterated? (An `nn.ModuleList` is both.)"""
    return is_a(value, (Function, Method, Partial, *C_CALLABLES)) or (
        callable(value) and lookup(type(value), "__iter__") is MISSING and not is_a(value, type)
    )


def _has_own_call(kind: type) -> bool:
    return is_python(kind, "__call__")


# ---- C code of unknown meaning
#: modules of C code whose functions depend on their arguments alone
_PURE = """
    builtins _operator operator itertools _functools functools math cmath torch numpy _collections
    collections _struct _json _sre re _bisect _heapq _statistics _datetime datetime _decimal decimal
    _abc abc _weakref weakref zlib _string types typing _typing einops binascii copyreg _hashlib
    _md5 _sha1 _sha2 _sha512 unicodedata optree safetensors _ast _opcode _contextvars _pickle
    _warnings array _blake2 _codecs
"""
PURE = frozenset(_PURE.split())
#: of these, modules whose functions give numbers and texts
_COMPUTING = ("math", "cmath", "_struct")


def module_of(f: Any) -> str:
    """The package of a C callable."""
    owner: Any = getattr(f, "__self__", None)
    found = (
        getattr(f, "__module__", None)
        or getattr(getattr(f, "__objclass__", None), "__module__", None)
        or (owner.__name__ if is_a(owner, types.ModuleType) else None)
        or (owner.__module__ if is_a(owner, type) else type(owner).__module__)
    )
    return found.partition(".")[0] if type(found) is str else ""


def opaque(
    rec: Running,
    f: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    keeps: bool = True,
    pure: bool = False,
) -> Any:
    """C code of unknown meaning: it may read everything that can be reached from what it is
    given."""
    by = getattr(f, "__name__", None) or type(f).__name__
    owner = getattr(f, "__self__", None)
    if module_of(f) in _COMPUTING or (owner is not None and type(owner) in ATOMS):
        args = tuple(map(number_of, args))
    for value in (*args, *kwargs.values()):
        rec.deep(value, by)
    if owner is not None and not is_a(owner, (type, types.ModuleType)):
        rec.deep(owner, by)
    elif owner is None and not is_a(f, C_CALLABLES) and not is_a(f, type):
        rec.deep(f, by)
    module = module_of(f)
    if not args and not kwargs and is_a(owner, types.ModuleType):
        return _hidden(rec, f, by)
    if not pure and module not in PURE:
        rec.refuse(
            UnsupportedError(
                f"the region calls code of C whose meaning is not known: {module}.{by}",
                code="unknown-c-code",
                path=user_line(),
                fix="call it outside of the region, or register it with torch.library.custom_op",
            )
        )
    given = tuple(_called(rec.mapped(v)) for v in args)
    named = {name: _called(rec.mapped(v)) for name, v in kwargs.items()}
    for value in (*args, *kwargs.values()):
        if is_a(value, (list, dict, set, collections.deque)):
            rec.write(value)
    out = watched(f, given, named)
    if keeps and _is_kept(rec, out, owner) and not any(out is v for v in (*given, *named.values())):
        rec.refuse(
            SideEffectError(
                f"{by} returns an object that it keeps", code="c-code-keeps", path=user_line()
            )
        )
    return rec.give(out)


def _hidden(rec: Running, f: Any, by: str) -> Any:
    """C code without arguments tells of a state of its own, which is compared if it can be."""
    out = unwatched(f)
    if not _is_plain(out):
        rec.refuse(
            UnsupportedError(
                f"the region calls code of C whose meaning is not known: {by}()",
                code="unknown-c-code",
                path=user_line(),
            )
        )
    rec.state_at(rec.child(rec.root(f), "call", ()), copy.deepcopy(out))
    return out


def _is_plain(value: Any) -> bool:
    if is_a(value, (list, tuple)):
        return all(map(_is_plain, value))
    return type(value) in ATOMS or (type(value) is dict and all(map(_is_plain, value.values())))


def _is_kept(rec: Running, out: Any, owner: Any) -> bool:
    """Does somebody else hold what C code has returned? (Two references are ours, one is this
    call's.)"""
    import enum

    if type(out) in ATOMS or out is owner or rec.place_of(out) is not None:
        return False
    plain = (type, types.ModuleType, torch.Tensor, enum.Enum, tuple, frozenset, *C_CALLABLES)
    return sys.getrefcount(out) > 4 and not is_a(out, plain)


# ---- torch functions


def torch_call(rec: Running, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A torch function: tensors are inputs of the graph, containers and objects are read whole,
    callables instrumented."""
    if type(f) is Function and is_compiled_by_dynamo(f.__code__.co_filename):
        return with_branches(rec, f, args, kwargs)
    if type(f) is Function and is_compiled(f):
        return _inlined(rec, f, args, kwargs)
    if type(f) is Function and f.__closure__ and f not in CONSTANT_GETTERS:
        f = _with_callbacks(rec, f)
    special = changed = False
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind in ATOMS or is_a(value, torch.Tensor) or kind in PYTHON_CLASSES:
            continue
        special = True
        changed |= read_argument(rec, value)
    if rec.stand_ins or rec.symbols:
        args = tuple(map(rec.mapped, args))
        kwargs = {name: rec.mapped(v) for name, v in kwargs.items()} if kwargs else kwargs
    if changed:
        args = tuple(map(_called, args))
        kwargs = {name: _called(v) for name, v in kwargs.items()}
    if special or is_library_operator(f):
        out = watched(f, args, kwargs)
    else:
        out = f(*args, **kwargs)
    if type(out) in ATOMS and out is not None and type(out) is not f:  # a placement, say
        _note_answer(rec, f, args, kwargs, out)
    return rec.give(out)


def _inlined(rec: Running, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of ``torch.compile``: what was compiled is a part of the region."""
    cell = f.__closure__[f.__code__.co_freevars.index("fn")]
    function = cell.cell_contents
    before = rec.compiled_by
    if (backend := backend_of_compiled(f)) is not None:
        owner = getattr(function, "__self__", None)  # a module
        name = f.__qualname__ if owner is None else type(owner).__qualname__
        rec.inlined[name] = backend[0]
        rec.compiled_by = before or CompiledBy(name, backend[1])
    rec.cells_of(f)
    rec.step(cell, "contents", None, function)
    try:
        return rec.call(function, *args, **kwargs)
    finally:
        rec.compiled_by = before


def _with_callbacks(rec: Running, f: Any) -> Any:
    """A function of torch's that closes over callables of the user's, as `vmap` gives it: over
    what calls them as clones."""
    held = [cell.cell_contents for cell in f.__closure__ if referents(cell)]
    if len(held) < len(f.__closure__) or not any(map(_is_users_callable, held)):
        return f
    rec.cells_of(f)
    cells = []
    for cell, value in zip(f.__closure__, held, strict=True):
        rec.step(cell, "contents", None, value)
        cells.append(types.CellType(callback(value)) if _is_users_callable(value) else cell)
    made = Function(f.__code__, f.__globals__, f.__name__, f.__defaults__, tuple(cells))
    made.__kwdefaults__ = f.__kwdefaults__
    return made


def _is_users_callable(value: Any) -> bool:
    if is_a(value, (Function, Method, Partial)):
        return kind_of_callable(value) == ENTER
    if is_a(value, type) or is_a(value, torch.Tensor):
        return False
    kind = type(value)
    return is_a(value, torch.nn.Module) or (
        _has_own_call(kind) and owner_of(kind) is not Owner.TORCH
    )


def _note_answer(
    rec: Running, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> None:
    """What a torch function tells without a tensor is a state of torch's; of a real tensor, which a
    backward met, a fact."""
    owner = getattr(f, "__self__", None)
    if is_a(owner, torch.Tensor):
        f, args = getattr(torch.Tensor, f.__name__, f), (owner, *args)
    if args and is_a(args[0], torch.Tensor):
        if rec.make is None:
            _note_fact(rec, f, args, kwargs, out)
        return
    if kwargs or f in CONSTANT_GETTERS:
        return
    fixed = (type, types.ModuleType)
    if all(
        type(a) in ATOMS
        or is_a(a, fixed)
        or (owner_of(type(a)) is Owner.TORCH and rec.place_of(a) is not None)
        for a in args
    ):
        if not (type(f) is not Function and args):  # C functions of arguments compute with them
            rec.state_at(rec.child(rec.root(f), "call", args), out)


def _note_fact(
    rec: Running, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> None:
    """What a real tensor, which a backward has met, answers to a function of torch's."""
    place = rec.place_of(args[0])
    if (
        place is not None
        and not is_fake(args[0])
        and not kwargs
        and all(type(a) in ATOMS for a in args[1:])
    ):
        rec.at(rec.child(place, "fact", (f, args[1:])), out)


def _called(value: Any) -> Any:
    if is_a(value, (list, tuple)):
        items = [*items_of(value)]
        if any(type(v) in (Function, Method, Partial) for v in items):
            items = [*map(_called, items)]
            return items if is_a(value, list) else tuple.__new__(type(value), items)
    return (
        callback(value, called_only=False) if type(value) in (Function, Method, Partial) else value
    )


def read_argument(rec: Running, value: Any) -> bool:
    """What a torch function is given is read; is there a callable in it?"""
    if type(value) in ATOMS or is_a(value, torch.Tensor) or type(value) in PYTHON_CLASSES:
        return False
    if is_a(value, (list, tuple)):
        rec.touch(value)
        return any(list(map(partial(read_argument, rec), items_of(value))))
    if is_a(value, dict):
        rec.touch(value)
        return any(list(map(partial(read_argument, rec), dict.values(value))))
    if type(value) in (Function, Method, Partial):
        return kind_of_callable(value) == ENTER
    if is_a(value, (set, frozenset, *VIEWS)):
        rec.touch(value)
        return False
    if is_a(value, (type, types.ModuleType, torch.nn.Module, *C_CALLABLES, *ITERATORS)):
        if is_a(value, ITERATORS) and rec.place_of(value) is not None:
            refuse_change(rec, value, "iterated")
        return False
    if type(value) is slice:
        return any(list(map(partial(read_argument, rec), (value.start, value.stop, value.step))))
    if rec.place_of(value) is not None and owner_of(type(value)) is not Owner.TORCH:
        rec.deep(value, "torch")
    return False


def kind_of_callable(value: Any) -> str:
    """Whose code a function, a method, or what a partial calls is."""
    while type(value) is not Function:
        inner = value.func if is_a(value, Partial) else getattr(value, "__func__", None)
        if inner is None:
            return ENTER
        value = inner
    return kind_of(value.__code__)


# ---- C functions
def call_c(rec: Running, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function or method of C."""
    try:
        handler = C_TABLE.get(f)
    except TypeError:  # its owner has no hash
        handler = None
    if handler is not None:
        return handler(rec, f, args, kwargs)
    kind = type(f)
    if kind in (*BUILTINS, types.MethodWrapperType):
        return method_of_c(rec, f, f.__self__, args, kwargs)
    if kind in (types.WrapperDescriptorType, types.MethodDescriptorType) and args:
        if is_a(args[0], torch.Tensor):
            return tensor_method(rec, f, args[0], args, kwargs)
        return call_c(rec, f.__get__(args[0], type(args[0])), args[1:], kwargs)
    return opaque(rec, f, args, kwargs)


#: what a tensor answers of itself, and a stand-in otherwise
_FACTS = ("is_shared", "_is_zerotensor", "is_pinned")
#: methods that register a callable on a tensor
_REGISTERS = ("register_hook", "register_post_accumulate_grad_hook")


def tensor_method(
    rec: Running, f: Any, t: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A method of torch's on a tensor; ``args`` holds that if ``f`` is not bound."""
    name = f.__name__
    if name in ("__setattr__", "__getattribute__", "__delattr__"):
        rest = args[1:] if args and args[0] is t else args
        if name == "__getattribute__":
            return attributes.get(rec, t, *rest)
        return plain_put(rec, t, rest[0], rest[1] if name == "__setattr__" else MISSING)
    if name in _FACTS and (place := rec.place_of(t)) is not None:
        fact = rec.child(place, "fact", (getattr(torch.Tensor, name), ()))
        return rec.at(fact, asked(rec.real(t), name))
    if name == "requires_grad_":
        rec.refuse_unseen(t, "requires_grad")
    if name in _REGISTERS:
        args = tuple(callback(v) if not is_a(v, torch.Tensor) else v for v in args)
    return torch_call(rec, f, args, kwargs)


def truth_of(rec: Running, o: Any) -> bool:
    """``bool(o)``, by ``__bool__`` or ``__len__``."""
    return bool(CLASSES[bool](rec, bool, (o,), {}))
