"""Branches on values that a region finds in small tensors of its state:
``if self.n_averaged == 0``, a count of steps.

The trace takes the branch that its call takes. At the front of the program, before anything is
written, the condition is computed again, of the state as the call finds it, and checked: where it
is another one, that program is left, and another specialization serves the call. So the operations
that lead from the state to the condition run twice, on clones where they write. They must be few,
and on tensors with one element.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..torch_api.assertions import check as torch_check
from ..torch_api.kinds import SYM_TYPES, storage_ref
from ..torch_api.modes import disable_autocast, innermost_tracer, no_modes, no_overrides
from ..torch_api.operators import OpOverload
from ..torch_api.symbols import is_known
from .effects import has_effects
from .graphs import is_random, is_write
from .inputs import Inputs
from .writes import written_arguments

Tensor = torch.Tensor
#: graph input -> the traced tensor, and the one of the call
_State = dict[fx.Node, tuple[Tensor, Tensor]]
_MOST_NODES = 1000


class _Unknown(Exception):
    """The condition depends on more than small state."""


class StateBranches:
    """What one capture has decided by its state."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, self.recorder = inputs, inputs.session.recorder
        self._end: fx.Node | None = None  # of the front
        self._front: dict[fx.Node, Any] = {}  # node -> what it is there
        self._made: dict[fx.Node, fx.Node] = {}  # node -> the first one that was made for it
        self._own: set[fx.Node] = set()  # all nodes of the front

    def of_tensor(self, t: Tensor) -> bool | None:
        """The truth of a traced tensor, which every call checks from now on; None where state does
        not tell it."""
        node = self.recorder.node_of(t) if self.recorder.knows(t) else None
        if not isinstance(node, fx.Node) or (found := self._values([node])) is None:
            return None
        truth, (again,) = bool(found[0]), self._at_front([node])
        self._write(lambda: torch_check(again, truth, False, True))
        return truth

    def of_numbers(self, compare: Callable[..., int], numbers: Sequence[Any]) -> bool | None:
        """The truth of ``compare(*numbers)``, of numbers from inside of tensors; see
        `of_tensor`."""
        given = [self.recorder.node_of(n) for n in numbers]
        nodes = [n for n in given if isinstance(n, fx.Node)]
        if (found := self._values(nodes)) is None:
            return None
        values, fronts = iter(found), iter(self._at_front(nodes))
        truth = bool(compare(*(next(values) if isinstance(n, fx.Node) else n for n in given)))
        again = tuple(next(fronts) if isinstance(n, fx.Node) else n for n in given)

        def check() -> None:
            number = self.recorder.step(compare, again, True)
            torch_check(torch.scalar_tensor(number, dtype=torch.int64), truth, False, True)

        self._write(check)
        return truth

    # ---- what leads to it
    def _values(self, nodes: list[fx.Node]) -> list[Any] | None:
        """What these nodes are in the call that is traced, tensors as truths."""
        if self.recorder.phase.sealed or innermost_tracer() is not self.recorder:
            return None
        state = self._state()
        known: dict[fx.Node, Any] = {}
        try:
            steps = self._leading_to(nodes, state)
        except _Unknown:
            return None
        with (
            no_modes(),
            no_overrides(),
            disable_autocast(),
            torch.no_grad(),
        ):
            for node in steps:
                known[node] = self._computed(node, known, state)
            return [bool(t) if isinstance(t := known[n], Tensor) else t for n in nodes]

    def _state(self) -> _State:
        """The graph inputs that are small tensors of the state: traced, and the tensors
        themselves."""
        inputs = self.inputs
        leaves = {k for row in inputs.rows if row.descriptor.is_static for k in row.leaves}
        taken = collections.Counter(map(storage_ref, filter(_is_strided, inputs.originals)))
        found = {}
        for k in leaves:
            fake = inputs.leaf_values[k]
            if _is_small(fake) and taken[storage_ref(fake)] == 1:
                found[self.recorder.node_of(fake)] = fake, inputs.real_leaf(k)
        return found

    def _leading_to(self, nodes: list[fx.Node], state: Container[fx.Node]) -> list[fx.Node]:
        """The nodes that these are computed of, with what writes to the memory that they read, in
        order.

        Raises:
            _Unknown: there is other than small state among them.
        """
        needed, memory, steps = set(nodes), set[Any](), list[fx.Node]()
        for node in reversed(self.recorder.graph.nodes):
            if node in self._own:
                continue
            if node not in needed and is_write(node):
                written = written_arguments(node.target, node.args, node.kwargs, fx.Node)
                if any(storage_ref(t.meta["val"]) in memory for t in written):
                    needed.add(node)
            if node in needed:
                if node not in state and not _is_step(node):
                    raise _Unknown
                steps.append(node)
                needed.update(node.all_input_nodes)
                read = (n.meta.get("val") for n in (node, *node.all_input_nodes))
                memory |= {storage_ref(t) for value in read for t in _tensors(value)}
        if len(steps) > _MOST_NODES or not any(n in state for n in steps):
            raise _Unknown
        return steps[::-1]

    def _computed(self, node: fx.Node, known: dict[fx.Node, Any], state: _State) -> Any:
        if node in state:
            return state[node][1].detach().clone()
        if node.op == "get_attr":
            return getattr(self.recorder.root, str(node.target)).clone()
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    # ---- the front of the program
    def _at_front(self, nodes: list[fx.Node]) -> list[Any]:
        """The same values at the front of the graph, of the state as a call finds it: in the order
        in which they were made."""
        graph, state = self.recorder.graph, self._state()
        order = {node: k for k, node in enumerate(n for n in graph.nodes if n not in self._own)}
        if self._end is None:
            self._end = next(n for n in graph.nodes if n.op != "placeholder")
        for node in self._leading_to(nodes, state):
            if node not in self._front:
                later = [n for n in self._made if order[n] > order[node]]
                mark = self._made[min(later, key=order.__getitem__)] if later else self._end
                first = self._write(functools.partial(self._repeat, node, state), mark)
                if first is not mark:
                    self._made[node] = first
        return [self._front[n] for n in nodes]

    def _repeat(self, node: fx.Node, state: _State) -> None:
        self._front[node] = self._again(node, state)

    def _again(self, node: fx.Node, state: _State) -> Any:
        if node in state:
            return torch.clone(state[node][0])
        if node.op == "get_attr":
            return torch.clone(self.recorder.constant_again(node))
        target: Any = node.target
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._front.__getitem__)
        if node.meta.get("is_step"):
            return self.recorder.step(target, args, isinstance(node.meta["val"], torch.SymInt))
        return target(*args, **kwargs)

    def _write(self, write: Callable[[], Any], mark: fx.Node | None = None) -> fx.Node:
        """Write nodes in front of this one, at the end of the front; the first of them."""
        mark = mark or self._end
        assert mark is not None
        before = mark.prev
        with self.recorder.writing_before(mark):
            write()
        first = made = before.next
        while made is not mark:
            self._own.add(made)
            made = made.next
        return first


def _is_step(node: fx.Node) -> bool:
    """Is it a small thing that can be computed twice?"""
    value = node.meta.get("val")
    if node.op == "get_attr":
        return isinstance(value, Tensor) and _is_small(value)
    if node.op != "call_function" or has_effects(node.target) or is_random(node):
        return False
    # what the call tells without tensors is computed where it is needed
    if isinstance(value, SYM_TYPES):
        return not is_known(value) and all(map(_is_small, _tensors_of(node)))
    known = isinstance(node.target, OpOverload) or node.target is operator.getitem
    return known and all(map(_is_small, (*_tensors(value), *_tensors_of(node))))


def _tensors_of(node: fx.Node) -> list[Tensor]:
    return [t for n in node.all_input_nodes for t in _tensors(n.meta.get("val"))]


def _tensors(value: Any) -> list[Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, Tensor)]


def _is_strided(t: Tensor) -> bool:
    return t.layout is torch.strided


def _is_small(t: Tensor) -> bool:
    return _is_strided(t) and all(type(n) is int and n == 1 for n in t.shape)
