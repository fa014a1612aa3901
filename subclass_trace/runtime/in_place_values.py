"""What lies where in a program, who reads it until when, and which operations have a form in place: for `in_place`.

A value's *root* is the value whose memory it lies in: itself, unless it is a view. In doubt a value lies in several:
what an operation returns that is not known may share memory with all that it takes.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx

from .. import _torch
from .._torch.authors import is_composite
from .round_trips import Call, Merged, final, inputs_of

aten = torch.ops.aten
_SCATTERS: dict[Any, Any] = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.diagonal_scatter.default: aten.diagonal.default,
    aten.as_strided_scatter.default: aten.as_strided.default,
}
#: the old contents of their first argument do not matter
FILLS = (aten.copy.default, aten.fill.Scalar, aten.fill.Tensor, aten.zero.default)
#: a step of these on a value of the program itself saves a copy; a pointwise operation would save an allocation alone
WRITES = (
    *FILLS,
    aten.index_put.default,
    aten.index_copy.default,
    aten.index_add.default,
    aten.index_fill.int_Scalar,
    aten.index_fill.int_Tensor,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter_add.default,
    aten.scatter_reduce.two,
)
#: operations that write where an index says, or all of it; their form in place has the same arguments
_WITH_FORM = (*WRITES, aten.masked_fill.Tensor)
#: views that can be made of a tensor whatever its strides are
_OF_ANY_STRIDES = frozenset(
    ("select", "slice", "t", "transpose", "permute", "unsqueeze", "squeeze", "diagonal", "expand", "alias", "detach")
)
#: (form in place, number of a result -> number of the argument that is written)
_NORMALIZATIONS: dict[Any, tuple[Any, dict[int, int]]] = {
    aten._native_batch_norm_legit_functional.default: (aten._native_batch_norm_legit.default, {3: 3, 4: 4}),
    aten._batch_norm_with_update_functional.default: (aten._batch_norm_with_update.default, {4: 3, 5: 4}),
}


class Values:
    """The values of a program, as `in_place` sees them. Arguments as there."""

    def __init__(
        self,
        body: list[fx.Node],
        results: list[Any],
        merged: Merged,
        calls: Mapping[fx.Node, Call],
        inputs: Sequence[fx.Node],
    ) -> None:
        self.body, self.results, self.merged, self.calls, self.inputs = body, results, merged, calls, list(inputs)
        self.place = {node: k for k, node in enumerate(body)}
        self.is_functional = not any(_writes(self._target(n)) for n in body)
        self._memories: dict[fx.Node, frozenset[fx.Node]] = {n: frozenset((n,)) for n in inputs}
        self._readers: dict[fx.Node, int] = {}
        self._last_read: dict[fx.Node, int] = {}
        self._at_end: dict[fx.Node, set[int]] = {}
        self._by_offset: set[fx.Node] = set()  # parts of these are made by their place in the storage
        self._by_strides: set[fx.Node] = set()  # views of these need their strides
        for k, node in enumerate(body):
            self._add(node, k)
        for k, result in enumerate(results):
            if isinstance(result, fx.Node):
                self._read(result)
                for root in self.memories(result):
                    self._at_end.setdefault(root, set()).add(k)

    # -------------------------------------------------------------------------------------- memory
    def final(self, node: fx.Node) -> fx.Node:
        """The node that has its value."""
        return final(node, self.merged)

    def memories(self, node: object) -> frozenset[fx.Node]:
        """The values whose memory it may lie in."""
        return self._memories.get(self.final(node), frozenset()) if isinstance(node, fx.Node) else frozenset()

    def root(self, node: fx.Node) -> fx.Node | None:
        """The one value whose memory it lies in; None where there may be several."""
        found = self.memories(node)
        return next(iter(found)) if len(found) == 1 else None

    def path(self, node: fx.Node) -> tuple[fx.Node | None, tuple[Any, ...]]:
        """The root, and the views that lead from there to it."""
        views = self.views_to(node)
        base = views[0].args[0] if views else node
        keys = (self.view_key(n.target, n.args[1:], n.args[0]) if not n.kwargs else n for n in views)  # type: ignore[arg-type]
        return self.final(base), tuple(keys)  # type: ignore[arg-type]

    def views_to(self, node: fx.Node) -> list[fx.Node]:
        """The views that lead from its root to it."""
        views = []
        while self.is_view(node) and isinstance(node.args[0], fx.Node):
            views.append(node)
            node = node.args[0]
        return views[::-1]

    def view_key(self, target: Any, args: tuple[Any, ...], base: fx.Node | None) -> tuple[Any, ...]:
        """A view operation with its arguments in one form. ``base`` is what it is a view of, where that is a node."""
        shape = None if base is None else base.meta["val"].shape
        found: list[Any] = [self._key(a) for a in args]
        if target is aten.select.int:
            return (target, *_positions(shape, found[0], found[1]))
        if target is aten.slice.Tensor:
            found += [0, None, None, 1][len(found) :]
            dim, start, end, step = found
            dim, start = _positions(shape, dim, 0 if start is None else start)
            _, end = _positions(shape, dim, end)
            size = None if shape is None or type(dim) is not int else shape[dim]
            past = end is None or (type(end) is int and type(size) is int and end >= size) or end == 2**63 - 1
            return (target, dim, start, "end" if past else end, step)
        if target is aten.diagonal.default:
            return (target, *found, *(0, 0, 1)[len(found) :])
        return (target, *found)

    def _key(self, arg: Any) -> Any:
        if isinstance(arg, (list, tuple)):
            return tuple(map(self._key, arg))
        return self.final(arg) if isinstance(arg, fx.Node) else arg

    def covers(self, node: fx.Node, root: fx.Node) -> bool:
        """Has a view as many elements as what it is a view of?"""
        if node is root:
            return True
        if not isinstance(root.meta["val"], torch.Tensor):  # one of several results of an operation
            return False
        a, b = node.meta["val"].shape, root.meta["val"].shape
        if all(type(n) is int for n in (*a, *b)):
            return bool(math.prod(a) == math.prod(b))
        return _same_numbers(a, b)

    def is_made_here(self, root: fx.Node | None) -> bool:
        """Is it a tensor that the program makes by an operation of torch's?"""
        if root is None or root not in self.place or root.op != "call_function":
            return False
        val = root.meta.get("val")
        known = isinstance(root.target, _torch.OpOverload) and root.target.namespace == "aten"
        return known and isinstance(val, torch.Tensor) and val.layout is torch.strided and not val._is_zerotensor()

    def may_overlap(self, node: fx.Node) -> bool:
        """May two elements of it lie in one place?"""
        val, reach = node.meta["val"], 0
        rows = [(s, n) for s, n in zip(val.stride(), val.shape, strict=True) if type(n) is not int or n > 1]
        if not all(type(s) is int and type(n) is int for s, n in rows):
            return any(type(s) is int and s == 0 for s, _ in rows)
        for stride, size in sorted(rows):
            if stride <= reach:
                return True
            reach += stride * (size - 1)
        return False

    def is_read_by_offset(self, *roots: fx.Node) -> bool:
        """Is a part of any of them made by its place in the storage? Then they must lie where the graph has them."""
        return not self._by_offset.isdisjoint(roots)

    def is_viewed_by_strides(self, root: fx.Node) -> bool:
        """Is there a view of it that not every tensor of its sizes has (``view``)?"""
        return root in self._by_strides

    def is_item(self, node: fx.Node) -> bool:
        """Is it one of several results of an operation that has a form in place?"""
        if node.target is not operator.getitem or node not in self.place or not isinstance(node.args[0], fx.Node):
            return False
        source = self.final(node.args[0])
        return source in self.place and source not in self.calls and bool(several_results(source)[1])

    # -------------------------------------------------------------------------------------- who reads
    def last_read(self, root: fx.Node) -> int:
        """The last place in the body where anything in its memory is read, -1 where nothing is."""
        return self._last_read.get(root, -1)

    def is_read_at_end(self, root: fx.Node) -> set[int]:
        """The numbers of the results that lie in its memory."""
        return self._at_end.get(self.final(root), set())

    def has_one_reader(self, node: object) -> bool:
        """Is it made by the body, and read by one other node alone?"""
        return isinstance(node, fx.Node) and node in self.place and self._readers.get(node, 0) == 1

    def reads_once(self, node: fx.Node, over: fx.Node) -> bool:
        """Does ``over`` stand among its arguments once, and nothing else in that memory?"""
        found: list[fx.Node] = []
        fx.map_arg((node.args, dict(node.kwargs)), found.append)
        old = self.root(over)
        return sum(old in self.memories(n) for n in found) == 1

    def note_reads(self, call: Call, when: int) -> None:
        """What the call takes is read there, too."""
        for node in call.nodes():
            for root in self.memories(node):
                self._last_read[root] = max(self._last_read.get(root, -1), when)

    # -------------------------------------------------------------------------------------- the tables
    def _target(self, node: fx.Node) -> Any:
        return self.calls[node].target if node in self.calls else node.target

    def _add(self, node: fx.Node, k: int) -> None:
        read = inputs_of(node, self.calls)
        taken = frozenset().union(*map(self.memories, read))
        for n in read:
            self._read(n)
        if self.is_view(node):
            self._memories[node] = taken
            if _torch.op_name(node.target) not in _OF_ANY_STRIDES:  # type: ignore[arg-type]
                self._by_strides |= taken
            if node.target is aten.as_strided.default and len(node.args) > 3 and node.args[3] is not None:
                self._by_offset |= taken
            return
        if is_scatter(node) and len(node.args) > 4 and node.target is aten.as_strided_scatter.default:
            self._by_offset |= {*taken, node}
        self._memories[node] = self._made(node, taken)
        if node.target is operator.getitem and not self.is_item(node):
            return  # no more than the tuple's reading
        for root in taken:
            self._last_read[root] = k

    def _read(self, node: fx.Node) -> None:
        node = self.final(node)
        self._readers[node] = self._readers.get(node, 0) + 1

    def _made(self, node: fx.Node, taken: frozenset[fx.Node]) -> frozenset[fx.Node]:
        """The memories of what a node makes that is no plain view."""
        val, own = node.meta.get("val"), frozenset((node,))
        target = self._target(node)
        if node.op == "get_attr" or node in self.calls:
            return own
        if target is operator.getitem:
            return own if self.is_item(node) else taken
        if val is not None and not isinstance(val, (torch.Tensor, list, tuple)):
            return frozenset()  # a number
        if not isinstance(target, _torch.OpOverload) or target.namespace != "aten":
            return taken | own
        if _may_alias(target) or _shares_storage(node):
            return taken | own
        return own

    def is_view(self, node: fx.Node) -> bool:
        """Is it a view operation of torch's, also as it is called?"""
        target = self._target(node)
        if node in self._memories and node not in self.place:
            return False  # it is passed
        if node.op != "call_function" or not isinstance(target, _torch.OpOverload):
            return False
        known = target.namespace in ("aten", "prims") and (target.is_view or target is aten._unsafe_view.default)
        return known and isinstance(node.meta.get("val"), torch.Tensor)


# ---------------------------------------------------------------------------------------------- operations
def is_scatter(node: fx.Node) -> bool:
    """Does it give its first argument with a part of it replaced by the second?"""
    return node.target in _SCATTERS and len(node.args) > 1 and isinstance(node.args[1], fx.Node)


def view_of_scatter(node: fx.Node) -> tuple[Any, tuple[Any, ...]]:
    """The view operation for the part that is replaced, with its arguments after the first."""
    args = list(node.args[2:])
    if node.kwargs:
        names = [a.name for a in _torch.op_schema(node.target).arguments][2:]  # type: ignore[arg-type]
        defaults = {a.name: a.default_value for a in _torch.op_schema(node.target).arguments}  # type: ignore[arg-type]
        args += [node.kwargs.get(name, defaults[name]) for name in names[len(args) :]]
    return _SCATTERS[node.target], tuple(args)


def version_moves(form: Any) -> int:
    """By how much an operation in place moves the version counters of what it writes: normalizations move none."""
    return 0 if any(form is f for f, _ in _NORMALIZATIONS.values()) else 1


def in_place_form(node: fx.Node) -> Any:
    """The operation that does the same to its first argument; None where there is none."""
    return _form(node.target) if isinstance(node.target, _torch.OpOverload) else None


@functools.cache
def _form(target: _torch.OpOverload) -> Any:
    if target.namespace != "aten" or torch.Tag.nondeterministic_seeded in target.tags or is_composite(target):
        return None
    return _named(target) if torch.Tag.pointwise in target.tags or target in _WITH_FORM else None


def _named(target: _torch.OpOverload) -> Any:
    """The operation whose name ends in ``_`` and that takes the same, and writes to its first argument alone."""
    packet = getattr(torch.ops.aten, f"{_torch.op_name(target)}_", None)
    wanted = _kinds(target)
    for overload in () if packet is None else packet.overloads():
        found = getattr(packet, overload)
        arguments = _torch.op_schema(found).arguments
        written = [k for k, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
        if written == [0] and _kinds(found) == wanted:
            return found
    return None


def _kinds(target: _torch.OpOverload) -> list[Any]:
    return [(str(a.type), a.kwarg_only) for a in _torch.op_schema(target).arguments]


def several_results(node: fx.Node) -> tuple[Any, dict[int, Any]]:
    """For an operation on several tensors its form in place, and result number -> argument; else (None, {})."""
    target = node.target
    if not isinstance(target, _torch.OpOverload) or target.namespace != "aten":
        return None, {}
    if target in _NORMALIZATIONS:
        form, places = _NORMALIZATIONS[target]
        return form, {k: node.args[at] for k, at in places.items() if len(node.args) > at}
    if not _torch.op_name(target).startswith("_foreach_") or not isinstance(node.args[0], (list, tuple)):
        return None, {}
    form = _foreach_form(target)
    return (None, {}) if form is None else (form, dict(enumerate(node.args[0])))


@functools.cache
def _foreach_form(target: _torch.OpOverload) -> Any:
    returns = _torch.op_schema(target).returns
    return _named(target) if [str(r.type) for r in returns] == ["List[Tensor]"] else None


@functools.cache
def _writes(target: Any) -> bool:
    return isinstance(target, _torch.OpOverload) and bool(_torch.op_schema(target).is_mutable)


@functools.cache
def _may_alias(target: _torch.OpOverload) -> bool:
    """May a result be a view of an argument (``reshape``, ``split``)?"""
    return (
        is_composite(target)
        or target.is_view
        or any(r.alias_info is not None for r in _torch.op_schema(target).returns)
    )


def _shares_storage(node: fx.Node) -> bool:
    """Has a result the storage of an argument, in the example values?"""
    own = _storages(node.meta.get("val"))
    return not own.isdisjoint(s for n in node.all_input_nodes for s in _storages(n.meta.get("val")))


def _storages(val: Any) -> set[Any]:
    if isinstance(val, (list, tuple)):
        return set().union(*map(_storages, val))
    strided = isinstance(val, torch.Tensor) and val.layout is torch.strided
    return {_torch.storage_ref(val)} if strided else set()


# ---------------------------------------------------------------------------------------------- layouts
def same_layout(a: fx.Node, b: fx.Node, *, strides: bool = True) -> bool:
    """Have two values the same type, sizes and (unless told otherwise) strides?"""
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    if x.layout is not torch.strided or y.layout is not torch.strided:
        return False
    kinds = [(t.dtype, t.device, t.is_conj(), t.is_neg()) for t in (x, y)]
    if kinds[0] != kinds[1] or not _same_numbers(x.shape, y.shape):
        return False
    return not strides or _same_numbers(x.stride(), y.stride())


def same_offset(a: fx.Node, b: fx.Node) -> bool:
    """Do two values start at the same place of their storages?"""
    return _same_numbers((a.meta["val"].storage_offset(),), (b.meta["val"].storage_offset(),))


def lies_as_before(t: torch.Tensor, views: Sequence[fx.Node]) -> bool:
    """Do these views, one of the other, lead from a tensor like ``t`` back to its own sizes and strides?"""
    numbers = (*t.shape, *t.stride())
    if not all(type(n) is int for n in numbers) or any(n.kwargs or len(n.all_input_nodes) > 1 for n in views):
        return False
    with _torch.plain_dispatch():
        now = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
        try:
            for node in views:
                now = node.target(now, *node.args[1:])  # type: ignore[operator]
        except RuntimeError:  # of these strides there is no such view
            return False
        return (*now.shape, *now.stride()) == numbers and now.storage_offset() == 0


def _same_numbers(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(_same_number, a, b))


def _same_number(a: Any, b: Any) -> bool:
    """Without a guard on symbols."""
    if type(a) is int and type(b) is int:
        return a == b
    return isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt) and a.node.expr == b.node.expr


def _positions(shape: Any, dim: Any, at: Any) -> tuple[Any, Any]:
    """A dimension, and a place in it, counted from the start where that can be known."""
    if shape is None:
        return dim, at
    dim = dim % len(shape) if type(dim) is int else dim
    size = shape[dim] if type(dim) is int else None
    return dim, at + size if type(at) is int and at < 0 and type(size) is int else at
