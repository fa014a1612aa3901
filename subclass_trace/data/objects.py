"""Things that have a name of their own: they are written by it, and looked up among what is loaded.

>>> name_of(torch.nn.Linear), find(name_of(torch.nn.Linear)) is torch.nn.Linear
(['class', 'torch.nn.modules.linear', 'Linear'], True)
>>> name_of(torch.ops.aten.add.Tensor)
['op', 'aten', 'add', 'Tensor']
>>> name_of(lambda: 0) is None
True
"""

from __future__ import annotations

import datetime
import enum
import functools
import hashlib
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import DescriptionError, Reason, Unlike
from ..state import writes
from ..state.kinds import C_CALLABLES, ITERATORS, LOCKS, LruCache
from ..state.torch_flags import FLAGS
from ..state.values import MISSING, lookup
from ..torch_api.authors import OpOverloadPacket
from ..torch_api.autograd import CustomNode
from ..torch_api.dynamo import higher_order_name, higher_order_named
from ..torch_api.flag_rows import Flag
from ..torch_api.flags import FLAG_NAMED, FLAG_READ_BY
from ..torch_api.operators import HigherOrderOperator, OpOverload
from ..torch_api.owners import Owner, owner_of
from ..torch_api.wrappers import CLASSES_OF_PYBIND, MODULES_OF_C

#: what is written by a name, and the name
Name = list[Any]

_FUNCTIONS = (types.FunctionType, LruCache)
#: attributes of classes that C code makes
_MEMBERS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
#: classes of C that no module has by their own name
_TYPES: dict[str, type] = {
    kind.__qualname__: kind
    for kind in (
        *(value for value in vars(types).values() if isinstance(value, type)),
        *(*ITERATORS, *LOCKS, LruCache, type(datetime.datetime_CAPI), weakref.ref),
        *CLASSES_OF_PYBIND,
    )
}
#: how the things that a region writes are written; torch's flags
_TABLES: dict[str, Any] = {
    name: getattr(writes, name)
    for name in dir(writes)
    if isinstance(getattr(writes, name), writes.Table)
}
_TABLES["FLAGS"] = FLAGS


def name_of(thing: Any) -> Name | None:
    """The name by which `find` finds it; None where there is none."""
    for found in _names(thing):
        try:
            same = find(found)
            if same is thing or (
                type(thing) is types.MethodWrapperType and bool(same == thing)
            ):  # made anew by each read
                return found
        except (DescriptionError, Unlike):
            continue
    return None


def _names(thing: Any) -> Iterator[Name]:
    """The names that a thing may have."""
    kind = type(thing)
    if kind in (*_FUNCTIONS, types.BuiltinFunctionType) and thing in FLAG_READ_BY:
        yield ["flag", FLAG_READ_BY[thing]]
    if isinstance(thing, type):
        yield _class_name(thing)
        yield ["type", thing.__qualname__]
        if issubclass(thing, CustomNode) and thing is not CustomNode:
            yield ["node of", _class_name(vars(thing)["_forward_cls"])]
    elif kind in _FUNCTIONS:
        yield ["function", thing.__module__, thing.__qualname__]
    elif kind is types.BuiltinFunctionType:
        yield from _of_builtin(thing)
    elif kind is types.MethodWrapperType and (owner := name_of(thing.__self__)) is not None:
        yield ["method of", owner, thing.__name__]
    elif kind in _MEMBERS and (owner := name_of(thing.__objclass__)) is not None:
        yield ["member", owner, thing.__name__]
    elif isinstance(thing, OpOverload):
        yield ["op", thing.namespace, thing._schema.name.split("::")[-1], thing._overloadname]
    elif isinstance(thing, OpOverloadPacket):
        yield ["packet", *thing._qualified_op_name.split("::")]
    elif isinstance(thing, HigherOrderOperator):
        yield ["higher", higher_order_name(thing)]
    elif isinstance(thing, types.ModuleType):
        yield from _of_module(thing)
    elif isinstance(thing, enum.Enum):
        yield ["member of", _class_name(kind), thing.name]
    elif kind is dict:
        yield from (["globals", name] for name in _names_of_module(thing))
    elif isinstance(thing, writes.Table):
        yield from (["table", name] for name, table in _TABLES.items() if table is thing)
    elif isinstance(thing, Flag):
        yield ["flag row", thing.name]


def _of_builtin(thing: Any) -> Iterator[Name]:
    owner = thing.__self__
    if isinstance(owner, type):
        yield ["builtin of", _class_name(owner), thing.__name__]
    if isinstance(owner, types.ModuleType):
        yield ["attribute", owner.__name__, thing.__name__]
    for holder in (*MODULES_OF_C, thing.__module__ or "builtins"):
        yield ["attribute", holder, thing.__name__]
    yield ["builtin of", _class_name(torch.Tensor), thing.__name__]


def _names_of_module(space: dict[str, Any]) -> Iterator[str]:
    """Of the namespace of a module: as it calls itself, and as it was imported
    (``_collections_abc`` takes the name of another one)."""
    names = (space.get("__name__"), getattr(space.get("__spec__"), "name", None))
    yield from dict.fromkeys(name for name in names if type(name) is str)


def _of_module(thing: Any) -> Iterator[Name]:
    names = [*_names_of_module(vars(thing))]
    for name in names:
        yield ["module", name]
        before, _, last = name.rpartition(".")
        yield ["attribute", before, last]
    yield ["attribute", "torch", "ops"]
    yield ["attribute", "torch.nn.modules.rnn", "_VF"]
    yield from (["operations", name.rpartition(".")[2]] for name in names)


def _class_name(cls: type) -> Any:
    """By name; of a class that is not torch's or Python's with a fingerprint of what no row of a
    guard says."""
    own = owner_of(cls) not in (Owner.TORCH, Owner.PYTHON)
    return ["class", cls.__module__, cls.__qualname__, *([shape_of_class(cls)] if own else [])]


# ---- finding
def find(name: Name) -> Any:
    """The thing of this name.

    Raises:
        DescriptionError: there is none, or it is no name.
    """
    try:
        kind, *rest = name
        found = _FINDERS[kind](*rest)
    except Unlike:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DescriptionError(
            "nothing of this name is loaded", path=str(name), got=f"{type(error).__name__}: {error}"
        ) from None
    if found is MISSING:
        raise DescriptionError("nothing of this name is loaded", path=str(name))
    return found


def _by_qualname(kinds: tuple[type, ...]) -> Callable[[str, str], Any]:
    def found(module: str, qualname: str) -> Any:
        at: Any = vars(sys.modules[module])
        for part in qualname.split("."):
            at = at[part] if isinstance(at, dict) else lookup(at, part)
            at = at.__func__ if isinstance(at, (staticmethod, classmethod)) else at
        if not isinstance(at, kinds):
            raise TypeError(f"a {type(at).__name__}")
        return at

    return found


def _member(owner: Name, name: str) -> Any:
    found = vars(find(owner))[name]
    return found if isinstance(found, _MEMBERS) else MISSING


def _attribute(module: str, name: str) -> Any:
    """Of a module: a function of C, another module, a table of hooks."""
    found = vars(sys.modules[module])[name]
    return (
        found if isinstance(found, (*C_CALLABLES, types.ModuleType, type(torch.ops))) else MISSING
    )


def _built_in_of(owner: Name, name: str) -> Any:
    found = getattr(find(owner), name)
    return found if type(found) is types.BuiltinFunctionType else MISSING


def _method_of(owner: Name, name: str) -> Any:
    found = getattr(find(owner), name)
    return found if type(found) is types.MethodWrapperType else MISSING


def _member_of(owner: Name, name: str) -> Any:
    cls = find(owner)
    if not issubclass(cls, enum.Enum):
        raise TypeError("no enumeration")
    return cls[name]


def _operation(space: str, name: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, space), name), overload or "default")


def _class(module: str, qualname: str, shape: str = "") -> Any:
    found = _by_qualname((type,))(module, qualname)
    if shape and shape_of_class(found) != shape:
        raise Unlike(Reason(f"the class {qualname} has other bases, members or fields"))
    return found


_FINDERS: dict[str, Callable[..., Any]] = {
    "class": _class,
    "type": lambda name: _TYPES[name],
    "function": _by_qualname(_FUNCTIONS),
    "flag": lambda name: FLAG_NAMED[name].read,
    "flag row": lambda name: FLAG_NAMED[name],
    "member": _member,
    "op": _operation,
    "packet": lambda space, name: getattr(getattr(torch.ops, space), name),
    "higher": higher_order_named,
    "module": lambda name: sys.modules[name],
    "operations": lambda name: getattr(torch.ops, name),
    "attribute": _attribute,
    "builtin of": _built_in_of,
    "method of": _method_of,
    "node of": lambda function: find(function)._backward_cls,
    "member of": _member_of,
    "globals": lambda name: vars(sys.modules[name]),
    "table": lambda name: _TABLES[name],
}


# ---- fingerprints
def fingerprint(code: types.CodeType) -> str:
    """A hash of what a code object does: its instructions, names and constants, those of nested
    code, no lines or comments."""
    return _fingerprint(code)


@functools.lru_cache(maxsize=1 << 14)
def _fingerprint(code: types.CodeType) -> str:
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_name)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    table = getattr(code, "co_exceptiontable", b"")
    parts = (code.co_code, names, counts, table, *map(_constant, code.co_consts))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return fingerprint(value)
    if isinstance(value, frozenset):  # its order differs between processes
        return f"frozenset {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"tuple {[*map(_constant, value)]}"
    return f"{type(value).__name__} {value!r}"


def shape_of_class(cls: type) -> str:
    """A hash of what C code asks of a class: its bases and metaclass, the values of an enumeration,
    the fields of a tuple."""
    bases = [
        f"{type(base).__qualname__} {base.__module__}.{base.__qualname__}" for base in cls.__mro__
    ]
    held = [
        repr(getattr(cls, name, None)) for name in ("_fields", "_field_defaults", "__match_args__")
    ]
    members = [f"{m._name_} {m._value_!r}" for m in cls] if issubclass(cls, enum.Enum) else []
    return hashlib.sha256("\n".join((*bases, *held, *members)).encode()).hexdigest()[:16]


def fingerprint_of_class(cls: type) -> str:
    """A hash of the shape of a class and of the code of its methods; of those of torch and Python
    the versions tell."""
    parts = [shape_of_class(cls)]
    for base in cls.__mro__:
        if owner_of(base) is Owner.TORCH or base.__module__ == "builtins":
            parts.append(f"{base.__module__}.{base.__qualname__}")
            continue
        for name, value in sorted(vars(base).items()):
            parts += [f"{name} {fingerprint(f.__code__)}" for f in functions_in(value)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def functions_in(value: Any) -> list[types.FunctionType]:
    """The functions of Python's that a member of a class is made of."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    parts = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)
    return [f for f in parts if type(f) is types.FunctionType]


#: what they are made by, so that a file can have them too
FINGERPRINTS: tuple[Callable[..., Any], ...] = (
    fingerprint,
    _fingerprint.__wrapped__,
    _constant,
    functions_in,
    shape_of_class,
)
