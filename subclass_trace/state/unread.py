"""What stands in the user's objects and no code of the region can read: a history of losses, the number of an epoch.

An object is walked as a whole, since code that is entered later may name any of its attributes. When everything has run, those
that no code has named are known, and a change of them, or of what they alone lead to, makes no other trace.

A name counts wherever it was used, and so does each text that could be one; but torch's code knows of modules alone. Code that
computes names (``getattr``, ``vars``, ``copy``) may read all; that of libraries does so with objects of their own, so that only
the user's is asked. Objects of classes that another library than torch has a part in are compared as a whole.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import dis
import functools
import inspect
import itertools
import operator
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any, Generic

import torch

from .code_names import COMPUTED, OF_GLOBALS, SILENT, names_of
from .entering import is_users
from .source import Holder, Names, Source
from .values import is_a
from .walk import Walk

#: what reads attributes by names that it computes, or those of any object
_READERS = (
    *(getattr, hasattr, vars, operator.attrgetter, object.__getattribute__, copy.copy, copy.deepcopy),
    *(dataclasses.asdict, dataclasses.astuple, dataclasses.fields, dataclasses.replace, inspect.getmembers),
    *(pickle.dumps, pickle.dump),
)
_COMPUTED = COMPUTED | {f.__name__ for f in _READERS} | {"format", "format_map"}
_ONE_OBJECT = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME")
#: attributes that torch reads of modules, where its code says so or not
_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}
#: these have no attributes of their own
_PLAIN_BASES = (object, abc.ABC, Generic)


@functools.lru_cache(None)
def _computes_names(code: CodeType) -> bool:
    """May code read attributes that it does not name? (``case P(k)`` reads those of ``__match_args__``.)"""
    steps = [step for step in dis.get_instructions(code) if step.opname not in SILENT]
    for k, (what, name) in enumerate((step.opname, step.argval) for step in steps):
        if what == "MATCH_CLASS":
            return True
        if what == "LOAD_CONST" or not isinstance(name, str) or name not in _COMPUTED:
            continue
        of_model = what in ("LOAD_ATTR", "LOAD_METHOD") and name in OF_GLOBALS  # ``model.eval()``
        if not of_model and not (name in ("getattr", "hasattr") and _is_followed_by_text(steps[k + 1 :])):
            return True
    return False


def _is_followed_by_text(steps: Sequence[dis.Instruction]) -> bool:
    """``getattr(self.config, "scale")``: after the loads of one object, that of a constant text."""
    rest = itertools.dropwhile(lambda step: step.opname == "LOAD_ATTR", steps[1:])
    return (
        bool(steps)
        and steps[0].opname in _ONE_OBJECT
        and (second := next(rest, None)) is not None
        and (second.opname == "LOAD_CONST" and isinstance(second.argval, str))
    )


def reads_any(walk: Walk) -> bool:
    """Does code that was entered read attributes by names that it computes, of objects of the user's?"""
    places = (place for reader in _READERS for place in walk.paths.get(id(reader), {}).values())
    if walk.getters or not all(map(_is_of_library, places)):  # another name for one
        return True
    return any(is_users(code.co_filename) and _computes_names(code) for code in walk.entered)


def _is_of_library(place: Source | None) -> bool:
    """Is it a global of an installed module's?"""
    if place is None or not isinstance(place.holder, Names) or place.holder.owner is not None:
        return False
    return not is_users(str(place.holder.thing.get("__file__")))


@functools.lru_cache(None)
def _goes_by_names(cls: type) -> bool:
    """Has the user written the class and its bases, but for torch's layers?"""
    return all(base in _PLAIN_BASES or _is_known(base.__module__) for base in cls.__mro__)


def _is_known(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return module == "__main__" or module.startswith("torch.nn.modules.") or (file is not None and is_users(file))


class Unread:
    """See the module's docstring."""

    def __init__(self, walk: Walk) -> None:
        others = [code for code, space in walk.entered.items() if not str(space.get("__name__")).startswith("torch.")]
        self._walk, self._of_objects = walk, frozenset().union(*map(names_of, others))
        self._of_modules = walk.names | _OF_MODULES
        self._live = None if reads_any(walk) else {id(holder) for holder in self._reached()}

    def skips(self, holder: Holder, key: Any = None) -> bool:
        """Is a place (``key`` None: all of a holder) none that code can read?"""
        if self._live is None:
            return False
        return id(holder) not in self._live or (key is not None and self._is_unread(holder, key))

    def _is_unread(self, holder: Holder, key: Any) -> bool:
        if type(holder) is not Names or holder.owner is None or is_a(holder.owner, torch.Tensor):
            return False
        cls: Any = type(holder.owner)
        read = self._of_modules if issubclass(cls, torch.nn.Module) else self._of_objects
        return key not in read and _goes_by_names(cls)

    def _reached(self) -> Iterator[Holder]:
        """The holders that a place leads to which code can read, or no place at all (a global, a closure)."""
        inside, todo = defaultdict[int, list[tuple[Source, Holder]]](list), list[Holder]()
        for holder in (self._walk.arguments, *self._walk.holders.values()):
            owner = holder.owner if isinstance(holder, Names) else None
            by_name = isinstance(holder, Names) and (owner is None or isinstance(owner, (type, FunctionType)))
            places = {} if by_name else self._walk.paths.get(id(holder.thing if owner is None else owner), {})
            if not places or None in places.values():
                todo.append(holder)
            for place in filter(None, places.values()):
                inside[id(place.holder)].append((place, holder))
        seen = {id(holder) for holder in todo}
        while todo:
            holder = todo.pop()
            yield holder
            for place, other in inside[id(holder)]:
                if id(other) not in seen and not self._is_unread(holder, place.key):
                    seen.add(id(other))
                    todo.append(other)
