"""Kinds of values, as the recorder tells them apart."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import functools
import itertools
import operator
import pathlib
import random
import re
import sys
import threading
import types
from typing import Any

import torch

from ..subclass.values import ATOMS
from ..torch_api.authors import OpOverloadPacket
from ..torch_api.dynamo import MARKS
from ..torch_api.kinds import FAKE_TYPES, is_fake
from ..torch_api.numbers import PYTHON_CLASSES
from ..torch_api.operators import OpOverload

Function, Method, Builtin = types.FunctionType, types.MethodType, types.BuiltinFunctionType
Partial, LruCache = functools.partial, functools._lru_cache_wrapper
#: functions of C, and those that are told the class that defines them
BUILTINS = (Builtin, type(re.compile("").match))
#: callables of C
C_CALLABLES = (
    *BUILTINS,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)
#: which say by their `repr` what they get
GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_ITERABLE: tuple[Any, ...] = (
    [],
    (),
    {},
    {}.values(),
    {}.items(),
    set(),
    "",
    b"",
    range(1),
    range(2**70),
)
ITERATORS: tuple[type, ...] = (
    types.GeneratorType,
    types.CoroutineType,
    *{type(iter(of)) for of in (*_ITERABLE, collections.deque())},
    *(enumerate, zip, map, filter, reversed),
    *(kind for kind in vars(itertools).values() if isinstance(kind, type)),
)
#: immutable objects of C that are compared by type and ``==``
VALUES = {
    decimal.Decimal,
    fractions.Fraction,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    pathlib.PurePosixPath,
    pathlib.PosixPath,
    re.Pattern,
    types.CodeType,
    types.UnionType,
}
#: classes whose instances are so too, numpy's where it is there
VALUE_BASES: tuple[type, ...] = ()
ARRAYS: tuple[type, ...] = (bytearray,)
#: what a class is made of, and what C code adds to one
DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    property,
    staticmethod,
    classmethod,
    OpOverload,
    OpOverloadPacket,
)
#: classes of C of which all is seen: what an object of one refers to, its bytes, or nothing
SHOWN: tuple[type, ...] = (
    *(*C_CALLABLES, *GETTERS, *DESCRIPTORS, Partial, BaseException, types.GenericAlias),
    *(int, float, complex, str, bytes, bytearray),
)
LOCKS = (type(threading.Lock()), type(threading.RLock()))
#: objects that hold a part of the world, and cannot be compared
WORLDLY: set[type] = {*LOCKS, random.Random, type(sys.stdout), memoryview}
THREAD_LOCAL = threading.local
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
#: what an operator of Python's computes without code of the user's
SIMPLE = ATOMS | {
    torch.Tensor,
    torch.nn.Parameter,
    *PYTHON_CLASSES,
    *FAKE_TYPES,
}

#: Py_TPFLAGS_IMMUTABLETYPE
_IMMUTABLE = 1 << 8


def is_immutable(cls: type) -> bool:
    """Is it a class of C whose attributes cannot be set?"""
    return bool(cls.__flags__ & _IMMUTABLE) or not cls.__flags__ & 1 << 9


def learn_numpy() -> None:
    """Add numpy's kinds, once it is imported."""
    global ARRAYS, SHOWN, VALUE_BASES
    numpy = sys.modules.get("numpy")
    if numpy is not None and not VALUE_BASES:
        VALUE_BASES = (numpy.generic, numpy.dtype)
        ARRAYS = (*ARRAYS, numpy.ndarray)
        SHOWN = (*SHOWN, numpy.ndarray, numpy.ufunc, type(numpy.put))
        WORLDLY.update((numpy.random.Generator, numpy.random.RandomState))


#: torch's C++ code keeps the sizes of a traced tensor in these; and marks of sizes, which decide a
#: trace and no call
_CAPSULES = (f"{sym}_{what}_capsule" for sym in ("", "_sym") for what in ("sizes", "strides"))
_KEPT_BY_TORCH = MARKS | {name + length for name in _CAPSULES for length in ("", "_len")}


def set_by_class(stand_in: torch.Tensor) -> frozenset[str]:
    """The attributes of a tensor that is just made which follow from its inner tensors and its
    context; a fake's own."""
    if is_fake(stand_in):
        return frozenset(vars(stand_in)) | _KEPT_BY_TORCH
    held = vars(stand_in).items()
    return _KEPT_BY_TORCH | {
        name for name, value in held if type(value) not in ATOMS or type(value) is torch.Size
    }
