"""Writes put back in place: a functional graph is run without a copy of each tensor that it changes one row of.

Capture makes graphs functional, so ``cache[:, 5] = x`` is a `select_scatter` that makes a whole new tensor, which is then
copied into ``cache``. For a program that we run op by op, this pass finds the writes that may be done in the old value's
own memory: ``cache.select(1, 5).copy_(x)``. The graph stays as it is, and says what the program must give.

    >>> graph = torch.fx.Graph()
    >>> cache, x = graph.placeholder("cache"), graph.placeholder("x")
    >>> cache.meta["val"], x.meta["val"] = torch.zeros(2, 3), torch.ones(3)
    >>> row = graph.call_function(torch.ops.aten.select.int, (cache, 0, 1))
    >>> new = graph.call_function(torch.ops.aten.copy.default, (row, x))
    >>> after = graph.call_function(torch.ops.aten.select_scatter.default, (cache, new, 0, 1))
    >>> row.meta["val"], new.meta["val"], after.meta["val"] = torch.zeros(2, 3)[1], torch.ones(3), torch.zeros(2, 3)
    >>> found = in_place([row, new, after], [after], {}, {}, [cache, x], {0: 0})
    >>> found.body, found.calls[after].target, found.delivered
    ([select_int, select_scatter_default], <OpOverload(op='aten.copy_', overload='default')>, {0: 1})

What is certain, and why, is in docs/notes/in_place.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from .. import _torch
from .in_place_values import (
    FILLS,
    WRITES,
    Values,
    in_place_form,
    is_scatter,
    lies_as_before,
    same_layout,
    same_offset,
    several_results,
    version_moves,
    view_of_scatter,
)
from .round_trips import Call, Merged, final, inputs_of

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Written:
    """A result whose contents lie in an input already: that is what is returned."""

    node: fx.Node


@dataclass(frozen=True, eq=False)
class Fresh:
    """A result that was written in place, in memory of the program's own: for the caller it is as new."""

    node: fx.Node


def as_new(t: torch.Tensor) -> torch.Tensor:
    """The same tensor, with a version counter that says that nobody wrote to it."""
    if not t.is_inference():
        _torch.set_version(t, 0)
    return t


@dataclass(frozen=True, eq=False)
class Lowered:
    """A program with its writes in place.

    Attributes:
        body, results, merged, calls: as in `graph_code.Listing`.
        delivered: input -> by how much its version counter moves. Its new contents are there and need no copy.
    """

    body: list[fx.Node]
    results: list[Any]
    merged: Merged
    calls: Mapping[fx.Node, Call]
    delivered: Mapping[int, int]


@dataclass(frozen=True, eq=False)
class _Step:
    """One value that is made in the memory of another one.

    ``node`` is what is run: ``made`` itself, or the operation of several results of which ``made`` is number ``item``.
    """

    node: fx.Node
    made: fx.Node
    over: fx.Node
    item: int | None = None


@dataclass(frozen=True, eq=False)
class _Place:
    """A part of ``base``: ``target(base, *args)``."""

    base: fx.Node | _Place
    target: Any
    args: tuple[Any, ...]


def in_place(
    body: list[fx.Node],
    results: list[Any],
    merged: Merged,
    calls: Mapping[fx.Node, Call],
    inputs: Sequence[fx.Node],
    targets: Mapping[int, int],
) -> Lowered:
    """The same program, with writes in place where nothing can tell the difference.

    Args:
        body, results, merged, calls: of the program, after every other pass.
        inputs: nodes whose values are passed. None of them may be written, but for those of ``targets``.
        targets: number of a result -> number of the input whose new contents it is, and nothing else.
    """
    if targets or any(map(_is_write, body)):
        values = Values(body, results, merged, calls, inputs)
        if values.is_functional:
            return _Pass(values, targets).run()
    return Lowered(body, results, merged, calls, {})


def _is_write(node: fx.Node) -> bool:
    return node.target in WRITES or is_scatter(node)


class _Pass:
    def __init__(self, values: Values, targets: Mapping[int, int]) -> None:
        self.values, self.targets = values, targets
        self.calls, self.merged = dict(values.calls), dict(values.merged)
        self.gone: set[fx.Node] = set()
        self.memory: dict[fx.Node, fx.Node] = {}  # a value -> what it was made in the memory of
        self.overwritten: dict[fx.Node, int] = {}  # a value -> where in the body
        self.writes: dict[fx.Node, int] = {}  # an input -> by how much its version counter moves

    def run(self) -> Lowered:
        v = self.values
        results = list(v.results)
        chains = self._chains()
        steps = {s.made: s for chain in chains.values() for s in chain}
        rows = sorted(steps.values(), key=lambda s: v.place[s.node])
        self.overwritten = {old: v.place[s.node] for s in rows for old in v.memories(s.over)}
        done: set[fx.Node] = set()
        for step in rows:
            if step.node not in done:
                self._commit(step, [s for s in rows if s.node is step.node])
                done.add(step.node)
        for place, number in self.targets.items():
            if number in chains:
                results[place] = Written(v.inputs[number])
        for node in v.body:
            if node not in done and node not in self.gone and _is_write(node):
                self._within(node)
        for place, result in enumerate(results):
            if isinstance(result, fx.Node) and any(m in self.memory for m in v.memories(result)):
                results[place] = Fresh(result)
        body = [n for n in v.body if n not in self.gone]
        made = {a: self._memory(a) for a in self.memory}
        self.merged = {a: made.get(b, b) for a, b in self.merged.items()} | made
        body = self._without_unread_views(body, results)
        delivered = {number: self.writes.get(v.inputs[number], 0) for number in chains}
        return Lowered(body, results, self.merged, self.calls, delivered)

    def _without_unread_views(self, body: list[fx.Node], results: list[Any]) -> list[fx.Node]:
        """The calls say more than the graph about what is read."""
        used = {final(n, self.merged) for r in results for n in [getattr(r, "node", r)] if isinstance(n, fx.Node)}
        live = []
        for node in reversed(body):
            if node in used or not self.values.is_view(node):
                live.append(node)
                used |= {final(n, self.merged) for n in inputs_of(node, self.calls)}
        return live[::-1]

    def _memory(self, node: fx.Node) -> fx.Node:
        """What has the value of a node now."""
        while node in self.memory:
            node = self.values.final(self.memory[node])
        return node

    def _buffer(self, root: fx.Node) -> fx.Node:
        """In whose memory a value is made in the end."""
        while root in self.memory:
            found = self.values.root(self.memory[root])
            assert found is not None
            root = found
        return root

    # -------------------------------------------------------------------------------------- new contents of inputs
    def _chains(self) -> dict[int, list[_Step]]:
        """For each input that can be written in place: the steps from its old to its new contents."""
        wanted: dict[int, list[int]] = {}
        for place, number in self.targets.items():
            wanted.setdefault(number, []).append(place)
        chains = {number: chain for number, places in wanted.items() if (chain := self._chain(number, places))}
        while True:  # an operation on several tensors is in place for all of them or none
            claimed: dict[fx.Node, set[int]] = {}
            for step in (s for chain in chains.values() for s in chain if s.item is not None):
                claimed.setdefault(step.node, set()).add(step.item)  # type: ignore[arg-type]
            failed = [
                number
                for number, chain in chains.items()
                if any(s.item is not None and claimed[s.node] != several_results(s.node)[1].keys() for s in chain)
            ]
            if not failed:
                return chains
            for number in failed:
                del chains[number]

    def _chain(self, number: int, places: list[int]) -> list[_Step] | None:
        v, start = self.values, self.values.inputs[number]
        ends = {v.final(r) if isinstance(r := v.results[k], fx.Node) else None for k in places}
        end = ends.pop()
        if ends or end is None:
            return None
        chain: list[_Step] = []
        node, allowed = end, set(places)
        while (root := v.root(node)) is not start:
            if root is None or not v.covers(node, root) or not v.is_read_at_end(root) <= allowed:
                return None
            step = self._step(root, strides=False)
            if step is None or not self._keeps_places(step) or not self._is_free(step):
                return None
            chain.append(step)
            node, allowed = step.over, set()
        if not chain or not v.covers(node, start) or v.is_read_at_end(start):
            return None
        return chain[::-1] if self._ends_there(chain, end, start) else None

    def _keeps_places(self, step: _Step) -> bool:
        """May everybody who looks at the new value look at the old one's memory?

        The new value of a tensor that is a part of a larger one is laid out without gaps. It may keep the gaps if nothing
        but the order of dimensions matters to those who view it.
        """
        v = self.values
        if v.is_read_by_offset(step.made) or v.may_overlap(step.over):
            return False
        return same_layout(step.made, step.over) or not v.is_viewed_by_strides(step.made)

    def _ends_there(self, chain: list[_Step], end: fx.Node, start: fx.Node) -> bool:
        """Does the last value, made in the memory of the first one, lie there as the first one does?"""
        if all(same_layout(step.made, step.over) for step in chain):
            return same_layout(end, start)
        ways = [self.values.views_to(node) for node in (*(step.over for step in chain), end)]
        return lies_as_before(start.meta["val"], [view for way in ways for view in way])

    def _step(self, made: fx.Node, *, strides: bool = True) -> _Step | None:
        v = self.values
        if v.is_item(made):
            node, item = v.final(made.args[0]), made.args[1]  # type: ignore[arg-type]
            over = several_results(node)[1].get(item)  # type: ignore[arg-type]
            if not isinstance(over, fx.Node) or not same_layout(made, over, strides=strides):
                return None
            return _Step(node, made, over, item)  # type: ignore[arg-type]
        if made not in v.place or made in v.calls or not made.args or not isinstance(made.args[0], fx.Node):
            return None
        known = is_scatter(made) or in_place_form(made) is not None
        if not known or not same_layout(made, made.args[0], strides=strides):
            return None
        return _Step(made, made, made.args[0])

    def _is_free(self, step: _Step) -> bool:
        """Is the old value read no more once the step is done, and by the step itself in no other way?"""
        v = self.values
        old = v.root(step.over)
        if old is None or v.is_read_at_end(old) or v.last_read(old) > v.place[step.node]:
            return False
        if step.item is not None:
            return v.reads_once(step.node, step.over)
        if is_scatter(step.node):
            return self._put(step.node.args[1], _part(step.node), step, []) is not None
        return self._reads_apart(step.node, old, step.over)

    def _reads_apart(self, node: fx.Node, old: fx.Node, over: fx.Node) -> bool:
        """Does no argument but the first lie in the memory of ``old``? A pointwise operation may read the same place."""
        v, pointwise = self.values, torch.Tag.pointwise in node.target.tags  # type: ignore[union-attr]
        return all(
            old not in v.memories(n) or (pointwise and v.final(n) is v.final(over)) for n in _nodes(node.args[1:], node)
        )

    # -------------------------------------------------------------------------------------- values of the program
    def _within(self, node: fx.Node) -> None:
        """A write to a value that the program has made."""
        v, step = self.values, self._step(node)
        if step is None or (old := v.root(step.over)) is None or not self._is_own(old) or v.may_overlap(step.over):
            return
        if v.is_read_at_end(node) and self._memory(v.final(step.over)) is not self._buffer(old):
            return  # a result is a tensor of its own, no view
        if not same_offset(step.made, step.over):  # parts may be made by their place in the storage
            return
        if self._is_free(step):
            self.overwritten[old] = v.place[node]
            self._commit(step, [step])

    def _is_own(self, root: fx.Node) -> bool:
        """Does the memory belong to the program?"""
        return self.values.is_made_here(self._buffer(root))

    # -------------------------------------------------------------------------------------- the calls
    def _commit(self, step: _Step, all_of_it: list[_Step]) -> None:
        v, node = self.values, step.node
        gone: list[fx.Node] = []
        if step.item is not None:
            written = [Call(several_results(node)[0], node.args, node.kwargs)]
            gone += [s.made for s in all_of_it]
        elif is_scatter(node):
            found = self._put(node.args[1], _part(node), step, gone)
            assert found is not None
            written = found
        else:
            written = [Call(in_place_form(node), node.args, node.kwargs)]
        for call in written:
            v.note_reads(call, v.place[node])
        for s in all_of_it:
            self.memory[s.made] = s.over
            self._count(v.root(s.over), sum(version_moves(c.target) for c in written))
        self.gone.update(gone)
        if written:
            first, *rest = written
            self.calls[node] = Call(first.target, first.args, first.kwargs, then=tuple(rest))
        else:
            self.gone.add(node)

    def _count(self, root: fx.Node | None, writes: int) -> None:
        assert root is not None
        base = self._buffer(root)
        self.writes[base] = self.writes.get(base, 0) + writes

    def _put(self, node: Any, place: _Place, step: _Step, gone: list[fx.Node]) -> list[Call] | None:
        """The calls that make ``place`` hold the value of ``node``; ``gone`` gets what need not be run any more.

        None where that cannot be: the value lies in another part of the memory that is written.
        """
        if self._lies_in(node, place):
            return []
        if self.values.has_one_reader(node):
            count = len(gone)
            made = self._make(node, place, step, gone)
            if made is not None:
                gone.append(node)
                return made
            del gone[count:]
        if self.values.root(step.over) in self.values.memories(node):
            return None
        first = node.args[0] if isinstance(node, fx.Node) and node.args and not node.kwargs else None
        where = first if self._lies_in(first, place) else self._text(place)
        return [Call(aten.copy_.default, (where, node))]

    def _make(self, node: fx.Node, place: _Place, step: _Step, gone: list[fx.Node]) -> list[Call] | None:
        """The calls that compute ``node`` in ``place``, where its first argument lies already."""
        v, old = self.values, self.values.root(step.over)
        assert old is not None
        if node in v.calls or not node.args or not isinstance(node.args[0], fx.Node):
            return None
        over = node.args[0]
        if node.meta["val"].dtype != step.made.meta["val"].dtype:
            return None
        if is_scatter(node):
            before = self._old(over, place, step, gone)
            inside = None if before is None else self._put(node.args[1], _part(node, place), step, gone)
            return None if before is None or inside is None else [*before, *inside]
        form = in_place_form(node)
        if form is None or not same_layout(node, over, strides=False):
            return None
        if node.target is aten.copy.default and self._lies_in(node.args[1], place):
            return []
        before = [] if node.target in FILLS else self._old(over, place, step, gone)
        rest = list(_nodes(node.args[1:], node))
        if before is None or not all(self._may_read_later(n, old, v.place[step.node]) for n in rest):
            return None
        where = over if self._lies_in(over, place) else self._text(place)
        return [*before, Call(form, (where, *node.args[1:]), node.kwargs)]

    def _old(self, node: fx.Node, place: _Place, step: _Step, gone: list[fx.Node]) -> list[Call] | None:
        """As `_put`, where it takes no copy."""
        if self._lies_in(node, place):
            return []
        if not self.values.has_one_reader(node):
            return None
        made = self._make(node, place, step, gone)
        if made is not None:
            gone.append(node)
        return made

    def _may_read_later(self, node: fx.Node, old: fx.Node, when: int) -> bool:
        """Does it hold at that place in the program what it holds now, and is it no part of what is being written?"""
        memories = self.values.memories(node)
        return old not in memories and all(self.overwritten.get(m, when) >= when for m in memories)

    def _lies_in(self, node: Any, place: _Place) -> bool:
        """Is it the view that ``place`` is?"""
        bottom: Any = place
        while isinstance(bottom, _Place):
            bottom = bottom.base
        v = self.values
        if not isinstance(node, fx.Node) or v.root(node) is None or v.root(node) is not v.root(bottom):
            return False
        return v.path(node) == self._path(place)

    def _path(self, place: fx.Node | _Place) -> tuple[Any, tuple[Any, ...]]:
        if isinstance(place, fx.Node):
            return self.values.path(place)
        base, views = self._path(place.base)
        example = place.base if isinstance(place.base, fx.Node) else None
        return base, (*views, self.values.view_key(place.target, place.args, example))

    def _text(self, place: fx.Node | _Place) -> Any:
        """The part as an argument: a view that is made on the way."""
        return place if isinstance(place, fx.Node) else Call(place.target, (self._text(place.base), *place.args))


def _part(scatter: fx.Node, base: _Place | None = None) -> _Place:
    target, args = view_of_scatter(scatter)
    return _Place(scatter.args[0] if base is None else base, target, args)  # type: ignore[arg-type]


def _nodes(args: Any, node: fx.Node) -> Iterator[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg((args, dict(node.kwargs)), found.append)
    return iter(found)
