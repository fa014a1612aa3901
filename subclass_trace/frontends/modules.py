"""Modules that a function uses: their parameters and buffers become inputs of the region.

They are found as the function itself, its ``self``, in its closure, among the globals it names, and in the arguments.
While a region is captured the traced tensors stand in their places; tied ones are one input.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

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


@contextlib.contextmanager
def replaced(states: Sequence[State], values: Sequence[torch.Tensor]) -> Iterator[None]:
    """While inside, the slots hold ``values``. Captures are serialised, so no other capture sees them.

    A slot that the function itself assigned is left as the function left it, if it holds a real tensor then.
    """
    before = [s.read() for s in states]
    for s, v in zip(states, values, strict=True):
        getattr(s.owner, s.table)[s.name] = v
    try:
        yield
    finally:
        for s, v in zip(states, before, strict=True):
            getattr(s.owner, s.table)[s.name] = v
