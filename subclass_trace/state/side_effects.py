"""What a run gave: how each call makes the result, and what it does to the things that the run
wrote.

In: a recorder after a run. Out: `SideEffect` rows and the recipe of the result, over the flat
outputs that the region has to compute for them.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..errors import SideEffectError, UnsupportedError
from ..plan import SideEffect
from ..plan.values import BackReference, Constant, Entry, Make, New, Output, Recipe
from ..subclass.attributes import is_heap_type, members_of, namespace_of
from ..subclass.values import is_a, is_atom
from ..torch_api.numbers import PYTHON_CLASSES, plain_number
from ..torch_api.operators import OpOverload
from ..torch_api.owners import Owner, owner_of_file
from ..torch_api.wrappers import is_numpy_scalar
from .containers import Containers
from .kinds import ITERATORS, SYMBOLS, VALUES
from .place import Place
from .rows import Row
from .values import MISSING, factory_of, items_of, same_keys, short, solid_base
from .writes import MAPPING, NAMES, SEQUENCE, Table, Written

#: classes of C whose state is all in what recipes rebuild
#: of what is made anew in each call: all that it holds can be read off it
KNOWN_BASES = frozenset(
    (
        *(object, list, dict, set, tuple, frozenset),
        *(types.SimpleNamespace, collections.OrderedDict, collections.defaultdict),
    )
)
_CONSTANT_KINDS = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    OpOverload,
    torch.Generator,
)
_FUNCTIONS = (types.FunctionType, functools.partial)
_SUSPENDED = (*ITERATORS, types.AsyncGeneratorType)
_CONSTANT_KEYS = (*_CONSTANT_KINDS, types.FunctionType, types.MethodType)


class Recipes:
    """Values at the end of a run -> how each call makes them.

    Attributes:
        outputs: the tensors and symbols that the recipes need, which the region returns as flat
            outputs. result, effects: how the result is made of the outputs, and what else each call
            does.
        seen: the effects that the call which was traced can tell from none.
    """

    result: Recipe
    effects: tuple[SideEffect, ...]
    seen: tuple[SideEffect, ...]

    def __init__(self, recorder: Containers) -> None:
        self._rec = recorder
        self.outputs: list[Any] = []
        self._number: dict[int, int] = {}
        self._made: dict[int, int] = {}

    def __call__(self, value: Any, path: str) -> Recipe:
        """The recipe of a value.

        Raises:
            SideEffectError: it is, or holds, something that cannot be rebuilt in each call.
        """
        value = self._rec.give(value)
        if is_a(value, (torch.Tensor, *SYMBOLS)):
            number = self._number.setdefault(id(value), len(self.outputs))
            if number == len(self.outputs):
                self.outputs.append(value)
            return Output(number)
        if is_atom(value) and not _holds_symbol(value):
            return Constant(value)
        known = self._rec.known.get(id(value))
        if known is not None and not is_a(value, _CONSTANT_KINDS):
            return Entry(known[1])
        if self._is_constant(value):
            return Constant(value)
        if is_a(value, (tuple, frozenset)) and not namespace_of(value):
            return Make(
                type(value),
                tuple(self(item, f"{path}[{k}]") for k, item in enumerate(items_of(value))),
            )
        if id(value) in self._made:
            return BackReference(self._made[id(value)])
        return self._new(value, path)

    def must_be_there(self, row: Written, key: Any) -> None:
        """The run takes away what stood at a key: it has read that something did."""
        place = self._rec.place_at(row, key)
        if place is not None and place not in self._rec.noted:
            self._rec.rows.append(Row("there", place, True))

    def keeps(self, row: Written, key: Any, value: Any) -> bool:
        """See `Containers.keeps`."""
        return self._rec.keeps(row, key, value)

    def name(self, row: Written, key: Any) -> Any:
        """A key, as a side effect has it."""
        return key if row.table is NAMES else self.key(key, str(row.place))

    def _is_constant(self, value: Any) -> bool:
        if id(value) in self._rec.roots or is_a(value, _CONSTANT_KINDS):
            return True
        if type(value) in VALUES or (is_numpy_scalar(value) and value.dtype.kind != "V"):
            return True
        if type(value) in (types.MethodType, *PYTHON_CLASSES):
            return False
        if is_a(value, types.FunctionType):
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            return not value.__closure__ and all(map(is_atom, defaults))
        return False

    def _new(self, value: Any, path: str) -> Recipe:
        cls = type(value)
        if cls is types.MethodType:
            return Make(
                cls,
                (
                    self(value.__func__, f"{path}.__func__"),
                    self(value.__self__, f"{path}.__self__"),
                ),
            )
        solid = solid_base(cls)
        known = (
            solid in KNOWN_BASES
            and (is_heap_type(cls) or cls in KNOWN_BASES)
            and not members_of(cls)
        )
        if (
            cls is types.FunctionType
            and "_hooks[" in path
            and owner_of_file(value.__code__.co_filename) is not Owner.USER
        ):
            raise UnsupportedError("a library sets up hooks", code="sets-up-hooks", path=path)
        if not known:  # as of a generator
            raise SideEffectError(
                f"the region hands out a {cls.__qualname__} that no other call can rebuild",
                # Dynamo's closes over its fake tensors, or is another one
                code="function-handed-out"
                if cls in _FUNCTIONS
                else "iterator-handed-out"
                if cls in _SUSPENDED
                else "object-handed-out",
                path=path,
                expected="tensors, numbers, containers, objects with all state in their __dict__",
                got=f"a {cls.__qualname__}, which holds state of its own",
                fix="make it outside of the region",
            )
        number = self._made[id(value)] = len(self._made)
        items = pairs = None
        if is_a(value, dict):
            rows = MAPPING.of(value).items()
            pairs = tuple((self._key(k, path), self(v, f"{path}[{short(k)}]")) for k, v in rows)
        elif is_a(value, (list, set, tuple, frozenset)):
            items = tuple(self(item, f"{path}[{k}]") for k, item in enumerate(items_of(value)))
        held = namespace_of(value) or {}
        fields = tuple((name, self(v, f"{path}.{name}")) for name, v in held.items())
        factory = factory_of(value)
        return New(
            number,
            cls,
            items,
            pairs,
            fields,
            None if factory is None else self(factory, f"{path}.default_factory"),
        )

    def _key(self, key: Any, path: str) -> Recipe:
        key = self.key(key, path)
        return Constant(key) if is_a(key, torch.Tensor) else self(key, path)

    def key(self, key: Any, path: str) -> Any:
        """A key of a dict, or an item of a set, which is the same in each call: for a stand-in the
        tensor itself.

        Raises:
            SideEffectError: it is computed by the region, or is another one in each call.
        """
        key = plain_number(key)
        if is_a(key, torch.Tensor):
            known = self._rec.known.get(id(key))
            if known is not None and not known[1].moves:
                self._rec.pin(key)
                return self._rec.real(key)
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
            code="computed-key",
            path=path,
            expected="numbers, texts and other constants",
            got=short(key),
            fix="use a list, or a number as the key",
        )


def side_effects(written: Iterable[Written], recipes: Recipes) -> list[SideEffect]:
    """What each call does to what was written.

    Raises:
        SideEffectError: it holds what cannot be rebuilt in each call.
    """
    effects: list[SideEffect] = []
    for row in written:
        now = row.now
        kept = {key for key, value in now.items() if recipes.keeps(row, key, value)}
        if row.table is SEQUENCE and row.keys is not None:
            effects += _of_items(row, now, kept, recipes)
        elif row.table is SEQUENCE:
            if not len(kept) == len(now) == len(row.before):
                effects.append(_of_list(row, now, kept, recipes))
        else:
            effects += _of_table(row, now, kept, recipes)
    return effects


def _of_table(
    row: Written, now: dict[Any, Any], kept: set[Any], recipes: Recipes
) -> Iterator[SideEffect]:
    """Keys that are gone; then what was written, in order."""
    moved = [key for key in now if key in row.moved and key in row.before]
    there = [key for key in row.before if key in now]
    if row.keys is None and row.table is MAPPING and not same_keys(there, [*now][: len(there)]):
        keys = tuple(recipes.key(k, str(row.place)) for k in now)
        held = _as_found(row, now, kept)
        made = tuple(recipes(v, text_at(row.place, k)) for k, v in held.items())
        yield SideEffect(row.place, row.table, "fill", keys, made)
        return
    for key in row.before:
        if key not in now:
            recipes.must_be_there(row, key)
    gone = [*row.before, *(row.keys or ())]
    for key in dict.fromkeys((*(k for k in gone if k not in now), *moved)):
        if key in row.before or not recipes.keeps(row, key, MISSING):
            yield SideEffect(row.place, row.table, "put", (recipes.name(row, key),), ())
    found = _as_found(row, now, kept)
    for key in now:
        if key not in kept or key in moved:
            made = (recipes(found[key], text_at(row.place, key)),)
            yield SideEffect(row.place, row.table, "put", (recipes.name(row, key),), made)


def _as_found(row: Written, now: dict[Any, Any], kept: set[Any]) -> dict[Any, Any]:
    """What stands for something that each call finds there is that; a number may be another one in
    each call."""
    return {
        key: row.before[key] if key in kept and type(value) not in PYTHON_CLASSES else value
        for key, value in now.items()
    }


def printed(
    rows: Iterable[tuple[Table, dict[str, Any], tuple[Any, ...]]], recipes: Recipes
) -> list[SideEffect]:
    """What each call prints, or warns of."""
    return [
        SideEffect(options, table, "extend", (), tuple(recipes(v, "print") for v in values))
        for table, options, values in rows
    ]


def text_at(place: Place, key: Any) -> str:
    """The path of the value at a key of a thing that is written."""
    return str(
        place.step("attr" if place.key == "__dict__" and place.kind == "getattr" else "item", key)
    )


def _of_items(
    row: Written, now: dict[Any, Any], kept: set[Any], recipes: Recipes
) -> Iterator[SideEffect]:
    """A list of which items are known to be written, and added at the end."""
    made = {k: recipes(v, text_at(row.place, k)) for k, v in now.items() if k not in kept}
    added = tuple(made.pop(k) for k in now if k >= len(row.before))
    for k, value in made.items():
        yield SideEffect(row.place, row.table, "put", (k,), (value,))
    if added:
        yield SideEffect(row.place, row.table, "extend", (), added)


def _of_list(row: Written, now: dict[Any, Any], kept: set[Any], recipes: Recipes) -> SideEffect:
    """One that only grew is extended: where code only appends to it, its items are not compared."""
    extends = all(k in kept for k in row.before) and getattr(row.thing, "maxlen", None) is None
    start = len(row.before) if extends else 0
    values = _as_found(row, now, kept)
    made = tuple(recipes(v, text_at(row.place, k)) for k, v in values.items() if k >= start)
    keys = () if extends else tuple(range(len(now)))
    return SideEffect(row.place, row.table, "extend" if extends else "fill", keys, made)
