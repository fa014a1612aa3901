"""Numbers and strings that the code of wrapper classes changes: a count of operations, the name of the last one.

A graph runs without that code, so such a change would happen when a region is traced and never again. It is taken back and
refused. What is filled in once (``None`` that becomes a value, a flag, a container) is left: a cache works as in eager.

A class whose author wants a count of traced operations names it: ``__trace_time_state__ = ("total",)``.
"""

from __future__ import annotations

import contextlib
import dis
import types
import weakref
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UnsupportedError
from .user_code import is_library, is_user_code

#: changes of these are refused; bool and None are left out: flags and what is set up once
_VALUES = (int, float, complex, str)
_STORED = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF")
#: so many functions of a class, and of those that they name, are looked at
_MOST = 500
_NOTHING: Any = object()


@dataclass(frozen=True, eq=False)
class Place:
    """Where the code of class ``cls`` assigns: an attribute of ``holder`` (a class or an object), an item of a dict of
    globals, or a closure cell. ``line`` is where it does; ``wanted``: the author wants it changed by traces."""

    cls: type
    holder: Any
    name: str
    line: str
    wanted: bool

    def read(self) -> Any:
        """What it holds; of an attribute that the holder inherits, what it inherits."""
        if isinstance(self.holder, types.CellType):
            try:
                return self.holder.cell_contents
            except ValueError:
                return _NOTHING
        if isinstance(self.holder, dict):
            return self.holder.get(self.name, _NOTHING)
        return getattr(self.holder, self.name, _NOTHING)

    def put(self, value: Any, own: bool) -> None:
        """Give it back ``value``, which the holder has itself where ``own``."""
        if isinstance(self.holder, types.CellType):
            self.holder.cell_contents = value
        elif isinstance(self.holder, dict):
            self.holder[self.name] = value
        elif own:
            setattr(self.holder, self.name, value)
        elif self.name in vars(self.holder):
            delattr(self.holder, self.name)

    @property
    def is_own(self) -> bool:
        """Does the holder have it itself?"""
        return isinstance(self.holder, (dict, types.CellType)) or self.name in vars(self.holder)

    def __str__(self) -> str:
        holder = self.holder
        if isinstance(holder, (dict, types.CellType)):
            return self.name
        return f"{(holder if isinstance(holder, type) else type(holder)).__qualname__}.{self.name}"


@contextlib.contextmanager
def unchanged_by_dispatch() -> Iterator[None]:
    """Inside, traced code runs. Afterwards what wrapper classes assign is as it was.

    Raises:
        UnsupportedError: a number or a string was changed.
    """
    watched = [(place, place.read()) for place in assigned() if not place.wanted]
    before = [(place, value, place.is_own) for place, value in watched if type(value) in _VALUES]
    completed = False
    try:
        yield
        completed = True
    finally:
        changed = [(*row, now) for row in before if not _same(row[1], now := row[0].read())]
        for place, value, own, _ in changed:
            place.put(value, own)
        if completed and changed:
            place, value, _, now = next((row for row in changed if row[2]), changed[0])
            raise _refusal(place, value, now)


def _same(was: Any, now: Any) -> bool:
    return now is was or (type(now) is type(was) and bool(now == was or (now != now and was != was)))


def _refusal(place: Place, was: Any, now: Any) -> UnsupportedError:
    return UnsupportedError(
        f"the code of {place.cls.__qualname__} changes {place}, which happens in each operation in eager and would happen "
        "only while the region is traced",
        path=place.line,
        expected=f"{place} as it was: {was!r}",
        got=repr(now),
        fix="count in the code around the region, or keep the number in a 0-dim inner tensor; if it shall be changed by "
        f'traces alone, say so in the class: __trace_time_state__ = ("{place.name}",)',
    )


# ---------------------------------------------------------------------------------------------- what is assigned
def assigned() -> list[Place]:
    """The places that the code of wrapper classes assigns, of all such classes but those of installed libraries."""
    return [place for cls in _classes() for place in _places(cls)]


def _classes() -> Iterator[type]:
    todo, seen = [torch.Tensor], set[type]()
    while todo:
        for cls in type.__subclasses__(todo.pop()):
            if cls not in seen:
                seen.add(cls)
                todo.append(cls)
                if not is_library(cls):
                    yield cls


@dataclass(frozen=True, eq=False)
class _Stores:
    """What the code of a class stores: attributes (name, line), globals and cells (holder, name, line); and the names of
    globals, among which may be objects that it stores attributes of."""

    attributes: tuple[tuple[str, str], ...]
    others: tuple[tuple[Any, str, str], ...]
    names: tuple[tuple[dict[str, Any], str], ...]


def _places(cls: type) -> Iterator[Place]:
    stores = _STORES_OF.get(cls)
    if stores is None:
        stores = _STORES_OF[cls] = _stores(cls)
    wanted = frozenset(getattr(cls, "__trace_time_state__", ()))
    if stores.attributes:
        named = [table[name] for table, name in stores.names if name in table]
        holders = {id(h): h for h in (*cls.__mro__, *named) if _may_hold(h)}
        rows = [(h, name, line) for name, line in stores.attributes for h in holders.values()]
        for holder, name, line in rows:
            if type(_held(holder, name)) in _VALUES:
                yield Place(cls, holder, name, line, name in wanted)
    for holder, name, line in stores.others:
        yield Place(cls, holder, name, line, name in wanted)


_STORES_OF: MutableMapping[type, _Stores] = weakref.WeakKeyDictionary()


def _may_hold(value: Any) -> bool:
    """A class of the user's, or an object of one."""
    cls = value if isinstance(value, type) else type(value)
    if isinstance(value, (torch.Tensor, types.ModuleType)) or is_library(cls):
        return False
    return isinstance(getattr(value, "__dict__", None), (dict, types.MappingProxyType))


def _stores(cls: type) -> _Stores:
    attributes: dict[str, str] = {}
    others: dict[tuple[int, str], tuple[Any, str, str]] = {}
    names: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    for function in _functions_of(cls):
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
        for code in _codes(function.__code__):
            for name in code.co_names:
                names.setdefault((id(function.__globals__), name), (function.__globals__, name))
            for step in dis.get_instructions(code):
                line = f"{code.co_filename}:{_line_of(code, step.offset)}" if step.opname in _STORED else ""
                if step.opname == "STORE_ATTR":
                    attributes.setdefault(step.argval, line)
                elif step.opname == "STORE_GLOBAL":
                    row = (function.__globals__, step.argval, line)
                    others.setdefault((id(row[0]), step.argval), row)
                elif step.opname == "STORE_DEREF" and step.argval in cells:
                    others.setdefault((id(cells[step.argval]), ""), (cells[step.argval], step.argval, line))
    return _Stores(tuple(attributes.items()), tuple(others.values()), tuple(names.values()))


def _line_of(code: types.CodeType, offset: int) -> int | None:
    return next((line for start, end, line in code.co_lines() if start <= offset < end), None)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def _functions_of(cls: type) -> Iterator[types.FunctionType]:
    """The user's functions that a class has, rules in its tables too, and those that they name."""
    bases = [b for b in cls.__mro__ if not is_library(b)]
    todo: list[Any] = [value for b in bases for value in vars(b).values()]
    seen: set[int] = set()
    while todo and len(seen) < _MOST:
        value = todo.pop()
        if isinstance(value, dict):
            todo += [v for v in value.values() if isinstance(v, types.FunctionType)]
        elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
            todo.append(value.__func__)
        elif isinstance(value, property):
            todo += [value.fget, value.fset]
        elif isinstance(value, types.FunctionType) and id(value) not in seen:
            seen.add(id(value))
            cells = [c.cell_contents for c in value.__closure__ or () if _is_filled(c)]
            todo += [c for c in cells if isinstance(c, types.FunctionType)]
            code = value.__code__
            if is_user_code(code) and "site-packages" not in code.co_filename:
                named = [value.__globals__.get(n) for c in _codes(code) for n in c.co_names]
                todo += [n for n in named if isinstance(n, types.FunctionType) and n.__module__ == value.__module__]
                yield value


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _held(holder: Any, name: str) -> Any:
    """An attribute of an object; None where there is none. A proxy is not asked what it stands for."""
    return None if hasattr(type(holder), "__getattr__") else getattr(holder, name, None)
