"""Values as they are, past any code of the user's: their classes, namespaces, slots, and what is the same."""

from __future__ import annotations

import collections
import enum
import functools
import gc
import sys
import types
from collections.abc import Collection
from typing import Any

import torch

from .. import torch_api
from ..subclass.attributes import is_heap_type, members_of


class _Missing:
    def __repr__(self) -> str:
        return "nothing"

    def __reduce__(self) -> str:
        return "MISSING"


#: there is no value at a place
MISSING: Any = _Missing()

#: classes of values that are compared by type and value, and lead nowhere; those of DTensor's placements join when they exist
ATOMS: set[type] = set(
    {int, float, bool, str, bytes, complex, type(None), type(Ellipsis), type(NotImplemented), range, slice}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size}
)


def is_a(value: Any, kinds: Any) -> bool:
    """Like isinstance, which would ask the ``__getattribute__`` of the user's class for ``__class__``."""
    return issubclass(type(value), kinds)


def is_atom(value: Any) -> bool:
    """Is it compared by type and value?"""
    return type(value) in ATOMS or is_a(value, enum.Enum)


def lookup(cls: type, name: str) -> Any:
    """The class attribute by the order of bases, as C code finds it: no code of a metaclass runs."""
    for base in type.__dict__["__mro__"].__get__(cls):
        held = type.__dict__["__dict__"].__get__(base)
        if name in held:
            return held[name]
    return MISSING


def lookup_after(key: tuple[type, type, str]) -> Any:
    """As ``super`` finds it: of a class, among the bases behind another one."""
    cls, after, name = key
    mro = cls.__mro__
    for base in mro[mro.index(after) + 1 :]:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def has(cls: type, name: str) -> bool:
    """Has a class, or a base of it, the attribute?"""
    return lookup(cls, name) is not MISSING


#: classes of C whose state is all in what is walked
_WALKED = frozenset({object, list, dict, set, tuple, types.SimpleNamespace})
_WALKED |= {collections.OrderedDict, collections.defaultdict, collections.deque}
#: of classes that C code makes (Py_TPFLAGS_DISALLOW_INSTANTIATION, Py_TPFLAGS_IMMUTABLETYPE)
_OF_C = 1 << 7 | 1 << 8


def solid_base(cls: type) -> type:
    """The class of C whose layout and state its instances have."""
    made = (c for c in cls.__mro__ if isinstance(vars(c).get("__new__"), types.BuiltinFunctionType))
    return next(made, cls)


def is_told(value: Any) -> bool:
    """Do its class, its attributes and its items tell what it is? Else it is what it is by identity: what C code keeps of a
    date or a pattern, a function, a member of an enumeration, a mesh."""
    cls = type(value)
    if is_a(value, (*_ONE_OBJECT, enum.Enum)) or torch_api.is_opaque_class(cls):
        return False
    solid = solid_base(cls)
    own = cls.__mro__[: cls.__mro__.index(solid)]
    if solid not in _WALKED or any(map(members_of, own)):  # a path, a fraction: what they are is in slots
        return False
    return all(c in _WALKED or (is_heap_type(c) and not c.__flags__ & _OF_C) for c in own)


_ONE_OBJECT = (type, types.FunctionType, types.ModuleType, types.MethodType)


def same(a: Any, b: Any) -> bool:
    """Identity, then exact: the types, and an ``==`` that cannot run code of the user's. 0.0 is not -0.0, nan is nan."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is tuple:
        return len(a) == len(b) and all(map(same, a, b))
    if kind is frozenset:
        return bool(a == b) and {(type(x), x) for x in a} == {(type(x), x) for x in b}
    if kind is float or kind is complex:
        return repr(a) == repr(b)
    if kind is slice:
        return same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    return kind in ATOMS and bool(a == b)


def same_keys(a: Collection[Any], b: Collection[Any]) -> bool:
    """Have two tables the same keys in the same order? (A key may be a tensor, which has no truth value.)"""
    return len(a) == len(b) and all(x is y or (not is_a(x, torch.Tensor) and x == y) for x, y in zip(a, b, strict=True))


def short(value: Any) -> str:
    """A value in a message: never the contents of a tensor, never code of the user's."""
    text = repr(value) if type(value) in ATOMS or value is MISSING else f"a {type(value).__qualname__}"
    return text if len(text) < 80 else text[:77] + "..."


def pairs_of(table: Any) -> Any:
    """The items of a dict, past its class: an OrderedDict has an order of its own."""
    return (collections.OrderedDict if is_a(table, collections.OrderedDict) else dict).items(table)


def dict_of_class(cls: type) -> dict[str, Any]:
    """The dict behind the proxy: read for its version, never written."""
    return next(d for d in gc.get_referents(cls.__dict__) if type(d) is dict)


def factory_of(value: Any) -> Any:
    """What makes the missing values of a ``defaultdict``; None of another dict."""
    return _FACTORY.__get__(value) if is_a(value, collections.defaultdict) else None


_FACTORY: Any = vars(collections.defaultdict)["default_factory"]


_NOT_WALKED = frozenset(sys.stdlib_module_names) | frozenset(
    [
        "torch",
        "functorch",
        "torchgen",
        "typing_extensions",
        "numpy",
        "sympy",
        "mpmath",
        "networkx",
        "optree",
        "subclass_trace",
        "pytest",
        "_pytest",
        "pluggy",
        "hypothesis",
    ]
)


@functools.lru_cache(None)
def is_walked(module_name: str | None) -> bool:
    """Is code of this module followed? Installed packages are; torch, the standard library and this package are not.

    But for torch's cache of parametrizations, which keeps tensors from call to call.
    """
    name = module_name or ""
    root, _, rest = name.partition(".")
    if root in _NOT_WALKED or root.startswith("namedtuple_"):  # in which the standard library makes ``__new__``
        return name in ("__main__", "torch.nn.utils.parametrize") or (
            root == "subclass_trace" and rest.startswith("zoo")
        )
    return True
