"""Modules that a function uses: their parameters and buffers become inputs of the region.

They are found as the function itself, its ``self``, in its closure, among the globals it names, and in the arguments.
While a region is captured the traced tensors stand in their places; tied ones are one input.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..runtime.guards import BY_VALUE, NameGuard
from ..subclass.paths import Path

Module = torch.nn.Module


@dataclass(frozen=True, eq=False)
class State:
    """One parameter or buffer slot: ``owner.<table>[name]``, where table is "_parameters" or "_buffers"."""

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


def roots_of(function: Callable[..., Any]) -> list[Root]:
    """The module trees that ``function`` itself reaches, in the order in which they are found."""
    found: list[Root] = []

    def look(value: Any, path: Path) -> None:
        if isinstance(value, Module) and not any(value is r.module for r in found):
            found.append(Root(value, path))

    look(function, Path("self"))
    look(getattr(function, "__self__", None), Path("self"))
    plain = function.__func__ if isinstance(function, types.MethodType) else function
    code = getattr(plain, "__code__", None)
    names = getattr(code, "co_freevars", ())
    for name, cell in zip(names, getattr(plain, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # an empty cell
            look(cell.cell_contents, Path(name))
    for name in getattr(code, "co_names", ()):
        look(getattr(plain, "__globals__", {}).get(name), Path(name))
    return found


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
    return out


class Assigned(NamedTuple):
    """A tensor that the function assigned to a module while it was traced."""

    owner: Module
    table: str
    name: str
    value: torch.Tensor


@contextlib.contextmanager
def replaced(
    roots: Sequence[Root], states: Sequence[State], values: Sequence[torch.Tensor]
) -> Iterator[list[Assigned]]:
    """While inside, the slots hold ``values``. Captures are serialised, so no other capture sees them.

    Yields a list that is filled on the way out: what the function assigned to slots or plain attributes. The modules
    are left as they were; the run time makes the assignments in each call.
    """
    before = [s.read() for s in states]
    modules = list({id(m): m for root in roots for m, _ in submodules(root)}.values())
    attributes = [dict(vars(m)) for m in modules]
    assigned: list[Assigned] = []
    for s, v in zip(states, values, strict=True):
        getattr(s.owner, s.table)[s.name] = v
    try:
        yield assigned
    finally:
        for s, v, old in zip(states, values, before, strict=True):
            now = getattr(s.owner, s.table).get(s.name)
            if isinstance(now, torch.Tensor) and now is not v:
                assigned.append(Assigned(s.owner, s.table, s.name, now))
            getattr(s.owner, s.table)[s.name] = old
        for m, old_attributes in zip(modules, attributes, strict=True):
            assigned += _restore_attributes(m, old_attributes)


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


def names_of(function: Callable[..., Any]) -> list[NameGuard]:
    """The cells and globals of ``function`` that hold a tensor, a module, a number or a string."""
    plain = function.__func__ if isinstance(function, types.MethodType) else function
    code = getattr(plain, "__code__", None)
    kinds = (torch.Tensor, Module, *BY_VALUE)
    found = []
    for cell in getattr(plain, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            if isinstance(cell.cell_contents, kinds):
                found.append(NameGuard(cell, None, cell.cell_contents))
    table = getattr(plain, "__globals__", {})
    for name in getattr(code, "co_names", ()):
        if name in table and isinstance(table[name], kinds):
            found.append(NameGuard(table, name, table[name]))
    return found
