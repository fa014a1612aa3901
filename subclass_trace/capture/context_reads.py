"""Which values of the inputs' contexts a trace reads. What it never reads, the guards leave out.

While traced code runs, the classes of the traced wrappers have a ``__getattribute__`` that notes reads on those very
objects. Wrappers without a value that could be left out cost nothing. See docs/notes/contexts.md.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .. import _torch
from ..plan import MutationPlan
from ..subclass.changeable import may_change
from ..subclass.classes import KeptClass
from ..subclass.components import (
    Copies,
    Steps,
    components,
    copies,
    is_inside,
    parts_of,
    value_at,
    wholes,
    with_components,
)
from ..subclass.context import Lent, StandIn, Unread, copied, has_generated_equality, snapshot
from ..subclass.kept import Held
from ..subclass.kept_objects import KeptObject
from ..subclass.members import mentions
from ..subclass.noted_dict import NotedDict, plain
from ..subclass.noting import Listener, note_all, noting, noting_getattribute
from ..subclass.paths import Path
from ..subclass.protocol import flattens_alike, is_traceable, unflatten_of
from ..subclass.spec import Spec, WrapperSpec
from ..subclass.visit import VALUE
from ..subclass.wholes import Wholes
from .lending import Lending, brought_to
from .object_reads import ObjectReads

Tensor = torch.Tensor
#: these hand out all attributes at once
_EVERYTHING = frozenset({"__dict__", "__getstate__", "__reduce__", "__reduce_ex__", "__dir__", "__weakref__"})
#: torch asks each tensor for these, and a wrapper that was just built has none of them
_ASKED_BY_TORCH = frozenset({"_is_param", "_is_buffer", "_backward_hooks"})
#: reads that go round the class are looked for in its code
_ROUND_THE_CLASS = frozenset({"__getattribute__", "getattr_static"})


@dataclass(eq=False)
class _Watched(Listener):
    """One wrapper among the traced inputs, or inside one of them.

    Attributes:
        input, names: where it is.
        inner: its inner values by name; ``state``: its attributes when it was built.
        copies: what the attributes have of the context. read: values that the trace has read.
    """

    wrapper: Tensor
    spec: WrapperSpec
    input: int
    names: tuple[str, ...]
    inner: dict[str, Any]
    state: dict[str, Any]
    copies: Copies = field(default_factory=lambda: Copies((), {}))
    read: set[Steps] = field(default_factory=set)

    def note(self, name: str) -> None:
        """An attribute is read. A dict tells itself what is read of it."""
        if name in self.copies.attributes:
            if type(self.state[name]) is not NotedDict:
                steps = self.copies.attributes[name]
                self.read |= {steps, *self.copies.items_of(steps)}
        elif name in self.state:
            if not any(self.state[name] is v for v in self.inner.values()):
                self.read_all()
        elif name in _EVERYTHING or (name not in _names_of(type(self.wrapper)) and name not in _ASKED_BY_TORCH):
            self.read_all()

    def read_all(self) -> None:
        """Nothing says what is read."""
        self.read |= set(self.copies.values)

    def keep(self, found: Copies) -> None:
        """It is settled what its attributes are copies of."""
        self.copies, state = found, vars(self.wrapper)
        made: dict[int, NotedDict] = {}  # attributes with one dict keep one
        for name, steps in found.attributes.items():
            if type(state[name]) is dict and found.items_of(steps):
                made.setdefault(id(state[name]), NotedDict(state[name], _Items(self, steps)))
                state[name] = made[id(state[name])]
        self.state = dict(state)

    def build(self, context: Any) -> Tensor:
        """The wrapper with another context, which is its own."""
        spec = self.spec
        return unflatten_of(spec.cls)(dict(self.inner), context, torch.Size(spec.size), tuple(spec.stride))

    def mark(self, steps: Steps) -> Unread:
        """What stands for a value in the guards."""
        rows = self.copies.attributes.items()
        held = [n if s == steps else f"{n}[{steps[-1][1]!r}]" for n, s in rows if s in (steps, steps[:-1])]
        return Unread(type(value_at(self.spec.context, steps)), self.input, self.names, steps, tuple(held))

    def marks(self) -> dict[Steps, Unread]:
        """What was not read so far."""
        unread = {steps for steps in self.copies.values if not self.has_read(steps)}
        inside = {s for s in unread if any(s[:k] in unread for k in range(len(s)))}
        return {steps: self.mark(steps) for steps in self.copies.values if steps in unread - inside}

    def has_read(self, steps: Steps) -> bool:
        """Is this value read, or a part of it?"""
        return any(s[: len(steps)] == steps for s in self.read)

    def wholes(self, unread: Collection[Steps]) -> Wholes | None:
        """What a call has to keep that has other containers and the like; None where nothing hangs on them."""
        steps = [s for s in unread if s in self.copies.wholes]
        others = [s for s in unread if s not in self.copies.wholes]
        attributes = {name: s for name, s in self.copies.attributes.items() if s not in steps}
        if not steps or not attributes:
            return None
        return Wholes(self.input, self.names, steps, others, attributes, self.spec.context)


@dataclass(frozen=True, eq=False)
class _Items:
    """Is told of reads of a dict that a wrapper keeps of its context, at ``steps``."""

    row: _Watched
    steps: Steps

    def note(self, key: tuple[Any, ...]) -> None:
        """The item ``key[0]`` is read, or all of them."""
        found = self.row.copies.items_of(self.steps)
        self.row.read |= {s for s in found if not key or s[len(self.steps)] == ("item", key[0])}

    def unread(self) -> dict[Any, Unread]:
        """What stands for the items that were not read."""
        own = self.row.copies.items_of(self.steps)
        return {s[-1][1]: mark for s, mark in self.row.marks().items() if s in own and s[:-1] == self.steps}


@dataclass(eq=False)
class LateReads:
    """What a backward has read: values that the guards leave out, what the wrappers have copies of, and objects."""

    values: dict[Unread | Lent, Any] = field(default_factory=dict)
    objects: tuple[KeptObject | KeptClass, ...] = ()


class ContextReads:
    """The wrappers of one capture whose contexts hold values that a guard might leave out."""

    def __init__(self) -> None:
        self._rows: list[_Watched] = []
        self.objects = ObjectReads()
        self.lending = Lending({})
        self._left_out: dict[Unread, _Watched] | None = None  # once the guards are made
        self.wrappers: list[tuple[Path, Any]] = []  # the inputs that are some

    # ---------------------------------------------------------------- before the run
    def meet(self, number: int, traced: Any, spec: Spec, path: Path) -> None:
        """An input of the trace. Call it when it was built, before anybody reads it."""
        self.add(number, traced, spec)
        if _holds_what_may_change(spec):
            self.wrappers.append((path, traced))

    def add(self, number: int, traced: Any, spec: Spec, names: tuple[str, ...] = ()) -> None:
        """Look at input ``number`` and the wrappers inside it."""
        if not isinstance(spec, WrapperSpec):
            return
        before = len(self._rows)
        inner = {n: getattr(traced, n, None) for n in spec.names}
        for name, inner_spec in zip(spec.names, spec.inners, strict=True):
            self.add(number, inner[name], inner_spec, (*names, name))
        some = components(spec.context) or wholes(spec.context)
        possible = bool(some) and _is_watchable(spec.cls) and not traced.is_nested
        inside = self._rows[before:]
        if not possible and not inside:
            return
        row = _Watched(traced, spec, number, names, inner, {})
        # What the wrapper takes out of those inside it while it is built is read.
        with _torch.without_tracing(), torch.no_grad(), noting(inside):
            if inside and not _builds(row):
                for part in inside:
                    part.read_all()
            if possible:
                row.keep(_copies(row))
        if row.copies.values:
            self._rows.append(row)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Reads inside, on any thread, are the trace's."""
        with noting(self._rows), self.objects.watching():
            yield

    def copied(self, wrapper: Tensor) -> frozenset[str]:
        """The attributes of a traced wrapper that are copies of values of its context."""
        return frozenset(name for row in self._rows if row.wrapper is wrapper for name in row.copies.attributes)

    # ---------------------------------------------------------------- after it
    def settle(self, mutations: Sequence[MutationPlan], values: Sequence[Tensor], skip: set[int]) -> None:
        """What the region's results and changes hold of the contexts is read as well.

        Args:
            values: live tensors that the forward returns; ``skip``: numbers of those that only give inputs new contents,
                or that are objects out of an input.
        """
        for row in self._rows:
            now = vars(row.wrapper)
            if now.keys() != row.state.keys() or any(now[k] is not v for k, v in row.state.items()):
                row.read_all()
        if any(m.replaced for m in mutations):
            for row in self._rows:
                row.read_all()
        known = {id(row.wrapper): row for row in self._rows}
        for k, value in enumerate(values):
            if known and k not in skip:
                for wrapper in _wrappers(value):
                    if id(wrapper) in known:
                        known[id(wrapper)].read_all()

    def lend(self, lending: Lending, specs: Iterable[Spec]) -> None:
        """What the traced inputs have that results may have too. ``specs``: of these inputs."""
        self.lending = lending
        for value in lending.others(specs):
            note_all(value)

    def hand_out(self, specs: Iterable[Spec | None], attributes: Iterable[Any] = ()) -> None:
        """Results have these contexts and attributes: what they hold is read, but for objects that a call hands on."""

        def look(context: Any) -> None:
            if not isinstance(context, StandIn):
                if has_generated_equality(context):
                    note_all(context)
                for _, part in parts_of(context):
                    look(part)

        for spec in specs:
            if isinstance(spec, WrapperSpec):
                look(spec.context)
                self.hand_out(spec.inners)
        for value in attributes:
            look(value)

    def left_out(self) -> tuple[Unread, ...]:
        """The values that the guards leave out; from the first call on it is settled which."""
        if self._left_out is None:
            self._left_out = {mark: row for row in self._rows for mark in row.marks().values()}
            self._rows = list(dict.fromkeys(self._left_out.values()))
        return tuple(self._left_out)

    def wholes(self) -> tuple[Wholes, ...]:
        """What calls with other containers and the like in contexts have to keep."""
        found = {row: [m.steps for m, r in (self._left_out or {}).items() if r is row] for row in self._rows}
        return tuple(w for row, steps in found.items() if (w := row.wholes(steps)) is not None)

    def leave_out(self, marks: Sequence[Unread]) -> None:
        """The guards were made by an earlier trace of the same function."""
        known = {row.mark(steps): row for row in self._rows for steps in row.copies.values}
        self._left_out = {mark: known[mark] for mark in marks}
        self._rows = list(dict.fromkeys(self._left_out.values()))

    def guarded(self, number: int, spec: Spec) -> Spec:
        """The spec of an input as the guards compare it: with marks in place of the values that they leave out."""
        found: dict[tuple[str, ...], dict[Steps, Any]] = {}
        for mark in self.left_out():
            if mark.input == number:
                found.setdefault(mark.names, {})[mark.steps] = mark
        return self._marked(spec, found, ()) if found else spec

    def _marked(self, spec: Spec, found: Mapping[tuple[str, ...], Mapping[Steps, Any]], names: tuple[str, ...]) -> Spec:
        if not isinstance(spec, WrapperSpec):
            return spec
        inners = tuple(self._marked(s, found, (*names, n)) for n, s in zip(spec.names, spec.inners, strict=True))
        context = with_components(spec.context, found.get(names, {}))
        self.objects.add_copy(spec.context, context)
        return replace(spec, inners=inners, context=context)

    # ---------------------------------------------------------------- when a backward is traced later
    @contextlib.contextmanager
    def at(self, call: Mapping[Any, Any]) -> Iterator[LateReads]:
        """Trace with the contexts of one call.

        Args:
            call: the call's value of each `left_out`.

        Yields what is filled at the end.
        """
        read = LateReads()
        with contextlib.ExitStack() as stack:
            for row in self._rows:
                row.read = set()
                _take_on(row, {m.steps: call[m] for m, r in (self._left_out or {}).items() if r is row})
            self.lending.take_on(call)
            stack.enter_context(self.watching())
            yield stack.enter_context(self.first(read, call))
        read.values |= {m: snapshot(call[m]) for m, row in (self._left_out or {}).items() if row.has_read(m.steps)}

    @contextlib.contextmanager
    def first(self, read: LateReads | None = None, call: Mapping[Any, Any] | None = None) -> Iterator[LateReads]:
        """The same with the contexts of the call that was captured, whose values no guard has left out so far."""
        read, known = read or LateReads(), self.lending.objects
        shared = {m: (call or known)[m] for m in self.lending.shared()}
        others = [(known[m], value) for m, value in shared.items() if value is not known[m]]
        with self.objects.anew() as objects, objects.read_as(others):
            yield read
        keeping = Held(objects.names)
        unread = [m for row in self._rows for m in row.marks().values()]
        outermost = [m for m in self.lending.outermost if not is_inside(m, unread)]
        read.values |= {m: keeping.context(_without_unread(known[m]), VALUE) for m in outermost}
        for m, value in shared.items():
            now = copied(value)
            objects.add_copy(known[m], now)
            read.values[m] = keeping.context(now, VALUE)
        read.objects = keeping.rows(objects.values())


def _without_unread(value: Any) -> Any:
    """A dict of a traced wrapper, with stand-ins for the items that the trace has not read."""
    return plain(value) | value.keys_read.unread() if type(value) is NotedDict else value


def _take_on(row: _Watched, values: Mapping[Steps, Any]) -> None:
    """Give a traced wrapper the attributes that it would have with these values in its context."""
    with _torch.without_tracing(), torch.no_grad():
        fresh = row.build(snapshot(with_components(row.spec.context, values)))
    state = vars(row.wrapper)
    for name, value in vars(fresh).items():
        held = state.get(name)
        if type(held) is NotedDict:
            dict.clear(held)
            dict.update(held, value)
        elif not isinstance(value, Tensor):
            state[name] = brought_to(held, value)  # results have, and `lending` changes, the very objects


def _copies(row: _Watched) -> Copies:
    """What a wrapper keeps of its context."""
    found, spec = _nothing_inside_changes(row), row.spec
    if not spec.has_dynamic_size:
        return found
    # A copy of the outer size or stride is compared with those of the call.
    sizes = {s for s in found.wholes if _may_be_size(value_at(spec.context, s), len(spec.size))}
    return replace(found, values=tuple(s for s in found.values if s not in sizes), wholes=found.wholes - sizes)


def _may_be_size(value: Any, dims: int) -> bool:
    return isinstance(value, tuple) and len(value) == dims and all(type(n) is int for n in value)


def _nothing_inside_changes(row: _Watched) -> Copies:
    """A class may leave parts of the context on the inner tensors, where nobody notes that they are read."""
    tensors = [t for t in row.inner.values() if isinstance(t, Tensor)]
    if any(type(t) in _torch.FAKE_TYPES and vars(t).keys() - vars(t.detach()).keys() for t in tensors):
        return Copies((), {})
    inner = [vars(t) for t in tensors]
    before = [dict(state) for state in inner]
    found = copies(row.build, row.wrapper, row.spec.context)
    changed = False
    for now, was in zip(inner, before, strict=True):
        if now.keys() != was.keys() or any(now[name] is not value for name, value in was.items()):
            changed = True
            now.clear()
            now.update(was)
    return Copies((), {}) if changed else found


def _holds_what_may_change(spec: Spec) -> bool:
    return isinstance(spec, WrapperSpec) and (
        may_change(spec.context, True) or any(map(_holds_what_may_change, spec.inners))
    )


def _builds(row: _Watched) -> bool:
    try:
        row.build(snapshot(row.spec.context))
    except Exception:  # an author's code may raise anything
        return False
    return True


def _wrappers(value: Any) -> Iterator[Tensor]:
    if not is_traceable(value):
        return
    yield value
    for name in value.__tensor_flatten__()[0]:
        yield from _wrappers(getattr(value, name))


# ---------------------------------------------------------------------------------------------- classes
@functools.cache
def _is_watchable(cls: type[Tensor]) -> bool:
    """Does every read of an attribute pass through ``cls.__getattribute__``, and is all of its state in ``__dict__``?"""
    if flattens_alike(cls) or _torch.context_shortcut(cls) is not None:
        return False
    for k in cls.__mro__:
        if k in Tensor.__mro__:
            continue
        state = vars(k)
        if "__getattribute__" in state and state["__getattribute__"] is not noting_getattribute:
            return False
        if state.get("__slots__") or any(mentions(v, _ROUND_THE_CLASS) for v in state.values()):
            return False
    return True


@functools.cache
def _names_of(cls: type) -> frozenset[str]:
    """What the class itself provides: methods and properties, whose bodies read attributes in turn."""
    return frozenset(name for k in cls.__mro__ for name in vars(k))
