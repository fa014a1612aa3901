"""Functions that Dynamo looks at, those given to higher order operators: all that they may read is read as a whole.

Nobody sees what such a function does, so what it names is compared with all that is in it. What cannot be read that way
(a class or an object with code of its own that hides what it holds, a cache of C code) sends the call to eager mode.
"""

from __future__ import annotations

import abc
import builtins
import collections
import enum
import gc
import sys
import types
from typing import Any

import torch

from .. import torch_api
from ..errors import NeedsEager
from ..subclass.attributes import attributes_inside
from . import calls, torch_flags
from .boundary import ENTER, is_of_library, is_stdlib_name, kind_of, module_root
from .kinds import C_CALLABLES, Function, Method, Partial, is_immutable
from .values import ATOMS, factory_of, is_a


def with_branches(rec: Any, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A higher order operator: Dynamo looks at the functions that it is given, which are read with all that they name."""
    for value in (*args, *kwargs.values()):
        calls.read_argument(rec, value)
        if type(value) in (Function, Method, Partial):
            read_code(rec, value)
            _check_seen(rec, value, value, set())
            _check_branch(rec, value)
        elif is_a(value, torch.nn.Module) or (
            calls.is_torchs(value) and not is_a(value, torch.Tensor) and rec.place_of(value) is not None
        ):
            rec.deep(value, "a branch")
    given, named = tuple(map(rec.mapped, args)), {name: rec.mapped(v) for name, v in kwargs.items()}
    profile = sys.getprofile()
    sys.setprofile(None)
    try:
        with torch_flags.as_outside(rec, torch_api.FLAGS):
            return rec.give(f(*given, **named))
    finally:
        sys.setprofile(profile)


#: code of branches that Dynamo has looked at, and that reads Python state
_branches: set[types.CodeType] = set()


def _check_branch(rec: Any, f: Any) -> None:
    """Dynamo keeps what it has made of the code of a branch, also where Python state has changed since.

    Raises:
        NeedsEager: it has looked at this code before, which reads such state.
    """
    f = _function_of(f)
    if f is None or not any(map(_is_state, _named_by(f))):
        return
    if f.__code__ in _branches:
        rec.refuse(
            NeedsEager(
                "a branch reads Python state, and Dynamo has traced its code before",
                path=_where(f),
                fix="pass what it reads as an operand",
            )
        )
    _branches.add(f.__code__)


def _check_seen(rec: Any, branch: Any, value: Any, seen: set[int]) -> None:
    """All that a branch may read through this object is read, with the code that it may run.

    Raises:
        NeedsEager: code of the user's is reached by something else than its name, or C code that keeps values.
    """
    if (
        type(value) in ATOMS
        or is_a(value, (torch.Tensor, types.ModuleType, torch.SymInt, enum.Enum))
        or id(value) in seen
    ):
        return
    seen.add(id(value))
    kind = type(value)
    if kind is Function:
        if kind_of(value.__code__) == ENTER:
            read_code(rec, value)
            for held in _named_by(value):
                _check_seen(rec, branch, held, seen)
    elif kind in (Method, Partial):
        parts = (
            (value.func, *value.args, *value.keywords.values()) if kind is Partial else (value.__func__, value.__self__)
        )
        for held in parts:
            _check_seen(rec, branch, held, seen)
    elif kind in (property, staticmethod, classmethod):
        for name in ("fget", "fset", "fdel") if kind is property else ("__func__",):
            _check_seen(rec, branch, rec.step(value, "inner", name, getattr(value, name)), seen)
    elif kind in (list, tuple, set, frozenset, dict):
        for held in [*value, *dict.values(value)] if kind is dict else value:
            _check_seen(rec, branch, held, seen)
    elif kind is collections.defaultdict:
        for held in (factory_of(value), *dict.values(value)):
            _check_seen(rec, branch, held, seen)
    elif is_a(value, type):
        _check_class(rec, branch, value, seen)
    elif not is_a(value, C_CALLABLES) and not is_immutable(kind):
        rec.deep(value, "a branch", 1)
        _check_class(rec, branch, kind, seen)
        for _, held in attributes_inside(value):
            _check_seen(rec, branch, held, seen)
    elif hasattr(value, "cache_clear"):
        _refuse_branch(rec, branch, "a cache, which it looks into")


def _check_class(rec: Any, branch: Any, cls: type, seen: set[int]) -> None:
    if is_immutable(cls) or module_root(cls) == "torch":
        return
    if type(cls) not in (type, abc.ABCMeta):
        _refuse_branch(rec, branch, f"the class {cls.__qualname__}, which has a metaclass of its own")
    for base in cls.__mro__:
        if is_immutable(base) or module_root(base) == "torch":
            continue
        is_read = not is_stdlib_name(base.__module__)
        if is_read:
            rec.class_dict(base)
        for member in list(vars(base).values()):
            kind = type(member)
            if is_read and not is_a(member, type):
                rec.deep(member, "a branch", 1)
            if (
                not is_immutable(kind)
                and any(hasattr(kind, hook) for hook in ("__get__", "__set__"))
                and kind is not Function
            ):
                _refuse_branch(rec, branch, f"a descriptor of the class {cls.__qualname__}")
            _check_seen(rec, branch, member, seen)


def _refuse_branch(rec: Any, branch: Any, what: str) -> None:
    rec.refuse(
        NeedsEager(
            f"a branch of a higher order operator names {what}",
            path=_where(_function_of(branch)),
            fix="pass what it reads as an operand",
        )
    )


def _where(f: Any) -> str:
    return f"{f.__code__.co_filename}:{f.__code__.co_firstlineno} ({f.__qualname__})"


def _function_of(f: Any) -> Any:
    """The function of Python's in a method or a partial; None if there is none."""
    while f is not None and type(f) is not Function:
        f = f.func if is_a(f, Partial) else getattr(f, "__func__", None)
    return f


def _named_by(f: Any) -> list[Any]:
    """What a function closes over, and the globals that its code names."""
    held = [value for cell in f.__closure__ or () for value in gc.get_referents(cell)]
    held += [*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]
    spaces = () if is_of_library(f.__code__.co_filename) else (f.__globals__, vars(builtins))
    names = names_in(f.__code__)
    held += [space[name] for space in spaces for name in sorted(names & space.keys())]
    modules = [value for value in held if is_a(value, types.ModuleType)]
    return held + [vars(m)[name] for m in modules for name in calls.named_of_module(m, names)]


def _is_state(value: Any) -> bool:
    """May what a branch names change without its name?"""
    if is_a(value, (torch.Tensor, torch.nn.Parameter, *C_CALLABLES)):
        return False
    if is_a(value, (type, types.ModuleType)):
        return module_root(value) not in ("torch", "builtins") and not is_stdlib_name(getattr(value, "__name__", ""))
    return not (type(value) is Function and kind_of(value.__code__) != ENTER)


def names_in(code: types.CodeType) -> set[str]:
    """The names that a code object has, with those of the code in it."""
    names, codes = set[str](), [code]
    for code in codes:
        names.update(code.co_names)
        codes += [c for c in code.co_consts if type(c) is types.CodeType]
    return names


def read_code(rec: Any, f: Any) -> None:
    """All that the code of a function may read: what it closes over, its defaults, the globals that it names, as a whole."""
    rec.deep(f, "a branch")
    f = _function_of(f)
    if f is None or id(f.__code__) in rec.walked or kind_of(f.__code__) != ENTER:
        return
    rec.walked.add(id(f.__code__))
    calls.read_attributes(rec, f)
    if is_of_library(f.__code__.co_filename):
        return
    names = names_in(f.__code__)
    for space in (f.__globals__, vars(builtins)):
        rec.root(space)
        for name in sorted(names & space.keys()):
            calls.read_named(rec, space, name, names)


calls.with_branches = with_branches
calls.read_code = read_code
