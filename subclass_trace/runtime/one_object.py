"""Which of the containers that a call meets are one object.

A list that stands at two places is changed at both; two equal lists are not. Guards that compare what containers hold cannot
tell the two, so `OneObject` compares which of them are the same: those among the arguments, and those that names and
attributes hold, inside of others too. Objects that are compared by what they hold are containers in this sense.

Whatever a guard holds by identity anyway is the same in each call, and is looked at only where another could be it.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import optree
import torch

from .. import _torch
from ..plan import Plan
from ..subclass.arguments import ObjectState, argument_snapshot, attributes_inside
from ..subclass.flatten import leaves_of
from .held import ABSENT, DEEPEST, ITEMWISE, LONG, VERY_LONG, container_behind, is_buffer, is_short_buffer, is_simple

_IMMUTABLE = (tuple, frozenset)
#: the types whose items are found by ``value[key]``, and by nothing else
_PLAIN = (list, dict, tuple)


@dataclass(frozen=True)
class Item:
    """``value[key]``, as ``base`` has it, the class of containers that is Python's own."""

    key: Any
    base: Any

    def of(self, value: Any) -> Any:
        """What stands there."""
        return self.base.__getitem__(value, self.key)

    def suffix(self, value: Any) -> str | None:
        """What stands for it behind an expression for ``value``; None where only `of` will do."""
        return f"[{self.key!r}]" if type(value) in _PLAIN and type(self.key) in (int, str) else None


@dataclass(frozen=True)
class Attribute:
    """What an object holds under a name."""

    name: str

    def of(self, value: Any) -> Any:
        """The attribute; ABSENT where there is none."""
        return next((v for k, v in attributes_inside(value) if k == self.name), ABSENT)

    def suffix(self, value: Any) -> None:
        """See `Item`."""


@dataclass(frozen=True)
class Behind:
    """The container that an object keeps its items in."""

    def of(self, value: Any) -> Any:
        """See `container_behind`."""
        return container_behind(value)

    def suffix(self, value: Any) -> None:
        """See `Item`."""


@dataclass(frozen=True)
class Child:
    """One of the parts of a pytree of a class of the user's."""

    number: int

    def of(self, value: Any) -> Any:
        """The part."""
        return optree.tree_flatten_one_level(value, namespace=_torch.pytree_namespace())[0][self.number]

    def suffix(self, value: Any) -> None:
        """See `Item`."""


@dataclass(frozen=True, eq=False)
class Held:
    """Where a walk starts besides the arguments: a closure cell (``key`` None), or ``holder[key]``.

    ``alone``: what lies inside is not guarded.
    """

    holder: Any
    key: str | None
    value: Any
    alone: bool = False

    def of(self, _: Any) -> Any:
        """What it holds now."""
        return self.holder.cell_contents if self.key is None else self.holder[self.key]

    def suffix(self, value: Any) -> None:
        """See `Item`."""


Step = Item | Attribute | Behind | Child | Held


@dataclass(frozen=True, eq=False)
class Node:
    """Something on the way to containers: ``step`` from node ``parent`` leads to it. The first two are args and kwargs."""

    parent: int
    step: Any
    value: Any
    counts: bool  # it is a container that can be changed


@dataclass(frozen=True, eq=False)
class OneObject:
    """Which containers are one object in each call that a specialization serves.

    Attributes:
        steps: (number of the parent, step) of each object on the way; number 0 is ``args``, number 1 ``kwargs``.
        suffixes: what stands for each step in source, or None.
        differ: numbers of those that are different objects, each once.
        same: (number, number) of two that are one.
        known: (number, object) where a guard holds that object.
        others: ids of the objects that guards hold, and that none of ``differ`` is but for ``known``.
        tensors: those that guards hold.
    """

    steps: tuple[tuple[int, Any], ...] = ()
    suffixes: tuple[str | None, ...] = ()
    differ: tuple[int, ...] = ()
    same: tuple[tuple[int, int], ...] = ()
    known: tuple[tuple[int, Any], ...] = ()
    others: frozenset[int] = frozenset()
    tensors: tuple[torch.Tensor, ...] = ()

    def __bool__(self) -> bool:
        return bool(len(self.differ) > 1 or self.same or self.known or self.others)

    @staticmethod
    def of(args: Any, kwargs: Any, held: Iterable[Held] = ()) -> OneObject:
        """That of a call. ``held``: what names and attributes hold."""
        walk = _Walk()
        for number, given in enumerate((args, kwargs)):
            walk.nodes.append(Node(number, None, given, False))
        walk.arguments(args, 0, 0)
        walk.arguments(kwargs, 1, 0)
        for row in held:
            walk.room = VERY_LONG
            walk.held(row.value, 0, row, 0)
        tensors = {id(v): v for v in walk.fixed if isinstance(v, torch.Tensor)}
        return replace(_pattern(walk.nodes, walk.fixed), tensors=tuple(tensors.values()))

    def holds(self, args: Any, kwargs: Any) -> bool:
        """Are the same ones one object in this call, and no others?"""
        if not self:
            return True
        found = [args, kwargs]
        try:
            for parent, step in self.steps:
                found.append(step.of(found[parent]))
        except (AttributeError, LookupError, StopIteration, TypeError, ValueError):
            return False
        ids = [id(found[k]) for k in self.differ]
        if len(set(ids)) != len(ids) or any(found[a] is not found[b] for a, b in self.same):
            return False
        if any(found[k] is not value for k, value in self.known):
            return False
        known = {k for k, _ in self.known}
        return self.others.isdisjoint(id(found[k]) for k in self.differ if k not in known)


def _pattern(nodes: Sequence[Node], fixed: Sequence[Any]) -> OneObject:
    counted = [k for k, node in enumerate(nodes) if node.counts]
    first: dict[int, int] = {}
    for k in counted:
        first.setdefault(id(nodes[k].value), k)
    kinds = {type(nodes[k].value) for k in counted}
    guarded = {id(v): v for v in fixed if type(v) in kinds}
    known = [(k, nodes[k].value) for k in first.values() if id(nodes[k].value) in guarded]
    found = OneObject(
        differ=tuple(first.values()),
        same=tuple((first[id(nodes[k].value)], k) for k in counted if first[id(nodes[k].value)] != k),
        known=tuple(known),
        others=frozenset(guarded.keys() - first.keys()),
    )
    return _with_steps(found, nodes) if found else OneObject()


def _with_steps(found: OneObject, nodes: Sequence[Node]) -> OneObject:
    """The same with what leads to them, and nothing else."""
    needed = {0, 1}
    for k in (*found.differ, *[k for _, k in found.same]):
        while k not in needed:
            needed.add(k)
            k = nodes[k].parent
    order = sorted(needed)
    number = {k: n for n, k in enumerate(order)}
    ways = [nodes[k] for k in order[2:]]
    return OneObject(
        tuple((number[node.parent], node.step) for node in ways),
        tuple(node.step.suffix(nodes[node.parent].value) for node in ways),
        tuple(number[k] for k in found.differ),
        tuple((number[a], number[b]) for a, b in found.same),
        tuple((number[k], value) for k, value in found.known),
        found.others,
    )


@dataclass(frozen=True, eq=False)
class KnownTensors:
    """Which inputs, and inner tensors of them, are tensors that guards hold.

    Attributes:
        inputs: number of the input -> the tensor that it is.
        leaves: the same by the number of the leaf.
        looked_at: numbers of the other inputs, and of the other leaves, none of which is in ``others`` (ids).
    """

    inputs: Mapping[int, torch.Tensor] = field(default_factory=dict)
    leaves: Mapping[int, torch.Tensor] = field(default_factory=dict)
    looked_at: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    others: frozenset[int] = frozenset()

    @staticmethod
    def of(plan: Plan, flat: Sequence[Any], tensors: Iterable[torch.Tensor], ids: Collection[int] = ()) -> KnownTensors:
        """Those of a call. ``tensors``: what guards hold, and inputs that the function has come upon in other ways; ``ids``:
        others that it takes no input to be but those that have them."""
        fixed = {id(t) for t in tensors} | set(ids)
        if not fixed:
            return KnownTensors()
        inputs = [row.of(flat) for row in plan.inputs]
        rows = [k for k, row in enumerate(plan.inputs) if row.position is not None]
        free = [k for k in rows if id(inputs[k]) not in fixed]
        found = [(n, t) for k in rows for n, t in zip(plan.inputs[k].leaves, leaves_of(inputs[k]), strict=True)]
        themselves = {id(inputs[k]) for k in rows}
        places = {n: t for n, t in found if id(t) not in themselves}
        return KnownTensors(
            {k: inputs[k] for k in rows if id(inputs[k]) in fixed},
            {n: t for n, t in places.items() if id(t) in fixed},
            (tuple(free), tuple(n for n, t in places.items() if id(t) not in fixed)),
            frozenset(fixed - themselves - {id(t) for t in places.values()}),
        )

    def holds(self, inputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> bool:
        """Are the same ones those tensors, and no others?"""
        rows = ((inputs, self.inputs), (leaves, self.leaves))
        if any(values[k] is not t for values, known in rows for k, t in known.items()):
            return False
        first, second = self.looked_at
        return self.others.isdisjoint(map(id, [*[inputs[k] for k in first], *[leaves[n] for n in second]]))


class _Walk:
    """``nodes``: in the order in which they are found; ``fixed``: what guards compare by identity; ``room``: for how many
    more items of what a name holds there is room."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.fixed: list[Any] = []
        self.room = VERY_LONG

    def arguments(self, value: Any, number: int, depth: int) -> None:
        """The items of a container that is structure of the arguments."""
        for step, item in _parts(value):
            if is_simple(item) or isinstance(item, torch.Tensor):
                continue
            if optree.tree_is_leaf(item, namespace=_torch.pytree_namespace()):
                self._leaf(item, number, step, argument_snapshot(item), depth)
            else:
                self.arguments(item, self._add(number, step, item, not isinstance(item, tuple)), depth + 1)

    def _add(self, parent: int, step: Step, value: Any, counts: bool) -> int:
        self.nodes.append(Node(parent, step, value, counts))
        return len(self.nodes) - 1

    def _leaf(self, value: Any, parent: int, step: Step, state: Any, depth: int) -> None:
        """``state``: what a guard keeps of it."""
        if not isinstance(state, ObjectState):
            if is_buffer(value):
                self._add(parent, step, value, True)
            elif not is_simple(value):
                self.fixed.append(value)
            return
        if state.alone:
            self.fixed.append(value)
            return
        number = self._add(parent, step, value, not isinstance(value, _IMMUTABLE))
        self.fixed.extend(_keys(value))
        for name, inner in attributes_inside(value):
            if name in state.attributes and not is_simple(inner):
                self._leaf(inner, number, Attribute(name), state.attributes[name], depth + 1)
        if isinstance(value, (list, tuple, dict)) or _is_queue(value):
            states = state.items[1::2] if isinstance(value, dict) else state.items
            for (at, inner), inside in zip(_parts(value), states, strict=False):
                if not is_simple(inner):
                    self._leaf(inner, number, at, inside, depth + 1)

    def held(self, value: Any, parent: int, step: Step, depth: int) -> None:
        """What a name holds, or an item in it; see `as_held`."""
        if is_simple(value):
            return
        if not isinstance(value, ITEMWISE):
            inside = None if depth > DEEPEST else container_behind(value)
            if inside is not None:
                number = self._add(parent, step, value, not isinstance(value, types.MappingProxyType))
                if container_behind(value) is inside or type(inside) is tuple:
                    self._inside(inside, self._add(number, Behind(), inside, False), depth + 1)
                else:  # a copy, by which nobody changes anything
                    rows = dict.values(inside) if isinstance(inside, dict) else ()
                    self.fixed.extend(v for v in (*_keys(inside), *rows) if not is_simple(v))
            elif is_short_buffer(value):
                self._add(parent, step, value, True)
            else:
                self.fixed.append(value)
        elif depth > DEEPEST or self.room < len(value):
            self.fixed.append(value)
        else:
            self.room -= len(value)
            number = self._add(parent, step, value, not isinstance(value, _IMMUTABLE))
            if not (isinstance(step, Held) and step.alone):
                self._inside(value, number, depth)

    def _inside(self, value: Any, number: int, depth: int) -> None:
        self.fixed.extend(_keys(value))
        if isinstance(value, (set, frozenset)):
            return
        if len(value) > LONG:
            self.fixed.extend(v for _, v in _parts(value) if not is_simple(v))
            return
        for step, item in _parts(value):
            self.held(item, number, step, depth + 1)


def _is_queue(value: Any) -> bool:
    return isinstance(value, ITEMWISE) and not isinstance(value, (set, frozenset))


def _keys(value: Any) -> list[Any]:
    """What a dict or a set finds by its hash, which is compared by identity."""
    keys = dict.keys(value) if isinstance(value, dict) else value if isinstance(value, (set, frozenset)) else ()
    return [key for key in keys if not is_simple(key)]


def _parts(value: Any) -> Iterator[tuple[Step, Any]]:
    if isinstance(value, dict):
        for key in list(dict.keys(value)):
            yield Item(key, dict), dict.__getitem__(value, key)
    elif _is_queue(value):
        base = next(cls for cls in ITEMWISE if isinstance(value, cls))
        for k, item in enumerate(list(value)):
            yield Item(k, base), item
    elif not isinstance(value, (set, frozenset)):
        for k, item in enumerate(optree.tree_flatten_one_level(value, namespace=_torch.pytree_namespace())[0]):
            yield Child(k), item
