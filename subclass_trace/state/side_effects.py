"""Snapshot of the sources of a trace: stand-ins in, changes out, and all as it was afterwards.

In: a `Walk` while it grows, and what stands in for its tensors and numbers. Out: `SideEffect` rows and the recipe of the
result, over the flat outputs that the region has to compute for them.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Mapping as MappingType
from typing import Any

import torch

from .. import torch_api
from ..errors import NotYet, SideEffectError
from ..plan import SideEffect
from ..plan.values import BackReference, Constant, Entry, Make, New, Output, Recipe
from ..subclass.attributes import is_heap_type, members_of, namespace_of
from .entering import is_users
from .source import Holder, Mapping, Names, OfClass, Source
from .source import Sequence as ListLike
from .thread_table import ThreadTable
from .values import MISSING, factory_of, is_a, is_atom, same, same_keys, short, solid_base
from .walk import Walk

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
#: classes of C whose state is all in what recipes rebuild
_KNOWN_BASES = frozenset({object, list, dict, set, tuple, collections.OrderedDict, collections.defaultdict})
_CONSTANT_KINDS = (type, types.ModuleType, types.BuiltinFunctionType, torch_api.OpOverload, torch.Generator)
_CONSTANT_KEYS = (*_CONSTANT_KINDS, types.FunctionType, types.MethodType)

Table = dict[Any, Any]


class Snapshot:
    """The tables of all holders before the trace (`Holder.before`), and with stand-ins, as the trace started (``base``)."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.base: dict[Holder, Table] = {}

    def stand_in(self, sources: Iterable[Source], replaced: Callable[[Any, Source], Any]) -> None:
        """Put stand-ins where these sources are.

        Args:
            replaced: the value that shall stand in place of one.

        Raises:
            SideEffectError: the place has been written before any name led to it.
        """
        for holder, key in dict.fromkeys((s.holder, s.key) for s in sources):
            if holder is self.walk.arguments:
                continue
            self._own_table(holder)
            own = holder.live is holder.thing or type(holder) is Mapping
            if own and holder.get(holder.live, key) is not holder.before[key]:
                raise SideEffectError(
                    "a place was written by the region before any name of its code led to it",
                    path=holder.text(key),
                    expected="a place that the code names before something else writes it",
                    fix="write it by that name",
                )
            value = replaced(holder.before[key], Source(holder, key))
            self.base.setdefault(holder, dict(holder.before))[key] = value
            holder.put(holder.live, key, value)

    def _own_table(self, holder: Holder) -> None:
        """The parameters and buffers of a module have their stand-ins in this thread alone."""
        at = self.walk.tables.get(id(holder.thing))
        if at is None or holder.live is not holder.thing or type(holder.thing) is not dict:
            return
        names, key = at
        holder.live = ThreadTable(holder.thing)
        self.base.setdefault(names, dict(names.before))[key] = holder.live
        names.put(names.live, key, holder.live)

    def stand_in_keys(self, stand_ins: MappingType[int, Any]) -> None:
        """Let tensors that are keys of dicts be their stand-ins, as far as they have some by now."""
        for holder in self.walk.keyed:
            base = self.base.get(holder, holder.before)
            if any(id(key) in stand_ins for key in base):
                self.base[holder] = {stand_ins.get(id(key), key): value for key, value in base.items()}
                holder.fill(holder.thing, self.base[holder])

    def changes(self) -> dict[Holder, tuple[Table, Table]]:
        """Holder -> (its table now, and at the start), for those that changed.

        Raises:
            SideEffectError: an object has another ``__dict__``.
        """
        found: dict[Holder, tuple[Table, Table]] = {}
        for holder in self.walk.holders.values():
            if _has_moved(holder):
                raise SideEffectError(
                    "the region gives an object another __dict__", path=holder.path, fix="change the attributes instead"
                )
            if type(holder.live) is ThreadTable and not _identical(holder.thing, holder.before):
                raise SideEffectError(
                    "the region changes the parameters or buffers of a module by another name of their dict",
                    path=holder.path,
                    fix="assign attributes of the module",
                )
            base, now = self.base.get(holder, holder.before), _table(holder, holder.live)
            ordered = type(holder) is Mapping and not same_keys(now, base)
            other = ordered or now.keys() != base.keys()
            if other or any(base[key] is not value and not same(base[key], value) for key, value in now.items()):
                found[holder] = now, base
        return found

    def restore(self) -> list[str]:
        """All sources hold what they held before the trace; which did not."""
        changed = []
        for holder in self.walk.holders.values():
            if _has_moved(holder):
                object.__setattr__(holder.owner, "__dict__", holder.thing)
            before, now = holder.before, _table(holder, holder.thing)
            if _identical(now, before):
                continue
            if holder.owner is not None or not isinstance(holder, Names):  # Python modules grow by imports
                changed.append(holder.path)
            if isinstance(holder, Names) and now.keys() == before.keys():
                for key, value in before.items():
                    if now[key] is not value:
                        holder.put(holder.thing, key, value)
            elif not holder.left_out or isinstance(holder, OfClass):
                holder.fill(holder.thing, before)
        return changed


def _table(holder: Holder, thing: Any) -> Table:
    """Its table; of a Python module of a library without the parts of it that were imported meanwhile."""
    table = holder.table(thing)
    if not (isinstance(holder, Names) and holder.shallow):
        return table
    return {key: value for key, value in table.items() if key in holder.before or not is_a(value, types.ModuleType)}


def _identical(now: Table, before: Table) -> bool:
    return same_keys(now, before) and all(now[key] is value for key, value in before.items())


def _has_moved(holder: Holder) -> bool:
    if type(holder) is not Names or holder.owner is None or holder.live is not holder.thing:
        return False
    return is_heap_type(type(holder.owner)) and namespace_of(holder.owner) not in (None, holder.thing)


class Recipes:
    """Values at the end of a trace -> how each call makes them.

    Attributes:
        outputs: the tensors and symbols that the recipes need, which the region returns as flat outputs.
        keys: the sources of tensors that are keys of dicts, and with that constants.
        result, effects: how the result is made of the outputs, and what else each call does.
    """

    result: Recipe
    effects: tuple[SideEffect, ...]

    def __init__(self, walk: Walk, reals: MappingType[int, tuple[Source, torch.Tensor]]) -> None:
        """``reals``: id of a stand-in -> the source of its tensor, and that."""
        self._reals = reals
        self.keys: set[Source] = set()
        self.outputs: list[Any] = []
        self._walk = walk
        self._holders = {id(h.thing if h.owner is None else h.owner): h for h in walk.holders.values()}
        self._number: dict[int, int] = {}
        self._made: dict[int, int] = {}

    def __call__(self, value: Any, path: str) -> Recipe:
        """The recipe of a value.

        Raises:
            SideEffectError: it is, or holds, something that cannot be rebuilt in each call.
        """
        if is_a(value, (torch.Tensor, *SYMBOLS)):
            number = self._number.setdefault(id(value), len(self.outputs))
            if number == len(self.outputs):
                self.outputs.append(value)
            return Output(number)
        if is_atom(value) and not _holds_symbol(value):
            return Constant(value)
        holder = self._holders.get(id(value))
        if holder is not None:
            return Constant(value) if holder.fixed else Entry(holder.place)
        if self._is_constant(value):
            return Constant(value)
        if is_a(value, (tuple, frozenset)):
            return Make(type(value), tuple(self(item, f"{path}[{k}]") for k, item in enumerate(value)))
        if id(value) in self._made:
            return BackReference(self._made[id(value)])
        return self._new(value, path)

    def _is_constant(self, value: Any) -> bool:
        if id(value) in self._walk.known or is_a(value, _CONSTANT_KINDS):
            return True
        if is_a(value, types.FunctionType):
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            return not value.__closure__ and all(map(is_atom, defaults))
        return False

    def _new(self, value: Any, path: str) -> Recipe:
        cls = type(value)
        solid = solid_base(cls)
        known = solid in _KNOWN_BASES and (is_heap_type(cls) or cls in _KNOWN_BASES) and not members_of(cls)
        if cls is types.FunctionType and "_hooks[" in path and not is_users(value.__code__.co_filename):
            raise NotYet("a library sets up hooks", path=path)
        if not known:  # as of a generator
            raise SideEffectError(
                f"the region hands out a {cls.__qualname__} that it has made, which cannot be rebuilt in each call",
                path=path,
                expected="tensors, numbers, lists, dicts, sets, tuples, and objects whose state is in their __dict__",
                got=f"a {cls.__qualname__}, which holds state of its own",
                fix="make it outside of the region",
            )
        number = self._made[id(value)] = len(self._made)
        items = pairs = None
        if is_a(value, dict):
            rows = Mapping(value, path).table(value).items()
            pairs = tuple((self._key(k, path), self(v, f"{path}[{short(k)}]")) for k, v in rows)
        elif is_a(value, (list, set)):
            items = tuple(self(item, f"{path}[{k}]") for k, item in enumerate(value))
        held = namespace_of(value) or {}
        fields = tuple((name, self(v, f"{path}.{name}")) for name, v in held.items())
        factory = factory_of(value)
        return New(
            number, cls, items, pairs, fields, None if factory is None else self(factory, f"{path}.default_factory")
        )

    def _key(self, key: Any, path: str) -> Recipe:
        key = self.key(key, path)
        return Constant(key) if is_a(key, torch.Tensor) else self(key, path)

    def key(self, key: Any, path: str) -> Any:
        """A key of a dict, or an item of a set, which is the same in each call: for a stand-in the tensor itself.

        Raises:
            SideEffectError: it is computed by the region, or is looked up in each call.
        """
        key = torch_api.plain_number(key)
        known = self._reals.get(id(key)) if is_a(key, torch.Tensor) else None
        if known is not None and known[0].holder.fixed:
            self.keys.add(known[0])
            return known[1]
        check_key(key, path)
        return key


def _holds_symbol(value: Any) -> bool:
    if type(value) is slice:
        return any(is_a(n, SYMBOLS) for n in (value.start, value.stop, value.step))
    return type(value) is torch.Size and any(is_a(n, SYMBOLS) for n in value)


def check_key(key: Any, path: str) -> None:
    """A key, and an item of a set, is the same in each call.

    Raises:
        SideEffectError: it is computed by the region.
    """
    if is_a(key, tuple):
        for item in key:
            check_key(item, path)
    elif is_a(key, (torch.Tensor, *SYMBOLS)) or not (is_atom(key) or is_a(key, _CONSTANT_KEYS)):
        raise SideEffectError(
            "a key of a dict, or an item of a set, is made of what the region computes",
            path=path,
            expected="numbers, texts and other constants",
            got=short(key),
            fix="use a list, or a number as the key",
        )


def side_effects(changes: dict[Holder, tuple[Table, Table]], recipes: Recipes) -> list[SideEffect]:
    """What each call does to the changed sources.

    Raises:
        SideEffectError: a source holds what cannot be rebuilt in each call.
    """
    effects: list[SideEffect] = []
    for holder, (now, was) in changes.items():
        if isinstance(holder, ListLike):
            effects.append(_of_list(holder, list(was.values()), list(now.values()), recipes))
            continue
        kept = [key for key in was if key in now]
        if type(holder) is Mapping and not same_keys(kept, list(now)[: len(kept)]):
            values = [recipes(v, holder.text(key)) for key, v in now.items()]
            effects.append(SideEffect(holder, "fill", tuple(recipes.key(k, holder.path) for k in now), tuple(values)))
            continue
        gone = [key for key in was if key not in now]
        for key, value in [*dict.fromkeys(gone, MISSING).items(), *now.items()]:
            if was.get(key, MISSING) is not value and not same(was.get(key, MISSING), value):
                made = () if value is MISSING else (recipes(value, holder.text(key)),)
                effects.append(SideEffect(holder, "put", (recipes.key(key, holder.path),), made))
    return effects


def _of_list(holder: ListLike, was: Sequence[Any], now: Sequence[Any], recipes: Recipes) -> SideEffect:
    """One that only grew is extended: where code only appends to it, its items are not compared."""
    grown = len(now) >= len(was) and all(a is b or same(a, b) for a, b in zip(was, now, strict=False))
    extends = grown and getattr(holder.thing, "maxlen", None) is None
    start = len(was) if extends else 0
    values = tuple(recipes(v, holder.text(k)) for k, v in enumerate(now[start:], start))
    return SideEffect(holder, "extend" if extends else "fill", () if extends else tuple(range(len(now))), values)
