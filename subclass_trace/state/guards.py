"""Guards of one specialization on Python state: records, and the readable reference. `guard_code` makes them fast.

In: a `Walk`, on the state as it was before the trace. Out: `StateGuards`, which say whether a call finds the same, and where
it finds the inputs of the region.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from .code_names import names_of
from .source import Bag, Call, Defaults, Holder, Mapping, Names, Slots, Source
from .source import Sequence as ListLike
from .values import ATOMS, MISSING, factory_of, is_a, is_told, namespace_of, same, short
from .walk import Walk


class _Any:
    """Stands in the items of a list for what is no constant: an input, or a number that is a symbol."""

    def __init__(self, *kinds: type) -> None:
        self.kinds = kinds

    def __repr__(self) -> str:
        return " or ".join(kind.__name__ for kind in self.kinds)


_TENSOR = _Any(torch.Tensor)


@dataclass(frozen=True, eq=False)
class Exact:
    """The same object, or one of the same type that is equal to the letter."""

    source: Source
    value: Any

    def failed(self, call: Call) -> str | None:
        """Why it does not hold."""
        return _differs(self.source, self.source.read(call), self.value, alike)


@dataclass(frozen=True, eq=False)
class Identity:
    """The very object."""

    source: Source
    value: Any

    def failed(self, call: Call) -> str | None:
        """Why it does not hold."""
        return _differs(self.source, self.source.read(call), self.value, lambda a, b: a is b)


@dataclass(frozen=True, eq=False)
class OfType:
    """An object of this class, found anew in each call, or a number that is a symbol."""

    source: Source
    kind: type

    def failed(self, call: Call) -> str | None:
        """Why it does not hold."""
        value = self.source.read(call)
        now = type(value)
        if now is self.kind and (now is not float or is_usual(value)):
            return None
        return f"{self.source} was a {self.kind.__name__}, is {short(value) if now is float else f'a {now.__name__}'}"


def is_usual(number: float) -> bool:
    """Do the formulas of symbols hold for a float? Not for 0.0, infinities and NaN, which are constants."""
    return number != 0 and math.isfinite(number)


@dataclass(frozen=True, eq=False)
class IsTensor:
    """A tensor stands there: it is an input, whose metadata is guarded with the others."""

    source: Source

    def failed(self, call: Call) -> str | None:
        """Why it does not hold."""
        now = self.source.read(call)
        return None if is_a(now, torch.Tensor) else f"{self.source} was a tensor, is {short(now)}"


@dataclass(frozen=True, eq=False)
class Keys:
    """A dict has these keys, in this order."""

    holder: Mapping
    keys: tuple[Any, ...]

    def holds(self, call: Call) -> bool:
        """Without a sentence that says why not."""
        thing = self.holder.now(call)
        now = self.holder.base.keys(thing)
        return dict.__len__(thing) == len(self.keys) and all(map(same_key, now, self.keys))

    def failed(self, call: Call) -> str | None:
        """Why it does not hold."""
        if self.holds(call):
            return None
        thing = self.holder.now(call)
        now = self.holder.base.keys(thing)
        return f"the keys of {self.holder.path} were {_few(self.keys)}, are {_few(now)}"


@dataclass(frozen=True, eq=False)
class Factory:
    """What a ``defaultdict`` makes of keys that it does not have."""

    holder: Mapping
    factory: Any

    def failed(self, call: Call) -> str | None:
        """Why it does not hold."""
        same = factory_of(self.holder.now(call)) is self.factory
        return None if same else f"{self.holder.path} has another default_factory"


@dataclass(frozen=True, eq=False)
class NoNewNames:
    """A namespace got no name that code of the region uses: it would hide another, or be found where there was none."""

    holder: Holder
    known: frozenset[Any]
    absent: frozenset[str]

    def failed(self, call: Call) -> str | None:
        """Why it does not hold."""
        table = self.holder.now(call)
        if table.keys().isdisjoint(self.absent):
            return None
        return f"{self.holder.text(next(key for key in table if key in self.absent))} is new"


@dataclass(frozen=True, eq=False)
class ItemsOf:
    """A list, a deque or a set holds these items: constants by value, others by identity, or a tensor or number (`_Any`)."""

    holder: Holder
    kind: type
    items: list[Any]

    def failed(self, call: Call) -> str | None:
        """Why it does not hold."""
        thing = self.holder.now(call)
        if type(thing) is not self.kind:
            return f"{self.holder.path} was a {self.kind.__name__}, is a {type(thing).__name__}"
        now = list(self.holder.table(thing).values())
        if len(now) != len(self.items):
            return f"{self.holder.path} had {len(self.items)} items, has {len(now)}"
        k = next((k for k, (a, b) in enumerate(zip(now, self.items, strict=True)) if not alike(a, b)), None)
        return None if k is None else f"{self.holder.text(k)} was {_item(self.items[k])}, is {short(now[k])}"


Guard: TypeAlias = Exact | Identity | OfType | IsTensor | Keys | Factory | NoNewNames | ItemsOf


def _item(value: Any) -> str:
    return repr(value) if type(value) is _Any else short(value)


def _few(keys: Iterable[Any]) -> str:
    listed = [short(key) for key in keys]
    return f"[{', '.join(listed[:8])}{', ...' if len(listed) > 8 else ''}]"


def _differs(source: Source, now: Any, was: Any, agree: Callable[[Any, Any], bool]) -> str | None:
    if agree(now, was):
        return None
    if now is MISSING:
        return f"{source} is gone"
    return f"{source} was {short(was)}, is {short(now)}" if was is not MISSING else f"{source} is new"


def same_key(a: Any, b: Any) -> bool:
    """Are two keys one?"""
    return a is b or same(a, b)


def alike(now: Any, was: Any) -> bool:
    """Does a value agree with what a guard keeps of it? (`StateGuards._kept`)"""
    if type(was) is _Any:
        if type(now) is float and not is_usual(now) and float in was.kinds:
            return False
        return any(type(now) is kind or (kind is torch.Tensor and is_a(now, kind)) for kind in was.kinds)
    if is_a(was, tuple) and type(was) not in ATOMS:
        return type(now) is type(was) and len(now) == len(was) and all(map(alike, now, was))
    return now is was or same(now, was)


class StateGuards:
    """The guards of a specialization on the sources of its call.

    Attributes:
        flat: where each flat argument of the region is found: tensors (one place each; `same_tensors` are the others), and
            numbers that are symbols.
        entries: the objects of the arguments that results hand on.
        by_holder: guards of holders that are fixed dicts: they hold for as long as the dict was not written.
        each: guards that every call compares.
    """

    def __init__(
        self,
        walk: Walk,
        call: Call,
        flat: Sequence[Source],
        numbers: Collection[Source] = (),
        entries: Sequence[Source] = (),
        *,
        keys: Collection[Source] = (),
        by_identity: bool = False,
    ) -> None:
        """Args:
        flat: where the flat arguments of the region are found: tensors, and ``numbers`` that are symbols.
        keys: tensors that are constants after all, since the region makes keys of them.
        by_identity: tensors are no inputs, but those of the trace.
        """
        self._by_identity, self._keys = by_identity, frozenset(keys)
        self.walk, self.flat, self.entries = walk, tuple(flat), tuple(entries)
        self.tensors = tuple(s for s in flat if s not in numbers)
        self.positional, self.keywords = len(call[0]), tuple(call[1])
        self.by_holder: dict[Holder, list[Guard]] = {}
        self.each: list[Guard] = []
        self._symbols = frozenset(numbers)
        parents = {h.parent for h in walk.holders.values()}
        #: tensors reached by name whose attributes are guarded: those of this very tensor
        self._with_attributes = {
            id(h.owner)
            for h in walk.holders.values()
            if h.fixed and (h.kept or h in parents) and is_a(h.owner, torch.Tensor)
        }
        for holder in (walk.arguments, *walk.holders.values()):
            if holder is walk.arguments or not is_write_only(walk, holder):
                guards = list(self._of_holder(holder, call))
                if holder.fixed and isinstance(holder, Mapping):
                    self.by_holder[holder] = guards
                else:
                    self.each += guards
                if isinstance(holder, Mapping) and is_a(
                    holder.thing, defaultdict
                ):  # of which the version of the dict knows nothing
                    self.each.append(Factory(holder, factory_of(holder.now(call))))
        self.functions = [(f, f.__code__, f.__defaults__) for f in walk.functions]
        self.objects = [(o, type(o), namespace_of(o)) for o in walk.objects]
        self.bases = list(walk.bases)
        self.caches = [row for row in walk.caches if row.known is not None]
        self.aliases = list(walk.aliases)
        self.moving = [h for h in walk.holders.values() if not h.fixed and not isinstance(h, Slots)]
        self.same_tensors = walk.same_tensors

    def arguments_by_value(self) -> list[Any]:
        """What stands in the arguments and is compared by value."""
        return [g.value for g in self.each if isinstance(g, Exact) and not g.source.holder.fixed]

    # ------------------------------------------------------------------------------------------ making
    def _of_holder(self, holder: Holder, call: Call) -> Iterable[Guard]:
        thing = holder.now(call)
        if holder.kept is None or isinstance(holder, (ListLike, Bag)):
            rows = holder.table(thing).items()
            yield ItemsOf(holder, type(thing), [self._kept(Source(holder, key), value) for key, value in rows])
            return
        if isinstance(holder, Defaults) and all(type(v) in ATOMS for v in holder.table(thing).values()):
            if not any(s.holder is holder for s in self._symbols):
                return  # compared with their function
        for key in holder.kept:
            yield self._of_place(holder, Source(holder, key), holder.get(thing, key))
        if type(holder) is Mapping:
            yield Keys(holder, tuple(holder.table(thing)))
        elif isinstance(holder, Names):
            known = frozenset(holder.table(thing)) | holder.left_out
            yield NoNewNames(holder, known, frozenset(_names_in(self.walk, holder) - known))

    def _of_place(self, holder: Holder, source: Source, value: Any) -> Guard:
        if value is MISSING:
            return Exact(source, MISSING)
        if source in self._symbols:
            return OfType(source, type(value))
        if is_a(value, torch.Tensor) and not self._by_identity and source not in self._keys:
            return Identity(source, value) if id(value) in self._with_attributes else IsTensor(source)
        if type(value) in ATOMS or is_a(value, (tuple, frozenset)):
            return Exact(source, self._kept(source, value))
        if holder.fixed or not is_told(value):
            return Identity(source, value)
        return OfType(source, type(value))

    def _kept(self, source: Source, value: Any) -> Any:
        """What a guard keeps of an item: inputs and what has guards of its own go by their classes."""
        holder = source.holder
        if source in self._symbols:
            return _Any(type(value))
        if is_a(value, torch.Tensor) and not self._by_identity and source not in self._keys:
            return value if id(value) in self._with_attributes else _TENSOR
        if is_a(value, tuple) and type(value) not in ATOMS:
            items = [self._kept(Source(holder, source.key, (*source.items, k)), v) for k, v in enumerate(value)]
            return tuple.__new__(type(value), items)
        if holder.fixed or type(value) in ATOMS or not is_told(value):
            return value
        return _Any(type(value))

    # ------------------------------------------------------------------------------------------ reference
    def is_stale(self) -> bool:
        """Did a cache lose what it held? Then this specialization serves no call any more."""
        return any(row.is_stale() for row in self.caches)

    def failed(self, call: Call) -> str | None:
        """The first guard that does not hold in a call, as a sentence; None if all do."""
        if len(call[0]) != self.positional or tuple(call[1]) != self.keywords:
            given = f"{len(call[0])} positional arguments and the keywords {list(call[1])}"
            return f"the call was of {self.positional} and {list(self.keywords)}, is of {given}"
        for guard in (*self.each, *(g for guards in self.by_holder.values() for g in guards)):
            try:
                why = guard.failed(call)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                holder = guard.source.holder if hasattr(guard, "source") else guard.holder
                why = f"{holder.path} is gone ({type(error).__name__})"
            if why is not None:
                return why
        return self.other_code() or self._other_objects(call)

    def other_code(self) -> str | None:
        """Which function, object or class is another one by its code, class or bases."""
        for function, code, defaults in self.functions:
            if function.__code__ is not code:
                return f"the code of {function.__qualname__} changed"
            if function.__defaults__ is not defaults and not same(function.__defaults__, defaults):
                return f"the defaults of {function.__qualname__} changed"
        for value, kind, space in self.objects:
            if type(value) is not kind:
                return f"the class of a {kind.__qualname__} changed"
            if namespace_of(value) is not space:
                return f"a {kind.__qualname__} has another __dict__"
        for cls, mro in self.bases:
            if cls.__mro__ is not mro:
                return f"the bases of {cls.__qualname__} changed"
        for row in self.caches:
            if row.is_stale():
                return f"the cache of {row.path} changed"
        return None

    def _other_objects(self, call: Call) -> str | None:
        for first, second in self.aliases:
            if first.read(call) is not second.read(call):
                return f"{first} and {second} were one object, are two"
        ids = [id(h.now(call)) for h in self.moving]
        fixed = {number for number, h in self.walk.holders.items() if h.fixed}
        if len(set(ids)) != len(ids) or not fixed.isdisjoint(ids):
            return "two arguments are one object, or one is an object that the region names"
        seen: dict[int, Source] = {}
        for first, others in self.same_tensors.items():
            tensor = first.read(call)
            if id(tensor) in seen:
                return f"{seen[id(tensor)]} and {first} were two tensors, are one"
            seen[id(tensor)] = first
            for other in others:
                if other.read(call) is not tensor:
                    return f"{first} and {other} were one tensor, are two"
        return None


def is_write_only(walk: Walk, holder: Holder) -> bool:
    """Did code that ran only append or add to it, by every name of every path?"""
    if not holder.fixed or not isinstance(holder, (ListLike, Bag)) or walk.computed:
        return False
    if getattr(holder.thing, "maxlen", None) is not None:
        return False
    last = [path.rpartition(".")[2] for path in walk.paths.get(id(holder.thing), {holder.path})]
    rows = [walk.uses.get(name, [1, 0]) for name in last]
    return sum(n for n, _ in rows) > 0 and all(n == adds for n, adds in rows)


def _names_in(walk: Walk, holder: Names) -> set[str]:
    """The names by which code that ran may read from a namespace: of globals that no module leads to, its own code's."""
    if holder.opened or holder.owner is not None:
        return walk.names
    return set().union(*[names_of(code) for code, space in walk.entered.items() if space is holder.thing])


def changed_numbers(guards: StateGuards, call: Call) -> set[str]:
    """The paths of ints and floats that changed since the trace and kept their type: they may become symbols."""
    found: set[str] = set()
    for guard in (*guards.each, *(g for rows in guards.by_holder.values() for g in rows)):
        try:
            if isinstance(guard, Exact):
                found.update(_numbers_in(guard.source.path, guard.value, guard.source.read(call)))
            elif isinstance(guard, ItemsOf):
                now = guard.holder.table(guard.holder.now(call)).values()
                for k, (item, was) in enumerate(zip(now, guard.items, strict=False)):
                    found.update(_numbers_in(guard.holder.text(k), was, item))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            continue  # the place is gone
    return found


def _numbers_in(path: str, was: Any, now: Any) -> Iterable[str]:
    if type(was) is type(now) and type(was) in (int, float) and not same(was, now):
        yield path
    elif type(was) is tuple and type(now) is tuple and len(was) == len(now):
        for k, (a, b) in enumerate(zip(was, now, strict=True)):
            yield from _numbers_in(f"{path}[{k}]", a, b)
