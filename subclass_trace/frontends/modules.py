"""Modules that a function uses: their parameters and buffers become inputs of the region.

They are found by `reach`, and among the arguments. While a region is captured the traced tensors stand in their places;
tied ones are one input.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from .. import _torch
from ..plan import AssignmentPlan
from ..runtime.guards import NameGuard
from ..runtime.held import ABSENT, LOGS, Same, Slotted, as_held, is_fixed
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from .members import is_users_module
from .reach import Reached, Slot
from .scripted import on_copies

Module = torch.nn.Module


@dataclass(frozen=True, eq=False)
class State:
    """One slot that holds a tensor: ``owner.<table>[name]``; table is "_parameters", "_buffers" or "__dict__"."""

    owner: Module
    table: str
    name: str
    path: Path

    def read(self) -> torch.Tensor | None:
        """The tensor that the slot holds now."""
        found: torch.Tensor | None = getattr(self.owner, self.table)[self.name]
        return found


@dataclass(frozen=True, eq=False)
class Root:
    """A module tree that the function uses: where it is found, and its state slots."""

    module: Module
    path: Path


def roots_of(reached: Reached) -> list[Root]:
    """The module trees that a function reaches, in the order in which they are found."""
    found: dict[int, Root] = {}
    for module, path in reached.modules:
        module = original(module)
        found.setdefault(id(module), Root(module, path))
    return list(found.values())


def original(module: Module) -> Module:
    """The module itself; of a region of a module, what it compiles."""
    return next(module.modules())


def submodules(root: Root) -> list[tuple[Module, Path]]:
    """Each module of the tree once, with its path."""
    out = []
    for name, module in root.module.named_modules():
        path = root.path
        for part in filter(None, name.split(".")):
            path = path.item(int(part)) if part.isdigit() else path.attr(part)
        out.append((module, path))
    return out


def states_of(roots: Sequence[Root]) -> list[State]:
    """All state slots that hold a tensor; a tensor in several slots is listed several times."""
    out = []
    seen: set[int] = set()
    for root in roots:
        for module, path in submodules(root):
            if id(module) in seen:
                continue
            seen.add(id(module))
            for table in ("_parameters", "_buffers"):
                for name, value in getattr(module, table).items():
                    if value is not None:
                        out.append(State(module, table, name, path.attr(name)))
            for name, value in vars(module).items():  # a plain attribute that holds a tensor
                if isinstance(value, torch.Tensor):
                    out.append(State(module, "__dict__", name, path.attr(name)))
    return out


class Assigned(NamedTuple):
    """A tensor that the function assigned to a module while it was traced."""

    owner: Module
    table: str
    name: str
    value: torch.Tensor

    def plan(self, result: int) -> AssignmentPlan:
        """The same with the tensor of a call, which is number ``result``."""
        return AssignmentPlan(self.owner, self.table, self.name, result)


@contextlib.contextmanager
def replaced(
    roots: Sequence[Root], states: Sequence[State], values: Sequence[torch.Tensor]
) -> Iterator[list[Assigned]]:
    """While inside, and on this thread alone, the slots hold ``values``. Captures are serialised.

    Yields a list that is filled on the way out: what the function assigned to slots or plain attributes. The modules
    are left as they were; the run time makes the assignments in each call.
    """
    before = [s.read() for s in states]
    found = list({id(m): (m, path) for root in roots for m, path in submodules(root)}.values())
    modules = [m for m, _ in found]
    overlays = _Overlays([s for s in states if not _torch.is_scripted(s.owner)])
    attributes = [dict(vars(m)) for m in modules]
    assigned: list[Assigned] = []
    with on_copies(found) as copies:
        for s, v in zip(states, values, strict=True):
            if id(s.owner) in copies:
                copies[id(s.owner)].setattr(s.name, v)
        overlays.install([v for s, v in zip(states, values, strict=True) if not _torch.is_scripted(s.owner)])
        try:
            yield assigned
        finally:
            assigned += _settle(states, values, before, overlays, copies)
            for m, old_attributes in zip(modules, attributes, strict=True):
                assigned += _restore_attributes(m, old_attributes)


def _settle(
    states: Sequence[State], values: Sequence[Any], before: Sequence[Any], overlays: _Overlays, copies: dict[int, Any]
) -> list[Assigned]:
    """What the function assigned to slots; the slots are as they were."""
    assigned = []
    try:
        for s, v, old in zip(states, values, before, strict=True):
            twin = copies.get(id(s.owner))
            now = getattr(s.owner, s.table).get(s.name) if twin is None else twin.getattr(s.name)
            if isinstance(now, torch.Tensor) and now is not v and now is not old:
                assigned.append(Assigned(s.owner, s.table, s.name, now))
    finally:
        overlays.remove()
    return assigned


class _Overlay(dict[str, Any]):
    """A module's ``_parameters`` or ``_buffers`` that shows traced tensors to one thread, and the real ones to others."""

    def __init__(self, real: dict[str, Any]) -> None:
        super().__init__(real)
        self.real, self.thread, self.traced = real, threading.get_ident(), dict(real)

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

    def keys(self) -> Any:
        return self._mine().keys()

    def values(self) -> Any:
        return self._mine().values()

    def items(self) -> Any:
        return self._mine().items()


class _Overlays:
    """Puts overlays in the place of the tables of some slots, and the tables back."""

    def __init__(self, states: Sequence[State]) -> None:
        self.states = states
        dicts = [s for s in states if s.table != "__dict__"]
        self.tables = {(id(s.owner), s.table): (s.owner, s.table, getattr(s.owner, s.table)) for s in dicts}
        self.attributes = [(s.owner, s.name, s.read()) for s in states if s.table == "__dict__"]

    def install(self, values: Sequence[torch.Tensor]) -> None:
        overlays = {key: _Overlay(real) for key, (_, _, real) in self.tables.items()}
        for s, v in zip(self.states, values, strict=True):
            if s.table == "__dict__":
                vars(s.owner)[s.name] = v
            else:
                overlays[id(s.owner), s.table].traced[s.name] = v
        for key, (owner, table, _) in self.tables.items():
            vars(owner)[table] = overlays[key]

    def remove(self) -> None:
        for owner, table, real in self.tables.values():
            vars(owner)[table] = real
        for owner, name, value in self.attributes:
            vars(owner)[name] = value


def _restore_attributes(module: Module, before: dict[str, Any]) -> list[Assigned]:
    """Plain attributes that hold another tensor now; they are put back."""
    out = []
    for name, value in list(vars(module).items()):
        if isinstance(value, torch.Tensor) and before.get(name) is not value:
            out.append(Assigned(module, "__dict__", name, value))
            if name in before:
                vars(module)[name] = before[name]
            else:
                del vars(module)[name]
    return out


def names_of(reached: Reached) -> list[NameGuard]:
    """Guards of what the function names and what objects hold for it: everything but tensors, which are inputs, and
    Python modules of libraries."""
    return [NameGuard(r.holder, r.key, _held(r), r.path) for r in reached.slots if _is_guarded(r, reached)]


def _held(row: Slot) -> Any:
    """What it holds, to be compared. A function's defaults are the same tuple, unless something in them can change."""
    unset = row.value is ABSENT or row.value is None  # what is set up while tracing was not there for this trace
    value = row.value if unset else row.read()
    if type(row.holder) is Slotted and (row.key == "__kwdefaults__" or (row.key == "__defaults__" and is_fixed(value))):
        return Same(value)
    return as_held(value)


def _is_guarded(row: Slot, reached: Reached) -> bool:
    value = row.value
    if is_input(value) or (isinstance(value, types.ModuleType) and not is_users_module(value)):
        return False
    return not (row.name in reached.counters and isinstance(value, LOGS))


def named_tensors(reached: Reached) -> list[Slot]:
    """The slots that hold a dense tensor, or a wrapper."""
    return [r for r in reached.slots if is_input(r.value)]


def generators_of(reached: Reached, arguments: Iterable[Any] = ()) -> list[torch.Generator]:
    """Random generators among the arguments and what the function reaches, and one step further in attributes and
    containers. One that hides deeper is met when the region is traced."""
    found: dict[int, torch.Generator] = {}
    todo = [(v, 0) for v in arguments] + [(r.value, 0) for r in reached.slots] + [(v, 0) for v, _ in reached.held]
    todo += [(module, 0) for module, _ in reached.modules]
    while todo:
        value, depth = todo.pop()
        if isinstance(value, torch.Generator):
            found[value._cdata] = value  # type: ignore[attr-defined]
        elif depth < 2 and isinstance(value, (list, tuple)):
            todo += [(v, depth + 1) for v in value[:100]]
        elif depth < 2 and not isinstance(value, (torch.Tensor, type, types.ModuleType, types.FunctionType)):
            inside = value if isinstance(value, dict) else getattr(value, "__dict__", {})
            todo += [(v, depth + 1) for v in list(inside.values())[:100]]
    return list(found.values())


def is_input(value: Any) -> bool:
    """Is it a tensor that may be an input: dense, or a traceable wrapper?"""
    if not isinstance(value, torch.Tensor) or value.layout not in (torch.strided, torch.jagged):
        return False
    dense = type(value) in (torch.Tensor, torch.nn.Parameter)
    return dense or is_traceable(value)
