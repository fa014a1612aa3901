"""Functions that Dynamo looks at, those given to higher order operators.

Nobody sees what such a function does. So it may read its operands, torch, functions that do no
more than that, and data that is compared as a whole: numbers, texts, containers, layers, objects of
which it names no code. Whatever else its code may reach by a name sends the call to eager mode.
"""

from __future__ import annotations

import abc
import builtins
import collections
import enum
import gc
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import UnsupportedError
from ..subclass.attributes import attributes_inside
from ..subclass.values import ATOMS, is_a
from ..torch_api.flags import FLAGS
from ..torch_api.owners import Owner, owner_of, owner_of_file, owner_of_name
from . import calls, torch_flags
from .boundary import ENTER, kind_of
from .kinds import C_CALLABLES, Function, LruCache, Method, Partial, is_immutable
from .net import names_in
from .recorder import user_line
from .running import Running
from .values import MISSING

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, collections.OrderedDict)
#: what a member of an enumeration has
_OF_MEMBERS = frozenset(("_value_", "_name_", "__objclass__", "_sort_order_"))
#: code of branches that Dynamo has looked at, and that reads Python state
_branches: set[types.CodeType] = set()


def with_branches(rec: Running, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A higher order operator: what the functions that it is given may read is read as a whole."""
    for value in (*args, *kwargs.values()):
        calls.read_argument(rec, value)
        if type(value) in (Function, Method, Partial) or is_a(value, torch.nn.Module):
            _Branch(rec, value).read()
        elif owner_of(type(value)) is Owner.TORCH and not is_a(value, torch.Tensor):
            rec.deep(value, "a branch")
    given, named = tuple(map(rec.mapped, args)), {name: rec.mapped(v) for name, v in kwargs.items()}
    profile = sys.getprofile()
    sys.setprofile(None)
    try:
        with torch_flags.as_outside(rec, FLAGS):
            return rec.give(f(*given, **named))
    finally:
        sys.setprofile(profile)


class _Branch:
    """What one branch may read.

    Attributes:
        names: all names in the code that it may run.
        named: modules, tensors, classes and objects, of which it reads what it names.
        is_state: does it read anything that may change without its name?
    """

    def __init__(self, rec: Running, branch: Any) -> None:
        self.rec, self.branch = rec, branch
        self.names: set[str] = set()
        self.named: list[Any] = []
        self.seen: dict[int, Any] = {}
        self.classes: dict[int, type] = {}
        self.is_state = False

    def read(self) -> None:
        """Read it all.

        Raises:
            UnsupportedError: it may reach what cannot be read; or Dynamo, which keeps what it has
                made of the code, also where Python state has changed, has looked at it before.
        """
        self.rec.deep(self.branch, "a branch")
        self._reach(self.branch)
        before = -1
        while before != len(self.names) + len(self.named):  # names lead to code with more of them
            before = len(self.names) + len(self.named)
            for value in list(self.named):
                self._read_named(value)
        code = getattr(_function_of(self.branch), "__code__", None)
        if code is not None and self.is_state:
            if code in _branches:
                self._refuse("reads Python state, and Dynamo has traced its code before")
            _branches.add(code)

    def _reach(self, value: Any) -> None:
        kind = type(value)
        if kind in ATOMS or is_a(value, torch.SymInt):
            self.is_state = True
            return
        if id(value) in self.seen:
            return
        self.seen[id(value)] = value
        if kind is Function:
            self._read_function(value)
        elif kind is Method or kind is Partial:
            for part in _parts(value):
                self._reach(part)
        elif is_a(value, types.ModuleType) or is_a(value, torch.Tensor):
            self.named.append(value)
        elif kind in _CONTAINERS:
            self.is_state = True
            for held in [*value, *dict.values(value)] if is_a(value, dict) else value:
                self._reach(held)
        elif is_a(value, type):
            self._read_class(value)
        elif kind is LruCache:
            self._refuse("names a cache, which Dynamo looks into")
        elif not is_a(value, C_CALLABLES):
            self._read_object(value)

    def _read_function(self, f: Any) -> None:
        held = [v for cell in f.__closure__ or () for v in gc.get_referents(cell)]
        held += [*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]
        if kind_of(f.__code__) != ENTER or owner_of_file(f.__code__.co_filename) is Owner.PYTHON:
            if any(type(v) is Function and kind_of(v.__code__) == ENTER for v in held):
                self._refuse(f"calls {f.__qualname__}, which calls code of yours")
            return
        if vars(f):
            self._refuse(f"names {f.__qualname__}, a function with attributes")
        self.rec.deep(f, "a branch")
        self.names |= names_in(f.__code__)
        for value in held:
            self._reach(value)
        self._read_space(f.__globals__)
        self._read_space(vars(builtins))
        self.named.append(f)

    def _read_space(self, space: dict[str, Any]) -> None:
        rec = self.rec
        rec.root(space)
        for name in sorted(self.names & space.keys()):
            held = space[name]
            given = rec.item(space, name, held)
            if not rec.fix(given, held):
                rec.deep(given, "a branch", 1)
                self._reach(held)

    def _read_object(self, value: Any) -> None:
        """All that an object holds, and the code of its class."""
        if is_a(value, enum.Enum):
            if not vars(value).keys() <= _OF_MEMBERS:
                self._refuse(f"names {value}, which has attributes")
            if self.rec.namespace(value, vars(value)) is not None:
                self.rec.touch(vars(value))
        self.rec.deep(value, "a branch", 1)
        self.is_state |= not _is_torchs(value)
        self._read_class(type(value))
        for _, held in attributes_inside(value):
            self._reach(held)

    def _read_class(self, cls: type) -> None:
        self.named.append(cls)
        for base in cls.__mro__:
            if is_immutable(base) or owner_of(base) is Owner.TORCH or id(base) in self.classes:
                continue
            self.classes[id(base)] = base
            if type(base) not in (type, abc.ABCMeta, enum.EnumMeta):
                self._refuse(f"names the class {base.__qualname__}, which has a metaclass")
            if owner_of_name(base.__module__) is Owner.PYTHON:
                continue
            self.rec.class_dict(base)
            for member in list(vars(base).values()):
                self._read_member(base, member)

    def _read_member(self, cls: type, member: Any) -> None:
        kind = type(member)
        if kind in (property, staticmethod, classmethod):
            for name in ("fget", "fset", "fdel") if kind is property else ("__func__",):
                self._reach(self.rec.step(member, "inner", name, getattr(member, name)))
        elif hasattr(kind, "__get__") and kind is not Function and not is_immutable(kind):
            self._refuse(f"names a descriptor of the class {cls.__qualname__}")
        elif not is_a(member, type):
            self.rec.deep(member, "a branch", 1)
            self._reach(member)

    def _read_named(self, value: Any) -> None:
        """What has the names that the code has by now."""
        if type(value) is Function:
            self._read_space(value.__globals__)
        elif is_a(value, types.ModuleType):
            self._read_module(value)
        elif is_a(value, torch.Tensor):
            given = self.rec.give(value)
            own = vars(self.rec.real(value))
            for name in sorted(self.names | own.keys()):
                held = self.rec.step(given, "attr", name, own.get(name, MISSING))
                if held is not MISSING:
                    self.rec._reached(held, own[name], "a branch", 1)
                    self._reach(own[name])
        elif owner_of(value) is Owner.TORCH and not issubclass(value, torch.Tensor):
            for name in sorted(self.names):  # it is not read whole
                held = self.rec.lookup(value, name)
                if held is not MISSING:
                    self.rec.deep(held, "a branch", 1)

    def _read_module(self, module: types.ModuleType) -> None:
        """Of torch nothing, of Python's own modules no state but atoms."""
        name = module.__name__
        if owner_of_name(name) is Owner.TORCH:
            return
        if "__getattr__" in vars(module):
            self._refuse(f"names the module {name}, which has a __getattr__")
        if owner_of_name(name) is Owner.PYTHON:
            for inner in sorted(self.names & vars(module).keys()):
                held = vars(module)[inner]
                if type(held) not in ATOMS and not callable(held):
                    self._refuse(f"reads {name}.{inner}")
        self._read_space(vars(module))

    def _refuse(self, what: str) -> None:
        f = _function_of(self.branch)
        path = user_line() if f is None else f"{f.__code__.co_filename}:{f.__code__.co_firstlineno}"
        self.rec.refuse(
            UnsupportedError(
                f"a branch of a higher order operator {what}",
                code="state-in-branch",
                path=path,
                fix="pass what it reads as an operand",
            )
        )


def _parts(value: Any) -> Iterator[Any]:
    """What a method or a partial holds."""
    if type(value) is Method:
        yield from (value.__func__, value.__self__)
    else:
        yield from (value.func, *value.args, *value.keywords.values())


def _is_torchs(value: Any) -> bool:
    """An object of torch's, which no code of the user's is in."""
    return owner_of(type(value)) is Owner.TORCH and not is_a(value, torch.nn.Module)


def _function_of(f: Any) -> Any:
    """The function of Python's in a method or a partial; None if there is none."""
    while f is not None and type(f) is not Function:
        f = f.func if is_a(f, Partial) else getattr(f, "__func__", None)
    return f


calls.with_branches = with_branches
