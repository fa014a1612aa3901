"""Guards of one specialization on Python state, as records. `runtime.state_code` writes the code that compares them.

In: a `Walk`, on the state as it was before the trace. Out: `StateGuards`, with where a call finds the inputs of the region. A
record knows why it failed, once it has.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..subclass.attributes import namespace_of
from .code_names import OF_GLOBALS, names_of
from .kinds import CONTAINERS
from .source import Bag, Call, Cell, Holder, Mapping, Names, Source
from .source import Sequence as ListLike
from .unread import Unread
from .values import ATOMS, MISSING, factory_of, is_a, is_told, same, short
from .walk import Walk

#: what reading a place raises that is gone; an expression that has no value for some sizes (a division by 0) holds for none
GONE = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)


class Like:
    """Stands for what is no constant: an input, a number that is a symbol, an object with guards of its own."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"a {self.kind.__name__}"

    def holds(self, now: Any) -> bool:
        """Is it of the kind? (The formulas of symbols do not hold for 0.0, infinities and NaN, which are constants.)"""
        if self.kind is torch.Tensor:
            return is_a(now, torch.Tensor)
        kind: Any = self.kind
        return type(now) is kind and (kind is not float or (now != 0 and math.isfinite(now)))


def is_input(was: Any) -> bool:
    """Does each call read what stands there, and check it as an input?"""
    return type(was) is Like and was.kind in (torch.Tensor, int, float)


def alike(now: Any, was: Any) -> bool:
    """Does a value agree with what a guard keeps of it (`StateGuards._known`)?"""
    if now is was:
        return True
    if type(was) is Like:
        return was.holds(now)
    if is_a(was, tuple) and type(was) not in ATOMS:
        return type(now) is type(was) and len(now) == len(was) and all(map(alike, now, was))
    return same(now, was)


@dataclass(frozen=True, eq=False)
class At:
    """At a source stands the same object, or one that is `alike`."""

    source: Source
    was: Any

    @property
    def code(self) -> str:
        """What has to hold, as code."""
        kind = type(self.was)
        if kind is Like:
            return f"isinstance({self.source}, {self.was.kind.__qualname__})"
        return (
            f"{self.source} == {short(self.was)}" if kind in ATOMS else f"{self.source} is the same {kind.__qualname__}"
        )

    def why(self, call: Call) -> str:
        """It does not."""
        was, now = _text(self.was), short(self.source.read(call))
        return f"{self.source}: expected {was}, got {'another one' if now == was else now}"


@dataclass(frozen=True, eq=False)
class Contents:
    """A dict has these keys, in this order (and makes missing values as before); or a list, a deque or a set these items."""

    holder: Holder
    kind: type
    items: tuple[Any, ...]
    factory: Any = None
    maxlen: int | None = None  # of a deque

    def holds(self, thing: Any) -> bool:
        """Does it?"""
        now = self._now(thing)
        return (
            type(thing) is self.kind
            and len(now) == len(self.items)
            and factory_of(thing) is self.factory
            and getattr(thing, "maxlen", None) == self.maxlen
            and all(map(alike, now, self.items))
        )

    def _now(self, thing: Any) -> list[Any]:
        return list(self.holder.table(thing) if isinstance(self.holder, Mapping) else self.holder.table(thing).values())

    @property
    def code(self) -> str:
        """What has to hold, as code."""
        return f"[*{self.holder.path}] == {_few(self.items)}"

    def why(self, call: Call) -> str:
        """It does not."""
        now = self._now(self.holder.now(call))
        return f"{self.holder.path}: expected {len(self.items)} items {_few(self.items)}, got {len(now)} {_few(now)}"


@dataclass(frozen=True, eq=False)
class NoNewNames:
    """A namespace got no name that code of the region uses: it would hide another, or be found where there was none."""

    holder: Holder
    absent: frozenset[str]

    @property
    def code(self) -> str:
        """What has to hold, as code."""
        return f"vars({self.holder.path}) hides no name that the region reads"

    def why(self, call: Call) -> str:
        """It did."""
        return f"{self.holder.text(next(key for key in self.holder.now(call) if key in self.absent))} is new"


Guard: TypeAlias = At | Contents | NoNewNames


def _text(value: Any) -> str:
    return repr(value) if type(value) is Like else short(value)


def _few(items: Iterable[Any]) -> str:
    first = [_text(item) for item in itertools.islice(items, 9)]
    return f"[{', '.join(first[:8])}{', ...' if len(first) > 8 else ''}]"


class StateGuards:
    """The guards of a specialization on the sources of its call.

    Attributes:
        flat: where each flat argument of the region is found: tensors (one place each; `same_tensors` are the others), and
            numbers that are symbols.
        by_holder: guards of holders that are fixed dicts: they hold for as long as the dict was not written.
        each: guards that every call compares.
        facts: (expression of a thing, it, what that is, path): what no version of a dict tells.
        moving: holders that each call looks up, but for attributes of tensors: those of two tensors if the tensors are two.
    """

    def __init__(
        self,
        walk: Walk,
        call: Call,
        flat: Sequence[Source],
        numbers: Collection[Source] = (),
        *,
        keys: Collection[Source] = (),
        by_identity: bool = False,
    ) -> None:
        """Args:
        flat: where the flat arguments of the region are found: tensors, and ``numbers`` that are symbols.
        keys: tensors that are constants after all, since the region makes keys of them.
        by_identity: tensors are no inputs, but those of the trace.
        """
        self._by_identity, self._keys, self._symbols = by_identity, frozenset(keys), frozenset(numbers)
        self.walk, self.flat = walk, tuple(flat)
        self.tensors = tuple(s for s in flat if s not in numbers)
        self.positional, self.keywords = len(call[0]), tuple(call[1])
        self.by_holder: dict[Holder, list[Guard]] = {}
        self.each: list[Guard] = []
        parents = {h.place.holder for h in walk.holders.values() if h.place is not None}
        #: tensors reached by name whose attributes are guarded: those of this very tensor
        self._with_attributes = {
            id(h.owner)
            for h in walk.holders.values()
            if h.fixed and (h.guarded or h in parents) and is_a(h.owner, torch.Tensor)
        }
        self._looked_up = {id(h.thing if h.owner is None else h.owner) for h in walk.holders.values() if not h.fixed}
        unread = Unread(walk)
        for holder in (walk.arguments, *walk.holders.values()):
            skipped = unread.skips(holder) or is_write_only(walk, holder)
            guards = [] if skipped else list(self._of_holder(holder, call, unread))
            if holder.fixed and isinstance(holder, Mapping) and not unread.skips(holder):
                self.by_holder[holder] = guards
            else:
                self.each += guards
        self.facts: list[tuple[str, Any, Any, str]] = [
            *[("{}.__code__", f, f.__code__, f"the code of {f.__qualname__}") for f in walk.functions],
            *[("{}.__defaults__", f, f.__defaults__, f"the defaults of {f.__qualname__}") for f in walk.functions],
            *[("type({})", o, type(o), f"the class of a {type(o).__qualname__}") for o in walk.objects],
            *[
                ("namespace({}, '__dict__')", o, space, f"the __dict__ of a {type(o).__qualname__}")
                for o in walk.objects
                if (space := namespace_of(o)) is not None
            ],
            *[("{}.__mro__", cls, mro, f"the bases of {cls.__qualname__}") for cls, mro in walk.bases],
        ]
        for path, f, calls in walk.caches:  # one that was filled less by now was cleared
            if (info := f.cache_info())[:2] != calls:
                self.facts.append(("{}()", functools.partial(_was_never_cleared, f, [info.misses]), True, path))
        for holder in self.by_holder:
            if is_a(holder.thing, defaultdict):
                self.facts.append(("factory_of({})", holder.thing, factory_of(holder.thing), holder.path))
        self.aliases = list(walk.aliases)
        self.moving = [h for h in walk.holders.values() if not h.fixed and not is_a(h.owner, torch.Tensor)]
        places: dict[int, dict[Source, None]] = {}
        for source, tensor in walk.tensors:
            places.setdefault(id(tensor), {})[source] = None
        self.same_tensors = {first: others for first, *others in places.values()}

    @property
    def all(self) -> Iterator[Guard]:
        """Every guard."""
        return itertools.chain(self.each, *self.by_holder.values())

    # ------------------------------------------------------------------------------------------ making
    def _of_holder(self, holder: Holder, call: Call, unread: Unread) -> Iterable[Guard]:
        thing = holder.now(call)
        if holder.guarded is None or isinstance(holder, (ListLike, Bag)):
            rows = holder.table(thing).items()
            yield Contents(
                holder,
                type(thing),
                tuple(self._known(Source(holder, key), value) for key, value in rows),
                maxlen=getattr(thing, "maxlen", None),
            )
            return
        for key in holder.guarded:
            if unread.skips(holder, key):
                continue
            source = Source(holder, key)
            yield At(source, self._known(source, holder.get(thing, key)))
        if type(holder) is Mapping:
            yield Contents(holder, type(thing), tuple(holder.table(thing)), factory_of(thing))
        elif isinstance(holder, Names):
            known = holder.table(thing).keys() | holder.left_out
            if absent := frozenset(_names_in(self.walk, holder) - known):
                yield NoNewNames(holder, absent)

    def _known(self, source: Source, value: Any) -> Any:
        """What a guard keeps of a value: inputs and what has guards of its own go by their classes."""
        if source in self._symbols:
            return Like(type(value))
        if is_a(value, torch.Tensor) and not self._by_identity and source not in self._keys:
            return value if id(value) in self._with_attributes else Like(torch.Tensor)
        if is_a(value, tuple) and type(value) not in ATOMS:
            items = [self._known(Source(source.holder, source.key, (*source.items, k)), v) for k, v in enumerate(value)]
            return tuple.__new__(type(value), items)
        fixed = source.holder.fixed and not (id(value) in self._looked_up and source.path in self.walk.replaced)
        constant = fixed or type(value) in ATOMS or value is MISSING or not is_told(value)
        return value if constant else Like(type(value))


def _was_never_cleared(cached: Any, misses: list[int]) -> bool:
    if misses and cached.cache_info().misses < misses[0]:
        misses.clear()
    return bool(misses)


def is_write_only(walk: Walk, holder: Holder) -> bool:
    """Did code that ran only append or add to it, by every name of every path, or of all paths of the dict that has it?"""
    if not holder.fixed or not isinstance(holder, (ListLike, Bag)):
        return False
    if getattr(holder.thing, "maxlen", None) is not None:
        return False
    paths, use = walk.paths.get(id(holder.thing), {holder.path: None}), "append"
    place = walk.known.get(id(holder.thing))
    if place is not None and type(place.holder) in (Mapping, ListLike) and type(place.holder.thing) in CONTAINERS:
        paths, use = walk.paths[id(place.holder.thing)] if len(paths) == 1 else paths, "inside"
    if walk.computed and any(_is_in_reach(walk, source) for source in paths.values()):
        return False
    names = [path.rpartition(".")[2] for path in paths]
    fits = {name: walk.uses[name, use] for name in names}
    if (
        use == "inside" and place is not None and type(place.holder) is Mapping
    ):  # other items are no concern of this one
        for (name, what), count in walk.uses.items():
            if name in fits and what.startswith("item ") and what != f"item {place.key!r}":
                fits[name] += count
    return all(0 < walk.uses[name, "all"] == fits[name] for name in names)


#: names by which code comes to the variables of other code
_REFLECTIVE = frozenset(("__globals__", "__closure__", "cell_contents", "__import__", "f_globals", "f_locals"))


def _is_in_reach(walk: Walk, source: Source | None) -> bool:
    """May code that computes names (``getattr``) read a place? No variable that is closed over, and no global, unless the walk
    has met its module, or code of that asks for ``globals()``."""
    holder = None if source is None else source.holder
    if any(not _REFLECTIVE.isdisjoint(names_of(code)) for code in walk.entered):
        return True
    if type(holder) is not Names or holder.owner is not None:
        return type(holder) is not Cell
    codes = [code for code, space in walk.entered.items() if space is holder.thing]
    met = id(sys.modules.get(holder.thing.get("__name__"))) in walk.known
    return met or any(not OF_GLOBALS.isdisjoint(code.co_names) for code in codes)


def _names_in(walk: Walk, holder: Names) -> set[str]:
    """The names by which code that ran may read from a namespace: of globals that no module leads to, its own code's."""
    if holder.opened or holder.owner is not None:
        return walk.names
    return set().union(*[names_of(code) for code, space in walk.entered.items() if space is holder.thing])


def changed_since(guards: StateGuards, call: Call) -> tuple[set[str], set[str]]:
    """The paths of what changed since the trace and kept its type: numbers, which may become symbols; lists, dicts and objects
    of which another one stands there, which a call may look up."""
    numbers, objects = set[str](), set[str]()
    for guard in guards.all:
        rows = [(guard.source, guard.was)] if isinstance(guard, At) else []
        if isinstance(guard, Contents) and isinstance(guard.holder, ListLike):
            rows = [(Source(guard.holder, k), item) for k, item in enumerate(guard.items)]
        for source, was in rows:
            with contextlib.suppress(*GONE):
                now = source.read(call)
                numbers.update(_numbers_in(source.path, was, now))
                by_hand = is_a(was, (torch.Tensor, torch.nn.Module, tuple, Like))  # these are replaced seldom
                by_hand = by_hand or any(is_a(v, torch.nn.Module) for v in (namespace_of(was) or {}).values())
                if type(was) is type(now) and was is not now and not by_hand and is_told(was):
                    objects.add(source.path)
    return numbers, objects


def _numbers_in(path: str, was: Any, now: Any) -> Iterable[str]:
    if type(was) is type(now) and type(was) in (int, float) and not same(was, now):
        yield path
    elif type(was) is tuple and type(now) is tuple and len(was) == len(now):
        for k, (a, b) in enumerate(zip(was, now, strict=True)):
            yield from _numbers_in(f"{path}[{k}]", a, b)
