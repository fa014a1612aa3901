"""The guards on Python state as one generated function, ``read(args, kwargs)``: the inputs of the region, or None.

The fast path compares the versions of all dicts that decided the trace in one go (60 us for 1,024). Only when one of them was
written since are its named keys compared, and its version is pinned anew. Empty tables of hooks are compared by one ``any()``.
Print ``reader.source`` to read the code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import torch_api
from .guards import GONE, At, Factory, Guard, ItemsOf, Keys, Like, NoNewNames, StateGuards, alike, is_usual
from .source import Arguments, Cell, Holder, Items, Mapping, Names, Source, Variable
from .source import Sequence as ListLike
from .values import ATOMS, MISSING, is_a

_EXPECTED = f"({', '.join(error.__name__ for error in GONE)})"
_NO_CALL: Any = ((), {})


class Reader:
    """The generated function of `StateGuards`, and what it pins.

    Attributes:
        read: ``(args, kwargs)`` -> ``[*flat arguments, *entries]`` in the order of the guards, or None.
        fixed: the tensors at fixed places, as the last call has found them; ``fixed_ids``: their ids.
    """

    def __init__(self, guards: StateGuards) -> None:
        self.guards, self._is_stale = guards, False
        self._dicts = list(guards.by_holder) if torch_api.versions_see_writes() else []
        self.each = [*guards.each] if self._dicts else [*guards.all]
        for holder in self._dicts:
            if type(holder) is Names and holder.owner is not None:
                torch_api.own_table(holder.thing)
        self.fixed: list[Any] = []
        self.fixed_ids: set[int] = set()
        pinned = set(self._dicts)
        self._fixed_sources = [s for s in guards.tensors if s.holder in pinned]
        self.pinned = frozenset(s for s in (*guards.tensors, *self._places()) if s.holder in pinned)
        self._tensor_holders = frozenset(s.holder for s in self.pinned)
        self._pin()
        self._fetch()
        emitter = _Emitter(self)
        self.source = emitter.emit()
        self.read: Callable[[Any, Any], list[Any] | None] = emitter.build(self.source)

    def _places(self) -> list[Source]:
        return [source for others in self.guards.same_tensors.values() for source in others]

    def failed(self, call: Any) -> str | None:
        """The first guard that does not hold in a call, as a sentence; None if all do."""
        why = self.guards.failed(call)
        if why is None and self.read(*call) is None:
            return "other arguments, tensors or objects are one and the same, or a functools.lru_cache was cleared"
        return why

    def still_holds(self) -> bool:
        """Do all guards hold, of code that has no arguments?"""
        return self.read((), {}) is not None

    def holds(self) -> bool:
        """The fast check of fixed places."""
        now = list(map(torch_api.dict_version, self._tables))
        if (any(self._empty) or now != self._versions) and not self._still_hold(now):
            return False
        self._is_stale = self._is_stale or any(f.cache_info().misses < n for f, n in self.guards.caches)
        namespace = object.__getattribute__
        for function, code, defaults in self.guards.functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return self.guards.other_code() is None
        for thing, kind, space in self.guards.objects:
            if type(thing) is not kind or (space is not None and namespace(thing, "__dict__") is not space):
                return False
        return not self._is_stale

    # ------------------------------------------------------------------------------------------ versions
    def _pin(self) -> None:
        """Empty dicts are compared by one ``any()``, the others by version."""
        self._empty = tuple(h.thing for h in self._dicts if not h.thing)
        self._full = [h for h in self._dicts if h.thing]
        self._tables = [h.thing for h in self._full]
        self._place = {h: k for k, h in enumerate(self._full)}
        self._versions = list(map(torch_api.dict_version, self._tables))

    def _fetch(self) -> None:
        self.fixed[:] = [s.read(_NO_CALL) for s in self._fixed_sources]
        self.fixed_ids.clear()
        self.fixed_ids.update(map(id, self.fixed))

    def _still_hold(self, now: list[int]) -> bool:
        """Dicts were written: compare what is named there, and pin their versions anew."""
        written = [h for h, a, b in zip(self._full, now, self._versions, strict=True) if a != b]
        empty = set(map(id, self._empty))
        filled = [h for h in self._dicts if h.thing and id(h.thing) in empty] if any(self._empty) else []
        for holder in (*filled, *written):
            if any(guard.failed(_NO_CALL) is not None for guard in self.guards.by_holder[holder]):
                return False
        if not self._tensor_holders.isdisjoint((*written, *filled)):
            if not self._fixed_pattern():
                return False
            self._fetch()
        if filled:
            self._pin()
        else:
            self._versions = now
        return True

    def written_by_calls(self, effects: Sequence[Any]) -> list[Holder]:
        """The dicts that a call writes where no guard compares what it writes: see `pin_written`."""
        found: dict[Holder, bool] = {}
        for effect in effects:
            holder, key = effect.holder, effect.keys[:1]
            if holder in self.guards.by_holder:
                rows = [g for g in self.guards.by_holder[holder] if isinstance(g, At) and type(g.was) is not Like]
                free = effect.how == "put" and effect.values and key[0] in holder.thing
                found[holder] = bool(free and all(g.source.key != key[0] for g in rows)) and found.get(holder, True)
        return [holder for holder, free in found.items() if free]

    def pin_written(self, holders: Sequence[Holder]) -> None:
        """After a call has written these itself: the next one need not compare what is named there."""
        for holder in holders:
            if (place := self._place.get(holder)) is not None:
                self._versions[place] = torch_api.dict_version(holder.thing)
        if not self._tensor_holders.isdisjoint(holders):
            self._fetch()

    def _fixed_pattern(self) -> bool:
        """Do the same names hold one tensor as in the trace?"""
        now = [s.read(_NO_CALL) for s in self._fixed_sources]
        rows = self.guards.same_tensors.items()
        pairs = [(first, other) for first, others in rows for other in others if {first, other} <= self.pinned]
        return len(set(map(id, now))) == len(now) and all(a.read(_NO_CALL) is b.read(_NO_CALL) for a, b in pairs)


class _Emitter:
    """Writes ``read``: moving holders as local names, fixed ones bound."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.guards = reader, reader.guards
        self.env: dict[str, Any] = {"MISSING": MISSING, "alike": alike, "Tensor": torch.Tensor}
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
            self._unless(self._condition(guard))
        for first, second in guards.aliases:
            self._unless(f"{self._read(first)} is {self._read(second)}")
        self._objects()
        found = self._tensors()
        entries = [self._read(s) for s in guards.entries]
        for cls, mro in guards.bases:
            self._unless(f"{self._const(cls)}.__mro__ is {self._const(mro)}")
        known = guards.keywords
        keywords = f"tuple(kwargs) != {self._const(known)}" if known else "kwargs"
        head = [f"if len(args) != {guards.positional} or {keywords}: return None"]
        if guards.by_holder or guards.functions or guards.objects or guards.caches:
            head.append(f"if not {self._const(self.reader.holds)}(): return None")
        flat = [found.get(s) or self._read(s) for s in guards.flat]
        self.lines.append(f"return [{', '.join([*flat, *entries])}]")
        body = "\n".join(f"        {line}" for line in self.lines)
        start = "\n".join(f"    {line}" for line in head)
        return f"def read(args, kwargs):\n{start}\n    try:\n{body}\n    except {_EXPECTED}: return None\n"

    def _unless(self, condition: str) -> None:
        self.lines.append(f"if not ({condition}): return None")

    def _const(self, value: Any) -> str:
        name = self.constants.get(id(value))
        if name is None:
            name = self.constants[id(value)] = f"c{len(self.constants)}"
            self.env[name] = value
        return name

    # ------------------------------------------------------------------------------------------ places
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
        elif isinstance(holder, Cell) and not isinstance(holder, Variable):
            text = f"{self._name(holder)}.cell_contents"
        elif isinstance(holder, (Mapping, ListLike, Items)):
            base: Any = tuple if isinstance(holder, Items) else holder.base
            plain = type(holder.thing) in (dict, list, tuple)
            name = self._name(holder)
            text = f"{name}[{known}]" if plain else f"{self._const(base.__getitem__)}({name}, {known})"
        else:
            text = f"{self._const(holder.get)}({self._name(holder)}, {known})"
        return text + "".join(f"[{k}]" for k in source.items)

    # ------------------------------------------------------------------------------------------ conditions
    def _condition(self, guard: Guard) -> str:
        if isinstance(guard, NoNewNames):
            return f"{self._const(guard.absent)}.isdisjoint({self._name(guard.holder)})"
        slow = f"{self._const(guard.failed)}((args, kwargs)) is None"
        if isinstance(guard, ItemsOf) and guard.kind is list:
            name, items = self._name(guard.holder), self._const(guard.items)
            sized = f"type({name}) is list and len({name}) == {len(guard.items)}"
            if any(isinstance(item, Like) for item in guard.items):
                return " and ".join([sized, *(self._value(f"{name}[{k}]", v) for k, v in enumerate(guard.items))])
            return f"{sized} and all(map({self._const(operator.is_)}, {name}, {items})) or {slow}"
        if isinstance(guard, (Keys, Factory, ItemsOf)) or guard.was is MISSING:
            return slow
        return self._value(self._read(guard.source), guard.was)

    def _value(self, value: str, was: Any) -> str:
        known = self._const(was)
        if not isinstance(was, Like):
            by_identity = type(was) not in ATOMS and not is_a(was, (tuple, frozenset))
            return f"{value} is {known}" if by_identity else f"((v := {value}) is {known} or alike(v, {known}))"
        if was.kind is torch.Tensor:
            return f"isinstance({value}, Tensor)"
        usual = f" and {self._const(is_usual)}({value})" if was.kind is float else ""
        return f"type({value}) is {self._const(was.kind)}{usual}"

    def _objects(self) -> None:
        """No two objects of the arguments are one, and none is an object that the region names."""
        # Attributes of tensors are those of two tensors if the tensors are two, which `_tensors` asks.
        moving = [self._name(h) for h in self.guards.moving if not is_a(h.owner, torch.Tensor)]
        if not moving:
            return
        fixed = frozenset(number for number, h in self.guards.walk.holders.items() if h.fixed)
        self.lines.append(f"ids = {{{', '.join(f'id({name})' for name in moving)}}}")
        self._unless(f"len(ids) == {len(moving)} and {self._const(fixed)}.isdisjoint(ids)")

    def _tensors(self) -> dict[Source, str]:
        """Local names of the inputs, each another tensor than the rest."""
        pinned = self.reader.pinned
        found = {source: f"t{k}" for k, source in enumerate(self.guards.tensors)}
        if fixed := [name for source, name in found.items() if source in pinned]:
            self.lines.append(f"{''.join(name + ', ' for name in fixed)} = {self._const(self.reader.fixed)}")
        moving = [name for source, name in found.items() if source not in pinned]
        self.lines += [f"{name} = {self._read(source)}" for source, name in found.items() if source not in pinned]
        ids = ", ".join(f"id({name})" for name in moving)
        if len(moving) == 2:
            self._unless(" is not ".join(moving))
        elif len(moving) > 2:
            self._unless(f"len({{{ids}}}) == {len(moving)}")
        if fixed and moving:
            self._unless(f"{self._const(self.reader.fixed_ids)}.isdisjoint(({ids},))")
        for first, others in self.guards.same_tensors.items():
            for other in others:
                if not {first, other} <= pinned:
                    self._unless(f"{self._read(other)} is {self._read(first)}")
        return found
