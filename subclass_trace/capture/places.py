"""Views that are made by their place in memory: ``as_strided`` counts from the start of the storage, whatever it is called on.

So such a view of an input may show memory that the input does not: that of another input, or of none. What it reads there
is what the graph is called with; what a region writes there, or has written there, needs one graph input for all of it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from .. import _torch
from ..errors import UnsupportedError
from .aliasing import ByteRange, byte_range
from .user_code import frames_text

Tensor = torch.Tensor
aten = torch.ops.aten
#: so many elements are compared one by one
_MOST = 1 << 20


def view_chain(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The tensor that ``node`` is a view of, and the views on the way, last first."""
    chain = []
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        made: Any = node.args[0] if node.target is operator.getitem else node
        target = made.target
        if not isinstance(target, _torch.OpOverload) or not (target.is_view or writes_first(target)):
            break
        if target.is_view:
            chain.append(node)
        node = made.args[0]
    return node, chain


def writes_first(target: Any) -> bool:
    """Does the operation change its first argument, and nothing but that?"""
    first = target._schema.arguments[0] if target._schema.arguments else None
    return bool(first is not None and first.alias_info is not None and first.alias_info.is_write)


def written_nodes(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """(operation, the tensor that it writes), for operations that write values."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, _torch.OpOverload):
            continue
        if not node.target._schema.is_mutable or torch.Tag.inplace_view in node.target.tags:
            continue
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            for target in value if isinstance(value, (list, tuple)) else [value]:
                if written and isinstance(target, fx.Node):
                    yield node, target


def scattered_roots(graph: fx.Graph) -> set[fx.Node]:
    """Tensors with gaps between their elements that views by their place are made of."""
    roots = {root: root.meta["val"] for root in strided_views(graph).values()}
    # One graph input for the memory would not tell the sizes.
    return {
        root
        for root, t in roots.items()
        if not _torch.is_dense(t) and all(type(n) is int for n in (*t.shape, *t.stride()))
    }


def strided_views(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Each ``as_strided`` of the graph, and the tensor whose memory it shows."""
    found = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target is aten.as_strided.default:
            root, _ = view_chain(node)
            mine, theirs = node.meta["val"], root.meta["val"]
            if isinstance(theirs, Tensor) and mine.dtype == theirs.dtype:
                if _torch.storage_ref(mine) == _torch.storage_ref(theirs):
                    found[node] = root
    return found


@dataclass(frozen=True, eq=False)
class _Leaf:
    number: int
    storage: Any
    range: ByteRange
    whole: bool  # all bytes of the range are elements of it


def groups_by_place(
    originals: Sequence[Tensor],
    leaf_primals: Sequence[int],
    recorder: Any,
    groups: Sequence[Sequence[int]],
    values: Sequence[Any],
) -> list[tuple[int, ...]]:
    """Groups of leaves (by position) of which one is written, with those that a view by its place goes across merged.

    ``values``: the nodes that the forward returns; a result that is a view of an input is made without the graph.

    Raises:
        UnsupportedError: a view shows written memory that no input holds.
    """
    reaching = dict(_reaching(recorder.graph, originals, leaf_primals))
    merged = [set(g) for g in groups]
    if not reaching:
        return [tuple(sorted(g)) for g in merged]
    leaves = [
        _Leaf(k, _torch.storage_ref(t), byte_range(t), _torch.is_dense(t))
        for k, t in enumerate(originals)
        if t.layout is torch.strided
    ]
    for node, target in written_nodes(recorder.graph):
        _, chain = view_chain(target)
        if any(v in reaching for v in chain):
            _check_write(node, target.meta["val"], leaves)
    for view, k in reaching.items():
        storage, place = _torch.storage_ref(view.meta["val"]), byte_range(view.meta["val"])
        if not any(s == storage and place.overlaps(r) for s, r in recorder.writes) or not _is_read(view, values):
            continue
        met = {leaf.number for leaf in leaves if leaf.storage == storage and leaf.range.overlaps(place)} | {k}
        _check_inside(view, place, [leaf for leaf in leaves if leaf.number in met])
        for other in [g for g in merged if g & met]:
            met |= other
            merged.remove(other)
        merged.append(met)
    return [tuple(sorted(g)) for g in merged]


def _reaching(
    graph: fx.Graph, originals: Sequence[Tensor], leaf_primals: Sequence[int]
) -> Iterator[tuple[fx.Node, int]]:
    """Views by their place that show more than the input that they are made of, and the number of its leaf."""
    leaf_of = {f"primals_{p + 1}": k for k, p in enumerate(leaf_primals)}
    for view, root in strided_views(graph).items():
        k = leaf_of.get(str(root.target)) if root.op == "placeholder" else None
        if k is not None and not _contains(originals[k], view.meta["val"]):
            yield view, k


def _is_read(view: fx.Node, values: Sequence[Any]) -> bool:
    """Does the graph need what the view shows?"""
    if any(view is v for v in values):
        return True
    return any(
        not getattr(user.target, "is_view", user.target is operator.getitem) or _is_read(user, values)
        for user in view.users
    )


def _contains(leaf: Tensor, view: Tensor) -> bool:
    """Is each element of the view one of the leaf?"""
    outer, inner = byte_range(leaf), byte_range(view)
    if not (_torch.surely(inner.start >= outer.start) and _torch.surely(inner.stop <= outer.stop)):
        return _torch.surely(inner.start == inner.stop)
    if _torch.is_dense(leaf):
        return True
    mine, theirs = _place(leaf), _place(view)
    if mine is None or theirs is None or max(leaf.numel(), view.numel()) > _MOST:
        return False
    with _torch.no_modes():
        places = torch.arange(int(max(outer.stop, inner.stop)) // leaf.element_size())
        return bool(torch.isin(places.as_strided(*theirs), places.as_strided(*mine)).all())


def _place(t: Tensor) -> tuple[list[int], list[int], int] | None:
    """Sizes, strides and offset as numbers, which the trace holds for from then on."""
    rows = [*t.shape], [*t.stride()], [t.storage_offset()]
    if any(isinstance(n, torch.SymInt) and _torch.is_data_dependent(n) for row in rows for n in row):
        return None
    size, stride, (offset,) = ([int(n) for n in row] for row in rows)
    return size, stride, offset


def _check_write(node: fx.Node, written: Tensor, leaves: Sequence[_Leaf]) -> None:
    """Whatever is written must be delivered, and only what inputs hold is."""
    storage, todo = _torch.storage_ref(written), byte_range(written)
    held = [leaf.range for leaf in leaves if leaf.storage == storage and leaf.whole]
    held.sort(key=functools.cmp_to_key(_by_start))
    if not _covered(todo, held):
        raise _outside(node, "writes memory", todo, written)


def _by_start(a: ByteRange, b: ByteRange) -> int:
    return -1 if _torch.surely(a.start < b.start) else 1


def _check_inside(view: fx.Node, place: ByteRange, leaves: Sequence[_Leaf]) -> None:
    start, stop = min(leaf.range.start for leaf in leaves), max(leaf.range.stop for leaf in leaves)
    if not (_torch.surely(start <= place.start) and _torch.surely(place.stop <= stop)):
        raise _outside(view, "shows memory that it has written, and memory", place, view.meta["val"])


def _covered(place: ByteRange, held: Sequence[ByteRange]) -> bool:
    at = place.start
    for r in held:  # in the order of their starts
        if _torch.surely(r.start <= at) and _torch.surely(at < r.stop):
            at = r.stop
    return _torch.surely(at >= place.stop)


def _outside(node: fx.Node, what: str, place: ByteRange, t: Tensor) -> UnsupportedError:
    width = t.element_size()
    return UnsupportedError(
        f"the region {what} outside of its inputs, through as_strided",
        path=frames_text(node),
        expected="as_strided views of the memory of an input, or of several that lie side by side",
        got=f"elements {place.start // width} to {place.stop // width - 1} of a storage, of which the inputs hold a part",
        fix="pass the whole tensor (the base of the view) as an argument",
    )
