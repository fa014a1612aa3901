"""What user code that runs in backwards reaches, and what it does to that: the judge of `capture.late_code`."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import _torch
from ..capture.late_code import Judged, LateState
from ..errors import UnsupportedError
from ..runtime.guards import NameGuard
from ..runtime.held import Same, Slotted, is_simple
from ..subclass.arguments import is_iterator
from ..subclass.paths import Path
from .asked import Asked
from .members import CONTAINERS, is_installed, is_own, is_plain_object, is_users_module
from .modules import is_input, names_of, roots_of, submodules
from .python_state import held_by, put_back, writable
from .reach import Reached, Slot, reach

#: functions that do something outside of Python's objects, or anything at all
_OUTSIDE = frozenset({"print", "open", "input", "exec", "eval", "breakpoint", "__import__"})
#: containers that are deeper inside of others are not looked into for iterators
_DEEPEST = 4
#: Python modules whose functions only compute
_COMPUTE = frozenset(
    {"torch", "math", "cmath", "operator", "functools", "itertools", "typing", "collections", "warnings"}
)
_COMPUTE |= {
    "contextlib",
    "dataclasses",
    "enum",
    "numbers",
    "types",
    "abc",
    "copy",
    "builtins",
    "_operator",
    "subclass_trace",
}


def _as_it_was() -> None:
    """Nothing is put back."""


@dataclass(eq=False)
class _Seen:
    changed: bool = False
    inside: bool = False
    put_back: Callable[[], None] = _as_it_was


def _content(held: Any) -> Any:
    """What a container holds."""
    return held.content()


@dataclass(frozen=True, eq=False)
class _Watched:
    """What code reaches. ``handed``: copies of containers among the arguments, see `judge`; ``inside``: what it reaches and
    is not put back, see `capture.late_code.Judge`."""

    reached: Reached
    handed: Sequence[Any] = ()
    inside: Reached | None = None

    @contextlib.contextmanager
    def watch(self) -> Iterator[_Seen]:
        """Note whether what the code reaches is changed inside, and put it back."""
        seen, found = _Seen(), list[Path | None]()
        rows = [(held, _content(held)) for held in held_by(self.reached)]
        slots = [(row, row.read()) for row in writable(self.reached)]
        own = [] if self.inside is None else [(held, _content(held)) for held in held_by(self.inside)]
        own_slots = [] if self.inside is None else [(row, row.read()) for row in writable(self.inside)]
        try:
            yield seen
        finally:
            seen.inside = any(not _same(_content(held), was) for held, was in own)
            seen.inside |= any(row.read() is not was for row, was in own_slots)
            seen.put_back = functools.partial(_put_back, own, own_slots)
            for row, was in slots:
                if row.read() is not was:
                    seen.changed = True
                    put_back(row, was)
            for held, was in rows:
                if not _same(_content(held), was):
                    seen.changed = True
                    held.restore(was)
                    found += [held.path for c in self.handed if c is held.value]
        if found:
            raise _lent(found[0])


@dataclass(frozen=True, eq=False)
class _Judged(_Watched):
    """See `capture.late_code.Judged`."""

    names: Sequence[NameGuard] = ()
    foreign: bool = False

    @property
    def uncompared(self) -> bool:
        """Does it reach modules?"""
        return bool(self.reached.modules)


def late_state(reached: Reached, handed: Sequence[Any], copies: bool) -> LateState:
    """How the late code of a function is looked at. ``handed``: see `judge`; ``copies``: see `LateState`.

    Where hooks on autograd nodes may be registered, which nobody can look at, whole backwards are watched.
    """
    return LateState(
        functools.partial(judge, handed, _ids_of(reached, handed)),
        copies,
        _Watched(reached).watch if reached.hooks_on_nodes else None,
    )


def _put_back(held: Sequence[tuple[Any, Any]], slots: Sequence[tuple[Slot, Any]]) -> None:
    for row, was in slots:
        put_back(row, was)
    for one, content in held:
        one.restore(content)


def _same(now: Any, was: Any) -> bool:
    """Do two copies of a container hold the very same objects?"""
    if len(now) != len(was):
        return False
    if isinstance(was, dict):
        return all(a is b and now[a] is was[b] for a, b in zip(now, was, strict=True))
    if isinstance(was, set):
        return set(map(id, now)) == set(map(id, was))
    return all(a is b for a, b in zip(now, was, strict=True))


def _lent(path: Path | None) -> UnsupportedError:
    return UnsupportedError(
        "user code in a backward changes a container among the arguments of the call",
        path=path,
        expected="containers that it finds without the arguments: in a global, a closure, an object",
        got="a list, dict or deque that the region was called with",
        fix="put what the code collects into an attribute of an object or a global",
    )


def _ids_of(reached: Reached, handed: Sequence[Any]) -> frozenset[int]:
    """Of what was there before the region ran: places, and what may be changed."""
    held = [value for value, _ in reached.held]
    places = [_owner(row.holder) for row in (*reached.slots, *reached.unbound)]
    tables = [found for v in held if (found := getattr(v, "__dict__", None)) is not None]
    return frozenset(map(id, [*held, *places, *tables, *handed]))


def _owner(holder: Any) -> Any:
    return holder.value if isinstance(holder, Slotted) else holder


def _parted(reached: Reached, before: Collection[int]) -> tuple[Reached, Reached]:
    """What was there before the region ran, and what it has made. ``before``: see `_ids_of`."""
    known = [isinstance(row.holder, Asked) or id(_owner(row.holder)) in before for row in reached.slots]
    made = replace(
        reached,
        slots=tuple(row for row, old in zip(reached.slots, known, strict=True) if not old),
        held=tuple(row for row in reached.held if id(row[0]) not in before),
        modules=(),
        unbound=(),
    )
    slots = tuple(row for row, old in zip(reached.slots, known, strict=True) if old)
    return replace(reached, slots=slots, held=tuple(row for row in reached.held if id(row[0]) in before)), made


def judge(
    handed: Sequence[Any], before: Collection[int], function: Callable[..., Any], more: Sequence[Any], inside: bool
) -> Judged | None:
    """What is known of code that runs in backwards, and is given ``more`` beside tensors. ``inside``: see
    `capture.late_code.Judge`.

    ``handed``: copies of containers among the arguments, which the region's function was given in their places.
    ``before``: ids of what was there before the region ran.

    Raises:
        UnsupportedError: it may change one of them.
    """
    function = _undecorated(function)
    inner = _innermost(function)
    if not isinstance(inner, types.FunctionType):
        inner = vars(type(inner)).get("__call__")  # an object that can be called
    code = getattr(inner, "__code__", None)
    if code is None or not is_own(code) or is_installed(code):
        _check_wrapped(inner)
        return None
    others = [(v, Path("given").item(k)) for k, v in enumerate(more) if not _is_plain(v)]
    reached = reach(function, others)
    foreign = _is_foreign(reached, [v for v, _ in others])
    if foreign and (lent := [path for v, path in reached.held if any(v is c for c in handed)]):
        raise _lent(lent[0])
    outside, made = _parted(reached, before) if inside else (reached, None)
    names = [*names_of(outside), *_tensors_and_numbers(outside)]
    return _Judged(outside, handed, made, names, foreign)


def _tensors_and_numbers(reached: Reached) -> Iterator[NameGuard]:
    """Guards of the tensors that code names, of those in modules that it reaches, and of numbers beside them."""
    for row in reached.slots:
        if is_input(row.value):
            yield NameGuard(row.holder, row.key, Same(row.value), row.path)
    for module, path in (row for root in roots_of(reached) for row in submodules(root)):
        for table in (module._parameters, module._buffers, vars(module)):
            for name, value in table.items():
                if isinstance(value, torch.Tensor) or is_simple(value):
                    yield NameGuard(
                        table, name, Same(value) if isinstance(value, torch.Tensor) else value, path.attr(name)
                    )


def _check_wrapped(function: Any) -> None:
    """Refuse a user's function that torch has wrapped: what torch keeps for it is the trace's own."""
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            inner = cell.cell_contents
            if isinstance(inner, types.FunctionType) and is_own(inner.__code__) and not is_installed(inner.__code__):
                raise UnsupportedError(
                    f"the region registers a hook through {getattr(function, '__qualname__', function)} of torch",
                    path=inner.__qualname__,
                    expected="hooks on single tensors or modules",
                    got="such as torch.autograd.graph.register_multi_grad_hook",
                    fix="register it outside of the region",
                )


#: with decorators for backwards: ``once_differentiable``, ``custom_bwd``
_DECORATORS = frozenset({"torch.autograd.function", "torch.amp.autocast_mode", "torch.cuda.amp.autocast_mode"})


def _undecorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the user wrote, in the place of what torch has made of it: by a decorator, or of a ``torch.library`` operation."""
    written = _torch.written_backward(function)
    if written is not None:
        return written
    while isinstance(function, types.FunctionType) and function.__globals__.get("__name__") in _DECORATORS:
        inner = getattr(function, "__wrapped__", None)
        if inner is None:
            break
        function = inner
    return function


def _innermost(function: Any) -> Any:
    while isinstance(function, (functools.partial, types.MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return function


def _is_plain(value: Any) -> bool:
    """Can nothing change in it?"""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return is_simple(value) or isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_foreign(reached: Reached, given: Sequence[Any]) -> bool:
    """May the code do what could not be put back: print, log, write files, call objects of libraries?"""
    if any(row.key in _OUTSIDE for row in reached.unbound) or any(_gives_once(row.value) for row in reached.slots):
        return True
    return any(map(_acts_outside, [*(row.value for row in reached.slots if _is_named(row)), *given]))


def _is_named(row: Slot) -> bool:
    """Is it something that the code names, not what is said of a function or class?"""
    return not str(row.key).startswith("__")


def _gives_once(value: Any, depth: int = 0) -> bool:
    """Is it an iterator, which gives each item once, or a method of one, or a container of such?"""
    if isinstance(value, CONTAINERS):
        items = value.values() if isinstance(value, dict) else value
        return depth < _DEEPEST and any(_gives_once(v, depth + 1) for v in items)
    return is_iterator(getattr(value, "__self__", None) if isinstance(value, types.MethodWrapperType) else value)


def _acts_outside(value: Any) -> bool:
    if _gives_once(value):
        return True
    if (
        is_simple(value)
        or isinstance(value, (torch.Tensor, torch.nn.Module, type, *CONTAINERS))
        or is_plain_object(value)
    ):
        return False
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] not in _COMPUTE and not is_users_module(value)
    if isinstance(value, types.FunctionType):
        known = is_own(value.__code__) or is_installed(value.__code__)
        return not known and value.__module__.partition(".")[0] not in _COMPUTE
    if isinstance(value, types.BuiltinFunctionType):  # of a module or a class, or a method bound to an object
        owner: Any = value.__self__
        if isinstance(owner, types.ModuleType):
            return owner.__name__.partition(".")[0] not in _COMPUTE
        return not (owner is None or isinstance(owner, type))  # torch's own have no owner
    if isinstance(value, types.MethodType):
        return _acts_outside(value.__func__) or _acts_outside(value.__self__)
    return type(value).__module__.partition(".")[0] not in _COMPUTE
