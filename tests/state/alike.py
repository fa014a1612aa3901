"""What a program left behind, compared with what its twin left: values, and which names lead to one object."""

from __future__ import annotations

import collections
import contextvars
import functools
import pathlib
import random
import types
from collections.abc import Iterable
from typing import Any

import torch

_SAME_OBJECT_MAY_STAND_TWICE = (tuple, frozenset, type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_BY_DYNAMO = "_dynamo_static_input_type"  # what it remembers of a parameter that a branch of `cond` reads
_OF_PYTHON = ("builtins", "functools", "_thread", "_abc", "operator", "weakref")


def _attribute(o: Any, name: str) -> Any:
    """Also of objects whose own ``__getattribute__`` raises."""
    try:
        return getattr(o, name, None)
    except Exception:
        return object.__getattribute__(o, name)


def _attributes(o: Any) -> Any:
    found = _attribute(o, "__dict__")
    return 0 if found is None else found


class Twins:
    """Compares two values; what is one object on one side has to be one object on the other."""

    def __init__(self) -> None:
        self._pairs: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, a: Any, b: Any) -> bool:
        """Are they alike?"""
        kind = type(a)
        if kind in (float, complex):
            return kind is type(b) and (repr(a) == repr(b) or abs(a - b) < 1e-9 * abs(a))
        if kind in (int, str, bytes, bool, type(None)):
            return kind is type(b) and bool(a == b)
        if kind.__name__ != type(b).__name__ or not self._one_to_one(a, b):
            return False
        if (id(a), id(b)) in self._pairs:
            return True
        self._pairs[id(a), id(b)] = a, b
        return self._inside(a, b)

    def _one_to_one(self, a: Any, b: Any) -> bool:
        if issubclass(type(a), _SAME_OBJECT_MAY_STAND_TWICE):
            return True
        first = self._pairs.setdefault(("a", id(a)), (b, a))
        second = self._pairs.setdefault(("b", id(b)), (a, b))
        return first[0] is b and second[0] is a

    def _all(self, a: Iterable[Any], b: Iterable[Any]) -> bool:
        first, second = list(a), list(b)
        return len(first) == len(second) and all(map(self, first, second))

    def _inside(self, a: Any, b: Any) -> bool:
        if issubclass(type(a), torch.Tensor):
            return self._tensors(a, b)
        if issubclass(type(a), (dict, list, tuple, collections.deque, set, frozenset)):
            return self._containers(a, b)
        if issubclass(type(a), (float, complex)):
            return self(complex(a), complex(b)) and self(_attributes(a), _attributes(b))
        if issubclass(type(a), types.FunctionType):
            cells = [[c.cell_contents for c in f.__closure__ or ()] for f in (a, b)]
            parts = [(f.__defaults__, f.__kwdefaults__, f.__dict__) for f in (a, b)]
            return self._all(*cells) and self._all(*parts)
        if issubclass(type(a), types.MethodType):
            return self(a.__self__, b.__self__) and self(a.__func__, b.__func__)
        if issubclass(type(a), functools.partial):
            return self._all((a.func, a.args, a.keywords), (b.func, b.args, b.keywords))
        if issubclass(type(a), type):
            return all(self(v, vars(b).get(k)) for k, v in vars(a).items() if not k.startswith("_"))
        return self._objects(a, b)

    def _tensors(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        if hasattr(a, "a"):  # a wrapper
            return hasattr(b, "a") and self(a.a, b.a)
        if (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
            return False
        signs = bool((torch.signbit(a) == torch.signbit(b)).all())
        own = [{k: v for k, v in vars(t).items() if k != _BY_DYNAMO} for t in (a, b)]
        return signs and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) and self(*own)

    def _containers(self, a: Any, b: Any) -> bool:
        if issubclass(type(a), dict):
            values = collections.OrderedDict.values if issubclass(type(a), collections.OrderedDict) else dict.values
            same = len(a) == len(b) and all(k is n or self(k, n) for k, n in zip(a, b, strict=True))
            same = same and self._all(values(a), values(b))
        elif issubclass(type(a), (set, frozenset)):
            same = a == b or self._all(sorted(a, key=str), sorted(b, key=str))
        else:
            same = self._all(a, b)
        return same and self(_attributes(a), _attributes(b))

    def _objects(self, a: Any, b: Any) -> bool:
        name = type(a).__name__
        if issubclass(type(a), contextvars.ContextVar):
            return self(a.get(None), b.get(None))
        if issubclass(type(a), pathlib.PurePath):  # it keeps what it was asked
            return bool(a == b)
        if issubclass(type(a), random.Random):
            return a is b or a.getstate() == b.getstate()
        if name in ("ndarray", "bytearray"):
            return bytes(a) == bytes(b)
        if name == "StringIO":
            return bool(a.getvalue() == b.getvalue())
        if name == "SimpleQueue":
            return bool(a.qsize() == b.qsize())
        if name in ("count", "list_iterator"):
            return repr(a.__reduce__()[-1]) == repr(b.__reduce__()[-1])
        if issubclass(type(a), types.GeneratorType):
            alive = a.gi_frame is not None and b.gi_frame is not None
            return alive and self({**a.gi_frame.f_locals, ".0": 0}, {**b.gi_frame.f_locals, ".0": 0})
        if issubclass(type(a), types.ModuleType):
            public = [{k: v for k, v in vars(m).items() if k[0] != "_"} for m in (a, b)]
            return a.__name__ != "cfgx" or a is b or self(*public)
        if type(a).__module__ in _OF_PYTHON:
            return True
        slots = [
            k for c in type(a).__mro__ for k in getattr(c, "__slots__", ()) if k not in ("__dict__", "__weakref__")
        ]
        same = self(_attributes(a), _attributes(b))
        return same and self._all(*([_attribute(o, k) for k in slots] for o in (a, b)))
