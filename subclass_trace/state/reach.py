"""All that can be reached from an object, read as a whole: where C code of unknown meaning is
handed it."""

from __future__ import annotations

import collections
import enum
import gc
import types
import weakref
from typing import Any

import torch

from ..errors import SideEffectError
from ..subclass.attributes import is_heap_type
from ..subclass.values import ATOMS, is_a
from ..torch_api.numbers import PYTHON_CLASSES
from ..torch_api.owners import Owner, owner_of, owner_of_name
from . import kinds
from .containers import Containers
from .kinds import (
    C_CALLABLES,
    CONTAINERS,
    ITERATORS,
    VALUES,
    VIEWS,
    WORLDLY,
    Function,
    Method,
    is_immutable,
)
from .recorder import instance_dict, is_made_by_torch, slot, user_line
from .rows import raw
from .values import factory_of, items_of, pairs_of


class Reach(Containers):
    """A recorder that reads whole objects."""

    def deep(self, value: Any, by: str, depth: int = 0) -> None:
        """Everything that C code of unknown meaning may read of an object is read."""
        kind = type(value)
        if kind in ATOMS or kind in VALUES or is_a(value, enum.Enum) or id(value) in self.walked:
            return
        if is_a(value, kinds.VALUE_BASES) and is_immutable(kind):
            return
        if kind in PYTHON_CLASSES or (self.place_of(value) is None and is_made_by_torch(kind)):
            return
        if is_a(value, torch.Tensor):
            if self.place_of(value) is not None and getattr(value, "__dict__", None) and depth < 40:
                self.walked.add(id(value))
                real = self.real(value)
                for name, held in list(vars(real).items()):
                    self.step(value, "attr", name, held)
            return
        if is_a(value, types.ModuleType):
            if depth == 0 and owner_of_name(value.__name__) is not Owner.TORCH:
                self._refuse_handed(by, "a Python module")
            return
        if is_a(value, type):
            for cls in (*value.__mro__, *type(value).__mro__) if depth == 0 else ():
                if not is_immutable(cls) and owner_of(cls) is not Owner.TORCH:
                    self.class_dict(cls)
            return
        if is_a(value, C_CALLABLES) and self.place_of(value) is None:
            return
        self.walked.add(id(value))
        if depth > 40:
            self._refuse_handed(by, "an object of more than 40 levels")
        if is_a(value, ITERATORS) or kind in WORLDLY or is_a(value, weakref.ref):
            if self.place_of(value) is not None:
                self._refuse_handed(by, f"a {kind.__name__}, which cannot be compared")
            return
        self._deep_parts(value, kind, by, depth + 1)

    def _deep_parts(self, value: Any, kind: type, by: str, depth: int) -> None:
        if is_a(value, (list, tuple, dict, set, frozenset, collections.deque)):
            self.touch(value)
            items = pairs_of(value) if is_a(value, dict) else enumerate(items_of(value))
            for key, held in list(items):
                self._reached(self.given_item(value, key, held), held, by, depth)
            if is_a(value, collections.defaultdict):
                factory = factory_of(value)
                self._reached(
                    self.step(value, "getattr", "default_factory", factory), factory, by, depth
                )
        elif is_a(value, VIEWS) or kind is types.MappingProxyType:
            self.touch(value)
            for held in gc.get_referents(value):
                self.deep(held, by, depth)
            return
        elif kind is Function:
            return self._deep_function(value, by, depth)
        elif kind is Method:
            for name in ("__func__", "__self__"):
                self.step(value, "inner", name, getattr(value, name))
                self.deep(getattr(value, name), by, depth)
            return
        elif is_a(value, kinds.ARRAYS):
            if getattr(getattr(value, "dtype", None), "hasobject", False):
                self._refuse_handed(by, "an array of objects")
            if self.place_of(value) is not None:
                self.arrays.setdefault(id(value), (value, raw(value)))
            return self.row(value, "raw", raw(value))
        self._deep_attributes(value, kind, by, depth)

    def _reached(self, given: Any, held: Any, by: str, depth: int) -> None:
        """On from a part of an object, which C code sees as it is: a number is no symbol there."""
        if not self.fix(given, held):
            self.deep(given, by, depth)

    def _deep_function(self, function: Any, by: str, depth: int) -> None:
        self.cells_of(function)
        defaults = (function.__defaults__, function.__kwdefaults__)
        for name, held in zip(("__defaults__", "__kwdefaults__"), defaults, strict=True):
            if held:
                self.step(function, "inner", name, held)
                self.deep(held, by, depth)
        for cell in function.__closure__ or ():
            for held in gc.get_referents(cell):
                self._reached(self.step(cell, "contents", None, held), held, by, depth)

    def _deep_attributes(self, value: Any, kind: type, by: str, depth: int) -> None:
        space = instance_dict(value)
        if space is not None:
            for name, held in list(space.items()):
                self._reached(self.step(value, "attr", name, held, space), held, by, depth)
            if self.namespace(value, space) is not None:
                self.row(space, "keys", list(self.box(space)))
        for cls in kind.__mro__:
            if not is_immutable(cls) and owner_of(cls) is not Owner.TORCH:
                for name, member in list(cls.__dict__.items()):
                    if name in ("__dict__", "__weakref__", "__doc__", "__module__"):
                        continue
                    self.lookup(kind, name)
                    if type(member) is types.MemberDescriptorType:
                        held = slot(member, value)
                        self._reached(self.step(value, "getattr", name, held), held, by, depth)
        base = next(cls for cls in kind.__mro__ if is_immutable(cls) or not is_heap_type(cls))
        if base is object or self.place_of(value) is None or is_a(value, CONTAINERS):
            return
        if not is_a(value, kinds.SHOWN) and owner_of(base) is not Owner.TORCH:
            self._refuse_handed(by, f"a {kind.__name__}, which cannot be compared")
        for k, held in enumerate(gc.get_referents(value)):
            if held is not kind and held is not space:
                self._reached(self.step(value, "ref", k, held), held, by, depth)

    def _refuse_handed(self, by: str, what: str) -> None:
        self.refuse(
            SideEffectError(
                f"C code ({by}) is given {what}",
                code="c-code-given",
                path=user_line(),
                fix="call it outside of the region, or pass what it gives as an argument",
            )
        )

    def cells_of(self, function: Any) -> None:
        """The cells of a function that was there before have places."""
        place = self.place_of(function)
        if place is None or not function.__closure__:
            return
        for k, (name, cell) in enumerate(
            zip(function.__code__.co_freevars, function.__closure__, strict=True)
        ):
            if id(cell) not in self.known:
                self.known[id(cell)] = (cell, self.child(place, "cell", k, name))
