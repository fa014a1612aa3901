"""Functions that Dynamo looks at, those given to higher order operators: all that they may read is
read as a whole.

Nobody sees what such a function does, so what it names is compared with all that is in it. What
cannot be read that way (a class or an object with code of its own that hides what it holds, a cache
of C code) sends the call to eager mode.
"""

from __future__ import annotations

import abc
import collections
import enum
import gc
import sys
import types
from typing import Any

import torch

from ..errors import NeedsEager
from ..subclass.attributes import namespace_of
from . import calls, net
from .boundary import ENTER, is_of_library, is_stdlib_name, kind_of, module_root
from .kinds import C_CALLABLES, Function, Method, Partial, is_immutable
from .recorder import user_line
from .values import ATOMS, factory_of, is_a


def with_branches(rec: Any, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A higher order operator: Dynamo looks at the functions that it is given, which are read with
    all that they name."""
    for value in (*args, *kwargs.values()):
        calls.read_argument(rec, value)
        if type(value) in (Function, Method, Partial):
            read_code(rec, value)
            _check_seen(rec, value, value, set())
            _check_branch(rec, value)
        elif is_a(value, torch.nn.Module):
            rec.deep(value, "a branch")
            _check_seen(rec, value, value, set())
        elif (
            calls.is_torchs(value)
            and not is_a(value, torch.Tensor)
            and rec.place_of(value) is not None
        ):
            rec.deep(value, "a branch")
    given, named = tuple(map(rec.mapped, args)), {name: rec.mapped(v) for name, v in kwargs.items()}
    profile = sys.getprofile()
    sys.setprofile(None)
    try:
        return rec.give(f(*given, **named))
    finally:
        sys.setprofile(profile)


#: code of branches that Dynamo has looked at, and that reads Python state
_branches: set[types.CodeType] = set()


def _check_branch(rec: Any, f: Any) -> None:
    """Dynamo keeps what it has made of the code of a branch, also where Python state has changed
    since.

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
    """Reads the code of functions that a branch may reach through this object: their names are read
    like its own.

    Raises:
        NeedsEager: code of the user's is reached by something else than its name, or C code that
            keeps values.
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
        if _is_entered(value) and not is_of_library(value.__code__.co_filename):
            read_code(rec, value)
        for held in _named_by(value) if _is_entered(value) else _held_by(value):
            _check_seen(rec, branch, held, seen)
    elif kind in (Method, Partial):
        parts = (
            (value.func, *value.args, *value.keywords.values())
            if kind is Partial
            else (value.__func__, value.__self__)
        )
        for held in parts:
            _check_seen(rec, branch, held, seen)
    elif kind in (property, staticmethod, classmethod):
        for member in (
            (value.fget, value.fset, value.fdel) if kind is property else (value.__func__,)
        ):
            _check_seen(rec, branch, member, seen)
    elif kind in (list, tuple, set, frozenset, dict, collections.deque, collections.OrderedDict):
        for held in [*value, *dict.values(value)] if is_a(value, dict) else value:
            _check_seen(rec, branch, held, seen)
    elif kind is collections.defaultdict:
        for held in (factory_of(value), *dict.values(value)):
            _check_seen(rec, branch, held, seen)
    elif is_a(value, type):
        _check_class(rec, branch, value, seen)
    elif not is_a(value, C_CALLABLES) and not is_immutable(kind):
        _check_class(rec, branch, kind, seen)
        for held in (namespace_of(value) or {}).values():
            _check_seen(rec, branch, held, seen)
    elif hasattr(value, "cache_clear"):
        _refuse_branch(rec, branch, "a cache, which it looks into")


def _check_class(rec: Any, branch: Any, cls: type, seen: set[int]) -> None:
    if is_immutable(cls) or module_root(cls) == "torch":
        return
    if type(cls) not in (type, abc.ABCMeta):
        _refuse_branch(
            rec, branch, f"the class {cls.__qualname__}, which has a metaclass of its own"
        )
    for base in cls.__mro__:
        if is_immutable(base) or module_root(base) == "torch":
            continue
        for member in list(vars(base).values()):
            kind = type(member)
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
    if f is None:
        return user_line() or ""
    return f"{f.__code__.co_filename}:{f.__code__.co_firstlineno} ({f.__qualname__})"


def _function_of(f: Any) -> Any:
    """The function of Python's in a method or a partial; None if there is none."""
    while f is not None and type(f) is not Function:
        f = f.func if is_a(f, Partial) else getattr(f, "__func__", None)
    return f


def _is_entered(f: Any) -> bool:
    return kind_of(f.__code__) == ENTER


def _held_by(f: Any) -> list[Any]:
    """What a function closes over, and its defaults."""
    held = [value for cell in f.__closure__ or () for value in gc.get_referents(cell)]
    return [*held, *(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]


def _named_by(f: Any) -> list[Any]:
    """What a function holds, and what its code names: globals, and members of modules other than
    Python's and torch's."""
    names = sorted(names_in(f.__code__))
    named = [f.__globals__[name] for name in names if name in f.__globals__]
    spaces = [vars(value) for value in named if is_a(value, types.ModuleType) and _is_state(value)]
    return (
        _held_by(f) + named + [space[name] for space in spaces for name in names if name in space]
    )


def _is_state(value: Any) -> bool:
    """May what a branch names change without its name?"""
    if is_a(value, (torch.Tensor, torch.nn.Parameter, *C_CALLABLES)):
        return False
    if is_a(value, (type, types.ModuleType)):
        return module_root(value) not in ("torch", "builtins") and not is_stdlib_name(
            getattr(value, "__name__", "")
        )
    if type(value) is Function and not _is_entered(
        value
    ):  # torch's, perhaps around one of the user's
        return any(type(held) is Function and _is_entered(held) for held in _held_by(value))
    return True


def names_in(code: types.CodeType) -> set[str]:
    """The names that a code object has, with those of the code in it."""
    names, codes = set[str](), [code]
    for code in codes:
        names.update(code.co_names)
        codes += [c for c in code.co_consts if type(c) is types.CodeType]
    return names


def read_code(rec: Any, f: Any) -> None:
    """All that the code of a function may read: what it closes over, its defaults, the globals that
    it names, as a whole."""
    rec.deep(f, "a branch")
    f = _function_of(f)
    if f is None or id(f.__code__) in rec.walked or kind_of(f.__code__) != ENTER:
        return
    rec.walked.add(id(f.__code__))
    names = names_in(f.__code__)
    rec.root(f.__globals__)
    for name in sorted(names & f.__globals__.keys()):
        net.read_named(rec, f.__globals__, name, names)


calls.with_branches = with_branches
net.read_code = read_code
