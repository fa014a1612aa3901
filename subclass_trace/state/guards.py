"""Guards of one specialization on Python state: records that can say why they fail. `guard_code` makes them fast.

In: a `Walk`, on the state as it was before the trace. Out: `StateGuards`, which say whether a call finds the same, and where
it finds the inputs of the region.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..subclass.attributes import namespace_of
from .code_names import names_of
from .source import Bag, Call, Holder, Mapping, Names, Source
from .source import Sequence as ListLike
from .values import ATOMS, MISSING, factory_of, is_a, is_told, same, short
from .walk import Walk

#: what reading a place raises that is gone
GONE = (AttributeError, IndexError, KeyError, TypeError, ValueError)


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
        return type(now) is kind and (kind is not float or is_usual(now))


def is_usual(number: float) -> bool:
    """Do the formulas of symbols hold for a float?"""
    return number != 0 and math.isfinite(number)


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
    def holder(self) -> Holder:
        """What holds it."""
        return self.source.holder

    def failed(self, call: Call) -> str | None:
        """Why it does not hold."""
        now = self.source.read(call)
        if alike(now, self.was):
            return None
        if now is MISSING or self.was is MISSING:
            return f"{self.source} is {'gone' if now is MISSING else 'new'}"
        return f"{self.source} was {_text(self.was)}, is {short(now)}"


@dataclass(frozen=True, eq=False)
class Keys:
    """A dict has these keys, in this order."""

    holder: Mapping
    keys: tuple[Any, ...]

    def failed(self, call: Call) -> str | None:
        """Why it does not hold."""
        now = self.holder.base.keys(self.holder.now(call))
        if len(now) != len(self.keys):
            return f"{self.holder.path} had {len(self.keys)} keys, has {len(now)}"
        if all(map(alike, now, self.keys)):
            return None
        return f"the keys of {self.holder.path} were {_few(self.keys)}, are {_few(now)}"


@dataclass(frozen=True, eq=False)
class Factory:
    """A defaultdict makes missing values as before, of which the version of a dict knows nothing."""

    holder: Mapping
    factory: Any

    def failed(self, call: Call) -> str | None:
        """Why it does not hold."""
        same_one = factory_of(self.holder.now(call)) is self.factory
        return None if same_one else f"{self.holder.path} has another default_factory"


@dataclass(frozen=True, eq=False)
class NoNewNames:
    """A namespace got no name that code of the region uses: it would hide another, or be found where there was none."""

    holder: Holder
    absent: frozenset[str]

    def failed(self, call: Call) -> str | None:
        """Why it does not hold."""
        new = [key for key in self.holder.now(call) if key in self.absent]
        return f"{self.holder.text(new[0])} is new" if new else None


@dataclass(frozen=True, eq=False)
class ItemsOf:
    """A list, a deque or a set holds these items."""

    holder: Holder
    kind: Any
    items: list[Any]

    def failed(self, call: Call) -> str | None:
        """Why it does not hold. Equal items take the place of those that are compared by identity, the next time."""
        thing, kind = self.holder.now(call), self.kind
        if type(thing) is not kind or len(thing) != len(self.items):
            was = f"a {kind.__name__} of {len(self.items)}"
            return f"{self.holder.path} was {was}, is a {type(thing).__name__} of {len(thing)}"
        now = list(self.holder.table(thing).values())
        if all(map(operator.is_, now, self.items)):
            return None
        for k, (a, b) in enumerate(zip(now, self.items, strict=True)):
            if not alike(a, b):
                return f"{self.holder.text(k)} was {_text(b)}, is {short(a)}"
            self.items[k] = b if is_a(b, (Like, tuple)) else a
        return None


Guard: TypeAlias = At | Keys | Factory | NoNewNames | ItemsOf


def _text(value: Any) -> str:
    return repr(value) if type(value) is Like else short(value)


def _few(keys: Iterable[Any]) -> str:
    first = [short(key) for key in itertools.islice(keys, 9)]
    return f"[{', '.join(first[:8])}{', ...' if len(first) > 8 else ''}]"


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
        self._by_identity, self._keys, self._symbols = by_identity, frozenset(keys), frozenset(numbers)
        self.walk, self.flat, self.entries = walk, tuple(flat), tuple(entries)
        self.tensors = tuple(s for s in flat if s not in numbers)
        self.positional, self.keywords = len(call[0]), tuple(call[1])
        self.by_holder: dict[Holder, list[Guard]] = {}
        self.each: list[Guard] = []
        parents = {h.parent for h in walk.holders.values()}
        #: tensors reached by name whose attributes are guarded: those of this very tensor
        self._with_attributes = {
            id(h.owner)
            for h in walk.holders.values()
            if h.fixed and (h.guarded or h in parents) and is_a(h.owner, torch.Tensor)
        }
        for holder in (walk.arguments, *walk.holders.values()):
            guards = [] if is_write_only(walk, holder) else list(self._of_holder(holder, call))
            if holder.fixed and isinstance(holder, Mapping):
                self.by_holder[holder] = guards
            else:
                self.each += guards
            if type(holder) is Mapping and is_a(holder.now(call), defaultdict):
                self.each.append(Factory(holder, factory_of(holder.now(call))))
        self.functions = [(f, f.__code__, f.__defaults__) for f in walk.functions]
        self.objects = [(o, type(o), namespace_of(o)) for o in walk.objects]
        self.bases = list(walk.bases)
        #: caches of functions, and how often they were filled: one that was filled less by now was cleared
        self.caches = [(f, f.cache_info().misses) for _, f, calls in walk.caches if f.cache_info()[:2] != calls]
        self.aliases = list(walk.aliases)
        self.moving = [h for h in walk.holders.values() if not h.fixed]
        places: dict[int, list[Source]] = defaultdict(list)
        for source, tensor in walk.tensors:
            places[id(tensor)] += [] if source in places[id(tensor)] else [source]
        self.same_tensors = {first: others for first, *others in places.values()}

    @property
    def all(self) -> Iterator[Guard]:
        """Every guard."""
        yield from self.each
        for guards in self.by_holder.values():
            yield from guards

    def arguments_by_value(self) -> list[Any]:
        """What stands in the arguments and is compared by value."""
        return [g.was for g in self.each if isinstance(g, At) and not g.holder.fixed and type(g.was) is not Like]

    # ------------------------------------------------------------------------------------------ making
    def _of_holder(self, holder: Holder, call: Call) -> Iterable[Guard]:
        thing = holder.now(call)
        if holder.guarded is None or isinstance(holder, (ListLike, Bag)):
            rows = holder.table(thing).items()
            yield ItemsOf(holder, type(thing), [self._known(Source(holder, key), value) for key, value in rows])
            return
        for key in holder.guarded:
            source = Source(holder, key)
            yield At(source, self._known(source, holder.get(thing, key)))
        if type(holder) is Mapping:
            yield Keys(holder, tuple(holder.table(thing)))
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
        constant = source.holder.fixed or type(value) in ATOMS or value is MISSING or not is_told(value)
        return value if constant else Like(type(value))

    # ------------------------------------------------------------------------------------------ why one fails
    def failed(self, call: Call) -> str | None:
        """The first guard on one place that does not hold in a call, as a sentence."""
        if len(call[0]) != self.positional or tuple(call[1]) != self.keywords:
            given = f"{len(call[0])} positional arguments and the keywords {list(call[1])}"
            return f"the call was of {self.positional} and {list(self.keywords)}, is of {given}"
        for guard in self.all:
            try:
                why = guard.failed(call)
            except GONE as error:
                why = f"{guard.holder.path} is gone ({type(error).__name__})"
            if why is not None:
                return why
        return self.other_code()

    def other_code(self) -> str | None:
        """Which function, object or class is another one by its code, class or bases."""
        for function, code, defaults in self.functions:
            if function.__code__ is not code:
                return f"the code of {function.__qualname__} changed"
            if function.__defaults__ is not defaults and not same(function.__defaults__, defaults):
                return f"the defaults of {function.__qualname__} changed"
        for value, kind, space in self.objects:
            if type(value) is not kind or namespace_of(value) is not space:
                return f"a {kind.__qualname__} has another class or __dict__"
        return next((f"the bases of {c.__qualname__} changed" for c, mro in self.bases if c.__mro__ is not mro), None)


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
    for guard in guards.all:
        try:
            if isinstance(guard, At):
                found.update(_numbers_in(guard.source.path, guard.was, guard.source.read(call)))
            elif isinstance(guard, ItemsOf):
                now = guard.holder.table(guard.holder.now(call)).values()
                for k, (item, was) in enumerate(zip(now, guard.items, strict=False)):
                    found.update(_numbers_in(guard.holder.text(k), was, item))
        except GONE:
            continue
    return found


def _numbers_in(path: str, was: Any, now: Any) -> Iterable[str]:
    if type(was) is type(now) and type(was) in (int, float) and not same(was, now):
        yield path
    elif type(was) is tuple and type(now) is tuple and len(was) == len(now):
        for k, (a, b) in enumerate(zip(was, now, strict=True)):
            yield from _numbers_in(f"{path}[{k}]", a, b)
