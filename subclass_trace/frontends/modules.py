"""Modules that a function uses: their parameters and buffers become inputs of the region.

They are found as the function itself, its ``self``, in its closure, among the globals it names, and in the arguments.
While a region is captured the traced tensors stand in their places; tied ones are one input.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .. import _torch
from ..runtime.guards import BY_VALUE, NameGuard
from ..subclass.flatten import leaves_of
from ..subclass.paths import Path
from ..subclass.protocol import Kind, is_traceable, kind_of

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


@contextlib.contextmanager
def replaced(
    roots: Sequence[Root], states: Sequence[State], values: Sequence[torch.Tensor]
) -> Iterator[list[Assigned]]:
    """While inside, and on this thread alone, the slots hold ``values``. Captures are serialised.

    Yields a list that is filled on the way out: what the function assigned to slots or plain attributes. The modules
    are left as they were; the run time makes the assignments in each call.
    """
    before = [s.read() for s in states]
    overlays = _Overlays(states)
    modules = list({id(m): m for root in roots for m, _ in submodules(root)}.values())
    attributes = [dict(vars(m)) for m in modules]
    assigned: list[Assigned] = []
    overlays.install(values)
    try:
        yield assigned
    finally:
        for s, v, old in zip(states, values, before, strict=True):
            now = getattr(s.owner, s.table).get(s.name)
            if isinstance(now, torch.Tensor) and now is not v and now is not old:
                assigned.append(Assigned(s.owner, s.table, s.name, now))
        overlays.remove()
        for m, old_attributes in zip(modules, attributes, strict=True):
            assigned += _restore_attributes(m, old_attributes)


class _Overlay(dict[str, Any]):
    """A module's ``_parameters`` or ``_buffers`` that shows traced tensors to one thread, and the real ones to others."""

    def __init__(self, real: dict[str, Any]) -> None:
        super().__init__(real)
        self.real, self.thread, self.traced = real, threading.get_ident(), dict(real)

    def _mine(self) -> dict[str, Any]:
        return self.traced if threading.get_ident() == self.thread else self.real

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


def leaked(function: Callable[..., Any]) -> str | None:
    """The name of a closure cell or global of ``function`` through which a traced tensor escaped, if there is one."""
    plain = function.__func__ if isinstance(function, types.MethodType) else function
    code = getattr(plain, "__code__", None)
    held: list[tuple[str, Any]] = []
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(plain, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):
            held.append((name, cell.cell_contents))
    table = getattr(plain, "__globals__", {})
    held += [(n, table[n]) for n in getattr(code, "co_names", ()) if n in table]
    held.append(("self", getattr(function, "__self__", None)))
    return next((name for name, value in held if _holds_fake(value, 2)), None)


def _holds_fake(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        if kind_of(type(value)) is Kind.REFUSED:  # its tensors are among its attributes, if anywhere
            return any(map(_torch.is_fake, vars(value).values()))
        return any(map(_torch.is_fake, leaves_of(value)))
    if depth == 0 or isinstance(value, (type, types.ModuleType, types.FunctionType)):
        return False
    items: list[Any] = []
    if isinstance(value, dict):
        items = list(value.values())
    elif isinstance(value, (list, tuple, set)):
        items = list(value)
    elif hasattr(value, "__dict__"):
        items = list(vars(value).values())
    return any(_holds_fake(v, depth - 1) for v in items[:1000])


@dataclass(frozen=True, eq=False)
class NamedTensor:
    """A closure cell (``key`` None) or a global of the function that holds a tensor: an input of the region."""

    holder: Any
    key: str | None
    path: Path

    def read(self) -> Any:
        """What the name is bound to now."""
        return self.holder.cell_contents if self.key is None else self.holder.get(self.key)


def _bound_names(function: Callable[..., Any]) -> Iterator[tuple[Any, str | None, str, Any]]:
    """(holder, key, name, value) for the cells and globals that ``function`` names."""
    plain = function.__func__ if isinstance(function, types.MethodType) else function
    code = getattr(plain, "__code__", None)
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(plain, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # an empty cell
            yield cell, None, name, cell.cell_contents
    table = getattr(plain, "__globals__", {})
    for name in getattr(code, "co_names", ()):
        if name in table:
            yield table, name, name, table[name]


def names_of(function: Callable[..., Any]) -> list[NameGuard]:
    """The cells and globals of ``function`` that hold a module, a number or a string."""
    kinds = (Module, *BY_VALUE)
    return [
        NameGuard(holder, key, value) for holder, key, _, value in _bound_names(function) if isinstance(value, kinds)
    ]


def named_tensors(function: Callable[..., Any]) -> list[NamedTensor]:
    """The cells and globals of ``function`` that hold a dense tensor, or a wrapper."""
    rows = _bound_names(function)
    return [NamedTensor(holder, key, Path(name)) for holder, key, name, value in rows if _is_input(value)]


def generators_of(function: Callable[..., Any], arguments: Iterable[Any] = ()) -> list[torch.Generator]:
    """Random generators among the arguments and what ``function`` names, and one step further in attributes and
    containers. One that hides deeper is met when the region is traced."""
    found: dict[int, torch.Generator] = {}
    todo = [(v, 0) for v in (*arguments, function, getattr(function, "__self__", None))]
    todo += [(row[3], 0) for row in _bound_names(function)]
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


def _is_input(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout not in (torch.strided, torch.jagged):
        return False
    dense = type(value) in (torch.Tensor, torch.nn.Parameter)
    return dense or is_traceable(value)
