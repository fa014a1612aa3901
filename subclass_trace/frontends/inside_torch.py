"""Users' code that code of torch calls, and users' objects that stand inside of torch's: a transform of a distribution.

Code of torch is not walked (`reach`), so nothing says by name what it reads.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

import torch

from .. import _torch
from ..capture.user_code import is_foreign
from ..runtime.held import is_simple
from .members import CONTAINERS, SKIPPED, functions_in, is_own, is_plain_object

#: bases of which torch calls other methods in other ways (`forward`, what autograd calls), or that every class has
_OTHER_BASES = frozenset({*torch.nn.Module.__mro__, *torch.nn.Parameter.__mro__, *torch.autograd.Function.__mro__})
#: what these call they call outside of regions, or it decides nothing: they load data, are told of steps, record
_OF_NO_REGION = (
    "torch.distributed.",
    "torch._",
    "torch.optim",
    "torch.utils.",
    "torch.profiler",
    "torch.jit",
    "torch.fx.experimental",
)
#: packages whose classes call no members of classes that are derived from them, or their own alone: `st.WrapperTensor`
_NOT_CALLING = ("typing", "abc", "subclass_trace")
_MOST, _DEEPEST = 500, 6


def overrides_of(cls: type) -> frozenset[str]:
    """The members that classes of the user's define in the place of those of a library's class, whose code finds them."""
    foreign = [b for b in cls.__mro__ if is_foreign(b) and b not in _OTHER_BASES]
    theirs = [b for b in foreign if b.__module__.partition(".")[0] not in _NOT_CALLING]
    names = {name for base in theirs for name in vars(base) if not name.startswith("__")}
    mine = [vars(base) for base in cls.__mro__ if names and not is_foreign(base)]
    return frozenset(n for table in mine for n in names & table.keys() if _is_member(table[n])) - SKIPPED


def _is_member(held: Any) -> bool:
    return is_simple(held) or any(True for _ in functions_in(held))


def held_for_torch(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object by which code of torch finds what decides a trace: of those that its classes in torch name,
    the ones that lead to the user's objects and functions; and all of a distribution, which is little else than parameters.
    Of other objects torch changes some in each call."""
    yield from _torch.traced_functions(value)
    if is_of_torch(value):
        names, whole = _named_by_torch(type(value))
        for name, held in list(vars(value).items()):
            if name in names and (whole or _leads_to_users(held, [_MOST])):
                yield name, held


def is_of_torch(value: Any) -> bool:
    """Is it an object that code of torch computes with: a distribution, saved-tensor hooks, a mask with a function?"""
    if isinstance(value, (torch.nn.Module, torch.Tensor, type)) or type(getattr(value, "__dict__", None)) is not dict:
        return False
    modules = [base.__module__ for base in type(value).__mro__]
    return any(m.startswith("torch.") for m in modules) and not any(m.startswith(_OF_NO_REGION) for m in modules)


def _named_by_torch(cls: type) -> tuple[frozenset[str], bool]:
    """The names in what classes of torch define for a class, and whether it is one of distributions, or of parts of them."""
    if cls not in _NAMED:
        theirs = [base for base in cls.__mro__ if base.__module__.startswith("torch.")]
        codes = [f.__code__ for base in theirs for held in vars(base).values() for f in functions_in(held)]
        names = frozenset(n for code in codes for n in _names(code)) - _torch.KEPT_BY_DISTRIBUTIONS
        _NAMED[cls] = names, any(base.__module__.startswith("torch.distributions") for base in theirs)
    return _NAMED[cls]


_NAMED: MutableMapping[type, tuple[frozenset[str], bool]] = weakref.WeakKeyDictionary()


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _leads_to_users(value: Any, room: list[int], depth: int = 0) -> bool:
    """``room``: how many more objects are looked at, in one list that all levels share."""
    room[0] -= 1
    if isinstance(value, (torch.Tensor, type, types.ModuleType)) or is_simple(value) or room[0] < 0 or depth > _DEEPEST:
        return False
    if isinstance(value, types.FunctionType):
        return is_own(value.__code__)
    if isinstance(value, torch.nn.Module) or is_plain_object(value):
        return True
    return any(_leads_to_users(v, room, depth + 1) for v in _inside(value))


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, CONTAINERS):
        return list(value.values() if isinstance(value, dict) else value)
    return list(vars(value).values()) if is_of_torch(value) else ()
