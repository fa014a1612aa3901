"""The guards on Python state as one generated function, ``read(args, kwargs)``: the inputs of the region, or None.

The fast path compares the versions of all dicts that decided the trace in one go (60 us for 1,024). Only when one of them was
written since are its named keys compared, and its version is pinned anew. Empty tables of hooks are compared by one ``any()``,
long lists by the pointers of their items. `StateGuards.failed` is the reference; print ``reader.source`` to read the code.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import torch_api
from .guards import (
    Exact,
    Factory,
    Guard,
    Identity,
    IsTensor,
    ItemsOf,
    Keys,
    NoNewNames,
    OfType,
    StateGuards,
    alike,
    is_usual,
)
from .source import Arguments, Bag, Cell, Holder, Items, Mapping, Names, Source, Variable
from .source import Sequence as ListLike
from .values import MISSING, factory_of, is_a

_EXPECTED = "(AttributeError, IndexError, KeyError, TypeError, ValueError)"
_LONG = 32

_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def _items_at(items: list[Any]) -> Any:
    return ctypes.c_void_p.from_address(id(items) + 24).value  # ob_item; tried below


def same_objects(now: list[Any], items: list[Any]) -> bool:
    """Do two lists of one length hold the same objects? 20 us for 100,000 items, 1,400 by ``all(map(is_, ...))``."""
    return not _libc.memcmp(_items_at(now), _items_at(items), 8 * len(items))


_ONE, _TWO = [object(), 1, 2], [object(), 1, 2]
if not same_objects(_ONE, list(_ONE)) or same_objects(_ONE, _TWO):  # another layout of lists

    def same_objects(now: list[Any], items: list[Any]) -> bool:
        """See above."""
        return all(map(operator.is_, now, items))


def same_items(now: list[Any], items: list[Any]) -> bool:
    """Equal items take the place of those that are compared by identity."""
    if not all(map(alike, now, items)):
        return False
    items[:] = now
    return True


def _holds(guard: Guard) -> bool:
    """Does a guard on a fixed dict hold?"""
    return guard.holds(((), {})) if isinstance(guard, Keys) else guard.failed(((), {})) is None


class Reader:
    """The generated function of `StateGuards`, and what it pins.

    Attributes:
        read: ``(args, kwargs)`` -> ``[*flat arguments, *entries]`` in the order of the guards, or None.
        fixed: the tensors at fixed places, as the last call has found them; ``fixed_ids``: their ids.
    """

    def __init__(self, guards: StateGuards) -> None:
        self.guards = guards
        self.dicts = list(guards.by_holder) if torch_api.versions_see_writes() else []
        self.each = [*guards.each]
        if not self.dicts:
            self.each += [guard for rows in guards.by_holder.values() for guard in rows]
        for holder in self.dicts:
            if type(holder) is Names and holder.owner is not None:
                torch_api.own_table(holder.thing)
        self.fixed: list[Any] = []
        self.fixed_ids: set[int] = set()
        self._pinned = set(self.dicts)
        self._fixed_sources = [s for s in guards.tensors if self.is_pinned(s)]
        self._number = {id(h.thing): k for k, h in enumerate(self.dicts)}
        self._vacant: list[Holder] = []
        self._empty: tuple[Any, ...] = ()
        self._full: list[Any] = []
        self._versions: list[int] = []
        self._of_full: list[int] = []
        self._pin()
        self._fetch()
        self._other = self._other_things()
        emitter = _Emitter(self)
        self.source = emitter.emit()
        self.read: Callable[[Any, Any], list[Any] | None] = emitter.build(self.source)

    def is_pinned(self, source: Source) -> bool:
        """Does it hold the same for as long as the version of a dict does not move?"""
        return source.holder in self._pinned

    def _pin(self) -> None:
        """Empty dicts are compared by one ``any()``, the others by version."""
        self._vacant = [h for h in self.dicts if not h.thing]
        self._empty = tuple(h.thing for h in self._vacant)
        self._of_full = [k for k, h in enumerate(self.dicts) if h.thing]
        self._full = [self.dicts[k].thing for k in self._of_full]
        self._versions = list(map(torch_api.dict_version, self._full))

    def _fetch(self) -> None:
        self.fixed[:] = [s.read(((), {})) for s in self._fixed_sources]
        self.fixed_ids.clear()
        self.fixed_ids.update(map(id, self.fixed))

    def _other_things(self) -> Callable[[], bool]:
        """Functions have their code and defaults, objects their class and namespace."""
        functions, namespace = self.guards.functions, object.__getattribute__
        objects = [(o, kind) for o, kind, _ in self.guards.objects]
        spaces = [(o, space) for o, _, space in self.guards.objects if space is not None]

        def hold() -> bool:
            for function, code, defaults in functions:
                if function.__code__ is not code or function.__defaults__ is not defaults:
                    return False
            for thing, kind in objects:
                if type(thing) is not kind:
                    return False
            return all(namespace(thing, "__dict__") is space for thing, space in spaces)

        return hold

    def still_holds(self) -> bool:
        """Do all guards hold, of code that has no arguments?"""
        return self.read((), {}) is not None

    def holds(self) -> bool:
        """The fast check of fixed places."""
        written = any(self._empty) or list(map(torch_api.dict_version, self._full)) != self._versions
        if written and not self._still_hold():
            return False
        return self._other() or self.guards.other_code() is None

    def _still_hold(self) -> bool:
        """Some dicts were written: compare what is named there, and pin their versions anew."""
        now = list(map(torch_api.dict_version, self._full))
        written = [self.dicts[k] for k, a, b in zip(self._of_full, now, self._versions, strict=True) if a != b]
        filled = [h for h in self._vacant if h.thing]
        for holder in (*filled, *written):
            if not all(map(_holds, self.guards.by_holder[holder])):
                return False
        if self._fixed_sources and not self._fixed_pattern():
            return False
        if filled:
            self._pin()
        else:
            self._versions = now
        if self._fixed_sources:
            self._fetch()
        return True

    def _fixed_pattern(self) -> bool:
        """Do the same names hold one tensor as in the trace?"""
        now = [s.read(((), {})) for s in self._fixed_sources]
        if len(set(map(id, now))) != len(now):
            return False
        return all(
            other.read(((), {})) is first.read(((), {}))
            for first, others in self.guards.same_tensors.items()
            for other in others
            if self.is_pinned(first) and self.is_pinned(other)
        )

    def pin_own(self, holders: Sequence[Holder]) -> None:
        """After the delivery of side effects, for dicts in which no key that was written is guarded by value."""
        for holder in holders:
            k = self._number.get(id(holder.thing))
            if k is not None and k in self._of_full:
                self._versions[self._of_full.index(k)] = torch_api.dict_version(holder.thing)
        if self.fixed:
            self._fetch()


class _Emitter:
    """Writes ``read``: moving holders as local names, fixed ones bound."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.guards = reader, reader.guards
        self.env: dict[str, Any] = {
            "MISSING": MISSING,
            "alike": alike,
            "same_items": same_items,
            "Tensor": torch.Tensor,
        }
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.constants: dict[int, str] = {}

    def build(self, source: str) -> Callable[[Any, Any], list[Any] | None]:
        """The function."""
        exec(compile(source, "<guards of Python state>", "exec"), self.env)
        made: Callable[[Any, Any], list[Any] | None] = self.env["read"]
        return made

    def emit(self) -> str:
        """The text."""
        guards = self.guards
        for guard in self.reader.each:
            self._guard(guard)
        for first, second in guards.aliases:
            self._unless(f"{self._read(first)} is {self._read(second)}")
        self._objects()
        found = self._tensors()
        entries = [self._read(s) for s in guards.entries]
        for cls, mro in guards.bases:
            self._unless(f"{self._const(cls)}.__mro__ is {self._const(mro)}")
        for row in guards.caches:
            self._unless(f"not {self._const(row.is_stale)}()")
        head = [f"if len(args) != {guards.positional} or {self._keywords()}: return None"]
        if self.reader.dicts or guards.functions or guards.objects:
            head.append(f"if not {self._const(self.reader.holds)}(): return None")
        flat = [found.get(s) or self._read(s) for s in guards.flat]
        self.lines.append(f"return [{', '.join([*flat, *entries])}]")
        body = "\n".join(f"        {line}" for line in self.lines)
        start = "\n".join(f"    {line}" for line in head)
        return f"def read(args, kwargs):\n{start}\n    try:\n{body}\n    except {_EXPECTED}: return None\n"

    def _keywords(self) -> str:
        known = self.guards.keywords
        return f"tuple(kwargs) != {self._const(known)}" if known else "kwargs"

    def _unless(self, condition: str) -> None:
        self.lines.append(f"if not ({condition}): return None")

    def _const(self, value: Any) -> str:
        name = self.constants.get(id(value))
        if name is None:
            name = self.constants[id(value)] = f"c{len(self.constants)}"
            self.env[name] = value
        return name

    def _name(self, holder: Holder) -> str:
        """A name that has the thing of a holder."""
        if id(holder) not in self.names:
            name = f"h{len(self.names)}"
            if holder.fixed:
                self.env[name] = holder.thing
            elif isinstance(holder, Arguments):
                name = "(args, kwargs)"
            else:
                assert holder.parent is not None
                value = self._read(Source(holder.parent, holder.parent_key))
                name = f"h{len(self.names)}"
                space = f"{self._const(object.__getattribute__)}({value}, '__dict__')"
                self.lines.append(f"{name} = {space if isinstance(holder, Names) else value}")
            self.names[id(holder)] = name
        return self.names[id(holder)]

    def _read(self, source: Source) -> str:
        """An expression for the value at a source; it raises where there is none."""
        holder, key = source.holder, source.key
        known = repr(key) if type(key) in (int, str) else self._const(key)
        if isinstance(holder, Arguments):
            text = f"args[{key}]" if type(key) is int else f"kwargs[{key!r}]"
        elif isinstance(holder, Variable):
            text = f"{self._name(holder)}.get(MISSING)"
        elif isinstance(holder, Cell):
            text = f"{self._name(holder)}.cell_contents"
        elif isinstance(holder, (Mapping, ListLike, Items)):
            base: Any = tuple if isinstance(holder, Items) else holder.base
            plain = type(holder.thing) in (dict, list, tuple)
            name = self._name(holder)
            text = f"{name}[{known}]" if plain else f"{self._const(base.__getitem__)}({name}, {known})"
        else:
            text = f"{self._const(holder.get)}({self._name(holder)}, {known})"
        return text + "".join(f"[{k}]" for k in source.items)

    def _guard(self, guard: Guard) -> None:
        if isinstance(guard, ItemsOf):
            self._items(guard)
        elif isinstance(guard, Keys):
            same = f"[*{self._name(guard.holder)}] == {self._const(list(guard.keys))}"
            self._unless(f"{same} or {self._const(guard.failed)}((args, kwargs)) is None")
        elif isinstance(guard, Factory):
            factory = f"{self._const(factory_of)}({self._name(guard.holder)})"
            self._unless(f"{factory} is {self._const(guard.factory)}")
        elif isinstance(guard, NoNewNames):
            known = self._name(guard.holder)
            same = f"len({known}) == {len(guard.known)} or {known}.keys() <= {self._const(guard.known)}"
            self._unless(f"{same} or {self._const(guard.failed)}((args, kwargs)) is None")
        elif isinstance(guard, IsTensor):
            self._unless(f"isinstance({self._read(guard.source)}, Tensor)")
        elif isinstance(guard, OfType):
            usual = f" and {self._const(is_usual)}({self._read(guard.source)})" if guard.kind is float else ""
            self._unless(f"type({self._read(guard.source)}) is {self._const(guard.kind)}{usual}")
        elif guard.value is MISSING:
            holder = guard.source.holder
            read = f"{self._const(holder.get)}({self._name(holder)}, {self._const(guard.source.key)})"
            self._unless(f"{read} is MISSING")
        else:
            value, known = self._read(guard.source), self._const(guard.value)
            if isinstance(guard, Identity):
                self._unless(f"{value} is {known}")
            else:
                assert isinstance(guard, Exact)
                self.lines.append(f"v = {value}")
                self._unless(f"v is {known} or alike(v, {known})")

    def _items(self, guard: ItemsOf) -> None:
        name, items = self._name(guard.holder), self._const(guard.items)
        sized = f"type({name}) is {self._const(guard.kind)} and len({name}) == {len(guard.items)}"
        loose = any(isinstance(item, tuple) or type(item).__name__ == "_Any" for item in guard.items)
        if loose or isinstance(guard.holder, Bag):
            compared = f"{self._const(guard.failed)}((args, kwargs)) is None"
            if loose and guard.kind in (list, tuple):
                compared = (
                    " and ".join(self._item(f"{name}[{k}]", item) for k, item in enumerate(guard.items)) or "True"
                )
        elif guard.kind is list and len(guard.items) > _LONG:
            compared = f"({self._const(same_objects)}({name}, {items}) or same_items({name}, {items}))"
        else:
            listed = name if guard.kind is list else f"[*{name}]"
            compared = f"(all(map({self._const(operator.is_)}, {name}, {items})) or same_items({listed}, {items}))"
        self._unless(f"{sized} and {compared}")

    def _item(self, text: str, item: Any) -> str:
        kinds = getattr(item, "kinds", None)
        if kinds == (torch.Tensor,):
            return f"isinstance({text}, Tensor)"
        if kinds is not None:
            usual = f" and {self._const(is_usual)}({text})" if kinds[0] is float else ""
            return f"type({text}) is {self._const(kinds[0])}{usual}"
        return f"({text} is {self._const(item)} or alike({text}, {self._const(item)}))"

    def _objects(self) -> None:
        """No two objects of the arguments are one, and none is an object that the region names."""
        # Attributes of tensors are those of two tensors if the tensors are two, which `_tensors` asks.
        moving = [self._name(h) for h in self.guards.moving if not is_a(h.owner, torch.Tensor)]
        if not moving:
            return
        fixed = frozenset(number for number, h in self.guards.walk.holders.items() if h.fixed)
        listed = ", ".join(f"id({name})" for name in moving)
        self.lines.append(f"ids = {{{listed}}}")
        self._unless(f"len(ids) == {len(moving)} and {self._const(fixed)}.isdisjoint(ids)")

    def _tensors(self) -> dict[Source, str]:
        """Local names of the inputs, each another tensor than the rest."""
        found: dict[Source, str] = {}
        moving = []
        fixed = [k for k, s in enumerate(self.guards.tensors) if self.reader.is_pinned(s)]
        names = {k: f"t{k}" for k in range(len(self.guards.tensors))}
        if fixed:
            self.lines.append(f"{''.join(names[k] + ', ' for k in fixed)} = {self._const(self.reader.fixed)}")
        for k, source in enumerate(self.guards.tensors):
            if not self.reader.is_pinned(source):
                self.lines.append(f"{names[k]} = {self._read(source)}")
                moving.append(names[k])
            found[source] = names[k]
        if moving:
            apart = f"{self._const(self.reader.fixed_ids)}.isdisjoint(({''.join(f'id({n}), ' for n in moving)}))"
            ids = ", ".join(f"id({n})" for n in moving)
            alone = "" if len(moving) == 1 else f"len({{{ids}}}) == {len(moving)}"
            if len(moving) == 2:
                alone = " is not ".join(moving)
            conditions = [c for c in (alone, apart if fixed else "") if c]
            if conditions:
                self._unless(" and ".join(conditions))
        for first, others in self.guards.same_tensors.items():
            for other in others:
                if not (self.reader.is_pinned(first) and self.reader.is_pinned(other)):
                    self._unless(f"{self._read(other)} is {self._read(first)}")
        return found
