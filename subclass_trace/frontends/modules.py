"""Modules that a function uses: their parameters and buffers become inputs of the region.

They are found by `reach`, and among the arguments; tied ones are one input. While a region is captured the traced tensors
stand in their places (`assignments`).
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _torch
from ..runtime.guards import NameGuard, compared_attributes
from ..runtime.held import ABSENT, Same, Slotted, as_held, is_fixed, is_simple
from ..runtime.one_object import Held
from ..subclass.paths import Path
from ..subclass.protocol import Kind, kind_of
from .asked import Asked
from .members import is_users_module
from .reach import Reached, Slot

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


def names_of(reached: Reached) -> list[NameGuard]:
    """Guards of what the function names and what objects hold for it: everything but tensors, which are inputs, and
    Python modules of libraries."""
    return [NameGuard(r.holder, r.key, _held(r), r.path) for r in reached.slots if _is_guarded(r, reached)]


def containers_of(reached: Reached, modules: Iterable[Module]) -> Iterator[Held]:
    """What names, objects and modules hold, for `OneObject`: of what is only moved on, or appended to, the container alone."""
    for row in reached.slots:
        value = row.read()
        other = value is ABSENT or is_simple(value) or is_input(value) or isinstance(row.holder, Asked)
        if not other and value is row.read():
            yield Held(row.holder, row.key, value, alone=not _is_guarded(row, reached))
    for module in modules:
        for name in compared_attributes(module):
            alone = reached.only_adds(name, vars(module)[name])
            if not isinstance(vars(module)[name], torch.Tensor):
                yield Held(vars(module), name, vars(module)[name], alone)


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
    return not reached.only_adds(row.name, value)


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
    return kind_of(type(value)) is not Kind.REFUSED and not _torch.is_fake(value)
