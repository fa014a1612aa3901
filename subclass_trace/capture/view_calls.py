"""Views whose operations are repeated one by one, where autograd's function for the whole way says too little.

- Several results that one operation makes (``split``, ``unbind``) have one autograd node in eager mode. Made one by one,
  each would have a node of its own, which fills in dense zeros for the others: DTensor, for one, cannot mix those with its
  own tensors.
- What autograd knows as a view may lie in other memory than its base: DTensor gathers the rows of ``x[:2]`` if they are
  spread. The region computes such contents like any value; at run time autograd is asked for the view, and given them.

See docs/notes/views.md.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .. import _torch
from ..plan import Given, ViewCall, ViewCalls
from ..subclass.flatten import flatten, leaves_of, map_leaves
from ..subclass.spec import Spec, sizes_in
from ..subclass.visit import rebuild
from .inputs import TracedInputs
from .recorder import Recorder
from .replays import fresh, places, share_memory, tried, unseen

Tensor = torch.Tensor


class _Step(NamedTuple):
    """One operation on the way to a view; ``item``: which of its results goes on, if it has several."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Sequence[Tensor]
    item: int | None
    moves: bool  # its result lies in other memory


class RepeatedCalls:
    """Finds the operations of views among ``results``.

    Args:
        emit: adds a forward value and returns its number.
    """

    def __init__(
        self, results: Sequence[Tensor], inputs: TracedInputs, recorder: Recorder, emit: Callable[[Tensor], int]
    ) -> None:
        self._recorder, self._emit = recorder, emit
        self._edges = {id(i.traced): i.edge.node for i in inputs.inputs if i.edge is not None}
        views = [o for o in {id(o): o for o in results}.values() if o._is_view() and o.grad_fn is not None]
        self._result_of = {(o.grad_fn, o.output_nr): o for o in views}
        self._users = collections.Counter(node for o in views for node in self._nodes(o) or ())
        self._calls: dict[Any, ViewCall] = {}
        self._views: dict[int, tuple[Tensor, ViewCalls | None]] = {}
        self._inside: set[Any] | None = None
        self._refuses_zeros: dict[type, bool] = {}
        self._given: dict[int, tuple[Tensor, int]] = {}

    def nodes_of(self, base: Tensor) -> set[Any]:
        """The autograd nodes at which the history of a base begins."""
        return {base.grad_fn, self._edges.get(id(base))} - {None}

    def find(self, o: Tensor, spec: Spec, *, moved: bool) -> ViewCalls | None:
        """The operations that make the view ``o``; None where its base and autograd's function are enough, or all there is.

        Args:
            moved: it does not lie in the memory of its base.
        """
        if id(o) not in self._views:
            nodes = self._nodes(o)
            wanted = nodes is not None and (moved or self._is_joint(nodes))
            self._views[id(o)] = o, self._found(o, spec, nodes or [], moved) if wanted else None
        return self._views[id(o)][1]

    def alone(self, o: Tensor, spec: Spec, *, moved: bool) -> ViewCalls | None:
        """The operations that make the view ``o``, in common with no other."""
        return self._found(o, spec, [], moved)

    def meet_inside(self, o: Tensor, others: Callable[[], Iterable[Any]]) -> bool:
        """Must the gradient of this view meet others in a node that the rest of the region leads to as well?

        So it is where several views are made at once, one of which the region computes with, and where the class refuses
        the dense zeros that a node of their own would fill in for the others: then all of them need the region's node.

        Args:
            others: nodes at which the history of the rest begins.
        """
        nodes = () if _torch.is_fake(o) else [n for n in self._nodes(o) or () if _torch.node_gives_several(n)]
        if not nodes:
            return False
        if self._inside is None:
            self._inside = nodes_behind(others())
        if self._inside.isdisjoint(nodes):
            return False
        if type(o) not in self._refuses_zeros:
            self._refuses_zeros[type(o)] = _backward_alone_fails(o)
        return self._refuses_zeros[type(o)]

    def rest_of(self, results: Iterable[Tensor]) -> Iterator[Any]:
        """Where the histories of results begin, but for the ways from the base of a view to the view."""
        for o in results:
            by_view = o._is_view() and self._nodes(o) is not None
            yield o._base.grad_fn if by_view else o.grad_fn  # type: ignore[union-attr]

    def _found(self, o: Tensor, spec: Spec, nodes: Sequence[Any], moved: bool) -> ViewCalls | None:
        steps = self._steps(o, spec)
        if steps is None or any(s.moves for s in steps) is not moved or len(nodes) not in (0, len(steps)):
            return None
        if any(t.requires_grad for t in leaves_of(o) if t is not o):
            return None  # a wrapper around tensors with a history of their own
        rows, given = [], False
        for k, step in enumerate(steps):
            given, last = given or step.moves, o if k == len(steps) - 1 else None
            node = nodes[k] if nodes else None
            call = self._calls.get(node) or self._call(step, node, last, given)
            if node is not None:
                self._calls[node] = call
            rows.append((call, step.item))
        return ViewCalls(tuple(rows))

    def _nodes(self, o: Tensor) -> list[Any] | None:
        """The autograd nodes from the base to the view ``o``, none without a history; None if that is no straight way."""
        found: list[Any] = []
        node, ends = o.grad_fn, self.nodes_of(o._base) if o.grad_fn is not None else set()  # type: ignore[arg-type]
        while node is not None and node not in ends:
            found.append(node)
            following = [n for n, _ in node.next_functions if n is not None]
            node = following[0] if len(following) == 1 and not _torch.is_custom_node(node) else None
        return found[::-1] if o.grad_fn is None or node is not None else None

    def _is_joint(self, nodes: Sequence[Any]) -> bool:
        """Do several results come of one operation?"""
        return any(self._users[n] > 1 and _torch.node_gives_several(n) for n in nodes)

    def _steps(self, o: Tensor, spec: Spec) -> list[_Step] | None:
        """The operations, if they give a view that is laid out as ``spec`` says."""
        with unseen(self._recorder):
            at: Any = fresh(o._base, self._recorder)  # type: ignore[arg-type]
            seen = tried(lambda base: _torch.calls_seen(_torch.view_function(o), base), at)
            if seen is None or places(flatten(seen[1])[1]) != places(spec):
                return None
            calls, last = seen
            steps = []
            for k, (function, args, kwargs, out) in enumerate(calls):
                results = [out] if isinstance(out, Tensor) else list(out)
                on = last if k == len(calls) - 1 else calls[k + 1][1][0]
                place = next((n for n, t in enumerate(results) if t is on), None)
                rest = (*args[1:], *kwargs.values())
                if args[0] is not at or place is None or any(isinstance(a, Tensor) for a in rest):
                    return None
                moves = not share_memory(leaves_of(on), leaves_of(at))
                item = None if isinstance(out, Tensor) else place
                steps.append(_Step(function, args[1:], kwargs, results, item, moves))
                at = on
        return steps

    def _call(self, step: _Step, node: Any, last: Tensor | None, given: bool) -> ViewCall:
        numbers = _torch.pytree.tree_leaves((step.args, step.kwargs))
        sized = any(isinstance(n, torch.SymInt) for n in numbers)
        if not given:
            return ViewCall(step.function, step.args, step.kwargs, None, sized)
        rows = []
        for k, made in enumerate(step.results):
            mine = last if k == (step.item or 0) else None
            result = self._result_of.get((node, k), mine)
            rows.append(Given(None, flatten(made)[1]) if result is None else self._gives(result))
        return ViewCall(step.function, step.args, step.kwargs, tuple(rows), sized)

    def _gives(self, result: Tensor) -> Given:
        """The contents of a result as a forward value, without its history."""
        leaves, spec = flatten(result)
        if id(result) not in self._given:
            if leaves[0] is result:
                bare = result.detach()
            else:
                with torch.no_grad():  # traced: a class may keep other tensors than it is given
                    bare = rebuild(spec, iter(leaves))
                    bare = bare.requires_grad_(False) if bare.requires_grad else bare
            self._given[id(result)] = result, self._emit(bare)
        return Given(self._given[id(result)][1], spec)


def sizes_of(way: ViewCalls) -> Iterator[Any]:
    """The numbers that the run time needs to repeat these calls."""
    for call, _ in way.calls:
        yield from _torch.pytree.tree_leaves((call.args, call.kwargs))
        for row in call.given or ():
            yield from sizes_in(row.spec)


def nodes_behind(roots: Iterable[Any]) -> set[Any]:
    """All autograd nodes that gradients of ``roots`` reach."""
    todo, found = [n for n in roots if n is not None], set[Any]()
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += [n for n, _ in node.next_functions if n is not None]
    return found


def _backward_alone_fails(o: Tensor) -> bool:
    """Does a gradient for this view alone fail, as it does in eager where the class cannot mix it with dense zeros?"""
    with _torch.without_tracing(), torch.no_grad():
        tangent = map_leaves(torch.empty_like, o)
        if tangent.requires_grad:
            tangent.requires_grad_(False)
        try:
            edge = torch.autograd.graph.get_gradient_edge(o._base)  # type: ignore[arg-type]
            torch.autograd.grad([o], [edge], [tangent], retain_graph=True, allow_unused=True)
        except Exception:  # whatever the class raises
            return True
    return False
