"""What a function does to the slots of modules while it is traced: tensors, children, and what it deletes.

The parameters, buffers and tensors in attributes of the modules are traced ones meanwhile. Afterwards the modules are as
they were, whatever happened; the run time does in each call what the function did.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.compiler import is_dynamo_compiling

from .. import _torch
from ..errors import UnsupportedError
from ..plan import AppendPlan, AssignmentPlan, RemovalPlan
from ..runtime.held import ABSENT
from ..subclass.flatten import leaves_of
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from .modules import Module, Root, State, submodules
from .scripted import on_copies

_TABLES = ("_parameters", "_buffers")
_NOT_SAVED = "_non_persistent_buffers_set"


class Assigned(NamedTuple):
    """``owner.<table>[name] = value``: a tensor, None or a child; or anything else in the place of a tensor."""

    owner: Module
    table: str
    name: str
    value: Any

    def plan(self, result: int) -> AssignmentPlan:
        """The same with the value of a call, which is number ``result``."""
        return AssignmentPlan(self.owner, self.table, self.name, result)


class Removed(NamedTuple):
    """``del owner.<table>[name]``; or ``owner``, a set, loses ``name``, where ``table`` is None."""

    owner: Any
    table: str | None
    name: str
    value: None = None

    def plan(self, result: int) -> RemovalPlan:
        """The same in a call."""
        return RemovalPlan(self.owner, self.table, self.name, result)


class Marked(NamedTuple):
    """``owner.add(value)``: a name of a buffer that is no part of ``state_dict()``."""

    owner: set[str]
    value: str

    def plan(self, result: int) -> AppendPlan:
        """The same in a call."""
        return AppendPlan(self.owner, result)


ModuleChange: TypeAlias = Assigned | Removed | Marked


@contextlib.contextmanager
def replaced(
    roots: Sequence[Root], states: Sequence[State], values: Sequence[torch.Tensor]
) -> Iterator[list[ModuleChange]]:
    """While inside, and on this thread alone, the slots hold ``values``. Captures are serialised.

    Yields a list that is filled on the way out: what the function did to slots of modules.

    Raises:
        UnsupportedError: the function made a Parameter, or a module with tensors.
    """
    found = {id(m): (m, path) for root in reversed(roots) for m, path in reversed(submodules(root))}
    modules = list(reversed(found.values()))  # the first path of each, an outer module before those inside
    changes: list[ModuleChange] = []
    with on_copies(modules) as copies:
        traced: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
        scripted = []
        for state, value in zip(states, values, strict=True):
            if id(state.owner) in copies:
                copies[id(state.owner)].setattr(state.name, value)
                scripted.append((state, value))
            else:
                traced.setdefault((id(state.owner), state.table), {})[state.name] = value
        scenes = [_Scene(m, path, traced) for m, path in modules if not _torch.is_scripted(m)]
        try:
            yield changes
        finally:
            rows = [(scene.path, row) for scene in scenes for row in scene.leave()]
            changes += [row for _, row in rows]
            changes += _of_scripted(scripted, copies)
    for path, row in rows:
        _check(row, path, values)


def _of_scripted(slots: Sequence[tuple[State, torch.Tensor]], copies: Mapping[int, Any]) -> Iterator[Assigned]:
    for state, value in slots:
        now = copies[id(state.owner)].getattr(state.name)
        if isinstance(now, torch.Tensor) and now is not value and now is not state.read():
            yield Assigned(state.owner, state.table, state.name, now)


class _Overlay(dict[str, Any]):
    """A module's ``_parameters`` or ``_buffers`` that shows traced tensors to one thread, and the real ones to others."""

    def __init__(self, real: dict[str, Any], traced: Mapping[str, Any]) -> None:
        super().__init__(real.items())
        self.real, self.thread, self.traced = real, threading.get_ident(), {**dict(real.items()), **traced}

    def _mine(self) -> dict[str, Any]:
        if is_dynamo_compiling() or threading.get_ident() == self.thread:
            return self.traced
        return self.real

    def __getitem__(self, key: str) -> Any:
        return self._mine()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._mine()[key] = value

    def __delitem__(self, key: str) -> None:
        del self._mine()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._mine()

    def __iter__(self) -> Iterator[str]:
        return iter(self._mine())

    def __len__(self) -> int:
        return len(self._mine())

    def get(self, key: str, default: Any = None) -> Any:
        return self._mine().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        return self._mine().pop(key, *default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        return self._mine().setdefault(key, default)

    def update(self, *rows: Any, **named: Any) -> None:
        self._mine().update(*rows, **named)

    def copy(self) -> dict[str, Any]:
        return self._mine().copy()

    def keys(self) -> Any:
        return self._mine().keys()

    def values(self) -> Any:
        return self._mine().values()

    def items(self) -> Any:
        return self._mine().items()


class _Scene:
    """One module as it was, while traced tensors stand in its slots."""

    def __init__(
        self, module: Module, path: Path, traced: Mapping[tuple[int, str], Mapping[str, torch.Tensor]]
    ) -> None:
        self.module, self.path = module, path
        held = vars(module)
        self.attributes = dict(held)
        self.children, self.not_saved = dict(module._modules.items()), set(held.get(_NOT_SAVED, ()))
        self.shown: dict[str, dict[str, Any]] = {}
        for table in _TABLES:
            held[table] = overlay = _Overlay(held[table], traced.get((id(module), table), {}))
            self.shown[table] = dict(overlay.traced)
        self.plain = traced.get((id(module), "__dict__"), {})
        held.update(self.plain)

    def leave(self) -> list[ModuleChange]:
        """Make the module what it was; what was done to it."""
        held, before, rows = vars(self.module), self.attributes, list[ModuleChange]()
        for table in _TABLES:
            now = held.get(table, {})
            held[table] = real = before[table]
            rows += self._changes(table, self.shown[table], now.traced if isinstance(now, _Overlay) else now, real)
        children = held["_modules"] = before["_modules"]
        rows += self._changes("_modules", self.children, dict(children.items()), self.children)
        if any(row.table == "_modules" for row in rows if not isinstance(row, Marked)):
            children.clear()
            children.update(self.children)
        rows += self._marks(held)
        own = {k: v for k, v in held.items() if k in self.plain or _is_new_tensor(v, before.get(k, ABSENT))}
        was = {k: self.plain.get(k, before.get(k, ABSENT)) for k in {**own, **self.plain}}
        rows += self._changes("__dict__", was, own, before)
        for name in was:
            if name in before:
                held[name] = before[name]
            else:
                del held[name]
        return rows

    def _changes(
        self, table: str, was: Mapping[str, Any], now: Mapping[str, Any], real: Mapping[str, Any]
    ) -> Iterator[ModuleChange]:
        for name in was:
            if name not in now:
                yield Removed(self.module, table, name)
        for name, value in now.items():
            if value is not was.get(name, ABSENT) and value is not real.get(name, ABSENT):
                yield Assigned(self.module, table, name, value)

    def _marks(self, held: dict[str, Any]) -> Iterator[ModuleChange]:
        if _NOT_SAVED not in self.attributes:
            return
        marked = held[_NOT_SAVED] = self.attributes[_NOT_SAVED]
        added, gone = sorted(marked - self.not_saved), sorted(self.not_saved - marked)
        marked.difference_update(added)
        marked.update(gone)
        for name in gone:
            yield Removed(marked, None, name)
        for name in added:
            yield Marked(marked, name)


def _is_new_tensor(value: Any, before: Any) -> bool:
    return isinstance(value, torch.Tensor) and value is not before


def _check(row: ModuleChange, path: Path, traced: Sequence[torch.Tensor]) -> None:
    """Refuse what no call could make anew: autograd leaves that a module keeps."""
    if not isinstance(row, Assigned):
        return
    where = path.item(int(row.name)) if row.name.isdigit() else path.attr(row.name)
    if isinstance(row.value, Module):
        if any(map(_holds_fakes, row.value.modules())):
            raise _lazy(where, f"a module {type(row.value).__qualname__} with tensors", "module")
    elif row.table == "_parameters" and _is_made_here(row.value, traced):
        raise _lazy(where, f"a Parameter of shape {tuple(row.value.shape)}", "Parameter")


def _is_made_here(value: Any, traced: Sequence[torch.Tensor]) -> bool:
    if not isinstance(value, torch.Tensor) or any(value is t for t in traced):
        return False
    return any(map(_torch.is_fake, leaves_of(value) if is_traceable(value) else [value]))


def _holds_fakes(module: Module) -> bool:
    tables = (module._parameters, module._buffers, vars(module))
    return any(_is_made_here(v, ()) for table in tables for v in table.values())


def _lazy(where: Path, got: str, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"the region makes a {what} and assigns it to a module",
        path=where,
        expected="parameters and modules that are there before the region is called",
        got=got,
        fix="make it in __init__, or call the module once before it is compiled",
    )
