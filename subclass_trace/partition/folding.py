"""What of a forward graph depends on weights alone is cut off: it is computed once, ahead.

In: a graph, and which of its inputs are weights. Out: two halves, weights to constants, and the
rest, which takes the constants after its other inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from ..capture.effects import has_effects
from ..capture.graphs import is_random, is_write
from ..plan.descriptors import Input
from ..torch_api.kinds import storage_key
from ..torch_api.operators import OpOverload
from .half import Half

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Folded:
    """A graph in two.

    Attributes:
        first: weights to constants; ``rest``: other inputs, then the constants, to the results.
        taken, live: places among the inputs of the graph that the two take.
        origins: of each constant the weights that it is made of, as places among the inputs.
    """

    first: Half
    rest: Half
    taken: tuple[int, ...]
    live: tuple[int, ...]
    origins: tuple[frozenset[int], ...]


def fold(half: Half, is_weight: Callable[[fx.Node], bool], *, may_grow: bool) -> Folded:
    """Cut a graph whose list of nodes is all there is to run.

    Args:
        may_grow: else constants that need more memory than the weights that they are made of are
        computed in each call, from what is smaller (a quantised weight stays quantised).
    """
    cut = _Cut(half, origins_of(half, is_weight))
    cut.settle(may_grow)
    constants = [n for n in cut.ahead if n.op != "placeholder"]
    for k, n in enumerate(constants):  # it stays where it is, as a weight does
        n.meta["descriptor"] = Input(f"constants[{k}]", kind="state")
    needed = _above(constants)
    number = {n: k for k, n in enumerate(half.inputs)}
    taken = [n for n in half.inputs if n in needed]
    live = [n for n in half.inputs if n not in cut.origins or n in cut.ahead]
    first = Half(half.owner, taken, [n for n in half.body if n in needed], constants, {})
    rest = [n for n in half.body if n in cut.late]
    return Folded(
        first,
        Half(half.owner, [*live, *constants], rest, half.outputs, {}),
        tuple(map(number.__getitem__, taken)),
        tuple(map(number.__getitem__, live)),
        tuple(map(cut.origins.__getitem__, constants)),
    )


def origins_of(half: Half, is_weight: Callable[[fx.Node], bool]) -> dict[fx.Node, frozenset[int]]:
    """The nodes that may be computed ahead, with the weights (places among the inputs) that they
    are made of.

    What shares memory with a result, or with something that is written, may not.
    """
    ends = [n for n in half.outputs if isinstance(n, fx.Node)]
    for node in half.body:
        if is_write(node) or not _is_known(node):
            ends += node.all_input_nodes
    touched = {key for n in ends for t in _tensors(n) if (key := storage_key(t))}

    def may(node: fx.Node) -> bool:
        held = [*_tensors(node)]
        sizes = [n for t in held for n in (*t.shape, *t.stride(), t.storage_offset())]
        keys = {*map(storage_key, held)}
        return bool(held) and all(type(n) is int for n in sizes) and keys.isdisjoint(touched)

    found = {n: frozenset((k,)) for k, n in enumerate(half.inputs) if is_weight(n) and may(n)}
    for node in half.body:
        if may(node) and _is_pure(node) and all(i in found for i in node.all_input_nodes):
            found[node] = frozenset[int]().union(*(found[i] for i in node.all_input_nodes))
    return found


class _Cut:
    """Where a graph is cut.

    Attributes:
        ahead: nodes whose values are there before a call (a weight is, too); ``late``: nodes that a
        call computes.
    """

    def __init__(self, half: Half, origins: dict[fx.Node, frozenset[int]]) -> None:
        self.half, self.origins = half, origins
        self.late = {n for n in half.body if n not in origins}
        wanted = [i for n in half.body if n in self.late for i in n.all_input_nodes]
        wanted += [n for n in half.outputs if isinstance(n, fx.Node)]
        self.ahead = dict.fromkeys(n for n in wanted if n in origins)
        weights = [n for n in half.inputs if n in origins]
        self._memory = {storage_key(n.meta["val"]): _bytes(n) for n in weights}

    def settle(self, may_grow: bool) -> None:
        for node in [*self.ahead]:
            if not self._is_constant(node):
                self._unfold(node)
        waiting = [] if may_grow else self._groups(self.ahead)
        while waiting:
            nodes = waiting.pop()
            if (large := self._too_large(nodes)) is not None:
                rest = dict.fromkeys([*nodes, *self._unfold(large)])
                del rest[large]
                waiting += self._groups(rest)

    def _is_constant(self, node: fx.Node) -> bool:
        return bool(self.origins[node]) and isinstance(node.meta["val"], Tensor)

    def _unfold(self, node: fx.Node) -> list[fx.Node]:
        """Each call computes it, from what is ahead instead."""
        del self.ahead[node]
        self.late.add(node)
        found = list[fx.Node]()
        for i in node.all_input_nodes:
            if i not in self.late and i not in self.ahead:
                self.ahead[i] = None
                found += [i] if self._is_constant(i) else self._unfold(i)
        return found

    def _too_large(self, nodes: Iterable[fx.Node]) -> fx.Node | None:
        """The largest of some values, if they need more memory than the weights that they are made
        of."""
        weights = {k for n in nodes for k in self.origins[n]}
        known = {storage_key(self.half.inputs[k].meta["val"]) for k in weights}
        own = [n for n in nodes if storage_key(n.meta["val"]) not in known]
        kept = known & {storage_key(n.meta["val"]) for n in nodes}
        after = sum(map(_bytes, own)) + sum(map(self._memory.__getitem__, kept))
        is_more = own and after > sum(map(self._memory.__getitem__, known))
        return max(own, key=_bytes) if is_more else None

    def _groups(self, nodes: Iterable[fx.Node]) -> list[list[fx.Node]]:
        """Those that have weights in common."""
        of = dict[int, list[fx.Node]]()  # a weight -> its group
        for node in nodes:
            mine = {id(of[k]): of[k] for k in self.origins[node] if k in of}
            group = [node, *(n for own in mine.values() for n in own)]
            of.update((k, group) for n in group for k in self.origins[n])
        return [*{id(group): group for group in of.values()}.values()]


def _is_known(node: fx.Node) -> bool:
    """Does its schema say what it does to its arguments?"""
    return node.op != "call_function" or (
        isinstance(node.target, OpOverload) or node.target is operator.getitem
    )


def _is_pure(node: fx.Node) -> bool:
    if node.op == "get_attr" or node.target is operator.getitem:
        return True
    known = isinstance(node.target, OpOverload) and "empty" not in str(node.target)
    return known and not (is_write(node) or is_random(node) or has_effects(node.target))


def _above(nodes: list[fx.Node]) -> set[fx.Node]:
    found, waiting = set[fx.Node](), [*nodes]
    while waiting:
        if (node := waiting.pop()) not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _tensors(node: fx.Node) -> Iterator[Tensor]:
    value: Any = node.meta.get("val")
    parts = value if isinstance(value, (list, tuple)) else (value,)
    yield from (t for t in parts if isinstance(t, Tensor))


def _bytes(node: fx.Node) -> int:
    value = node.meta["val"]
    return int(value.numel() * value.element_size())
