"""Graph to graph: the recorded graph with in-place operations becomes functional by one replay.

Only a graph that holds a mutable operation comes here. The replay runs the dense, autograd-free graph once under
torch's functional tensors; neither the user function nor autograd runs again. Graph inputs whose memory overlaps, and
one of which is written, become one flat base (docs/notes/flatten_first.md).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api
from ..errors import NeedsEager
from .aliasing import byte_range
from .effects import has_effects
from .places import strided_views, view_chain, writes_first, written_nodes
from .user_code import frames_text

Tensor = torch.Tensor
aten = torch.ops.aten
#: their functional forms lay the result out as the tensor was
_KEEP_LAYOUT = frozenset(
    {
        aten.copy_.default,
        aten.zero_.default,
        aten.fill_.Scalar,
        aten.fill_.Tensor,
        aten.index_put_.default,
        aten._index_put_impl_.default,
        aten.index_fill_.int_Scalar,
        aten.index_fill_.int_Tensor,
        aten.put_.default,
    }
)
#: operations with a place in the storage among their arguments
PLACED = frozenset({aten.as_strided_.default, aten.as_strided_copy.default, aten.as_strided_scatter.default})
_COPIED = ("recompute", "ac_graph_id")


def functionalize(
    recorder: Any,
    forward: Sequence[Any],
    backward: Sequence[Any],
    boundary: fx.Node | None,
    groups: Sequence[Sequence[int]],
    also: Sequence[fx.Node] = (),
) -> fx.GraphModule:
    """Replay the recorder's graph functionally, with outputs ``[*forward, *backward]``.

    Args:
        boundary: last node of the forward; ``forward`` is read there, before the backward may write anything.
        groups: primals (by number) that overlap in memory and of which one is written.
        also: nodes whose values at the boundary are wanted; ``meta["names"]`` of the result says which nodes have them.
    """
    return _Replay(recorder, groups).run(forward, backward, boundary, also)


def refuse_overlapping(graph: fx.Graph) -> None:
    """Refuse writes through views with several elements in one place (``unfold``, ``expand``), or through a part of one.

    Their inverse would add up what lies in one place, or write it several times.

    Raises:
        UnsupportedError: there is one.
    """
    for node, target in written_nodes(graph):
        for view in (target, *view_chain(target)[1]):
            if view.target is aten.unfold.default or _overlaps_itself(view.meta["val"]):
                raise NeedsEager(
                    "the region writes through a tensor with several elements in one place",
                    path=frames_text(node),
                    expected="in-place operations on tensors without overlap",
                    got=f"{node.target} on shape {tuple(target.meta['val'].shape)}, "
                    f"by way of shape {tuple(view.meta['val'].shape)}",
                    fix="write to a clone",
                )


def _overlaps_itself(t: Tensor) -> bool:
    """May two elements lie in one place? Exact for what views make of a tensor without overlap, if the order of its strides
    does not depend on values inside tensors; where it does, they may."""
    if t.layout is not torch.strided or torch_api.surely(t.numel() == 0):
        return False
    reach, rest = 0, [row for row in zip(t.stride(), t.shape, strict=True) if torch_api.maybe(row[1] > 1)]
    while rest:
        first = next(
            (k for k, row in enumerate(rest) if all(torch_api.surely(row[0] <= other[0]) for other in rest)), None
        )
        if first is None or torch_api.surely(rest[first][0] <= reach):
            return True
        stride, size = rest.pop(first)
        reach += stride * (size - 1)
    return False


def _is_contiguous(t: Tensor) -> bool:
    """Is it surely laid out without gaps, last dimension first?"""
    wanted = 1
    for size, stride in zip(reversed(t.shape), reversed(t.stride()), strict=True):
        if not torch_api.surely(size == 1):
            if not torch_api.surely(stride == wanted):
                return False
            wanted = wanted * size
    return True


def _in_memory_order(t: Any) -> Any:
    """``t`` with its dimensions in the order in which its elements lie, where that makes it contiguous.

    The functional ``bernoulli.p`` gives a contiguous result and draws in its order; ``bernoulli_`` draws in the order of
    the memory, which is another mask for a transposed or channels-last tensor.
    """
    strides = t.stride()
    if t.is_contiguous() or not all(type(n) is int for n in strides):
        return t
    ordered = t.permute(sorted(range(t.dim()), key=lambda d: -strides[d]))
    return ordered if ordered.is_contiguous() else t


def _offset_after(start: Any, dtype: torch.dtype, t: Tensor) -> Any:
    """Where ``t`` starts, in elements after byte ``start`` of its storage."""
    return _elements_after(start, dtype, t.storage_offset())


def _elements_after(start: Any, dtype: torch.dtype, place: Any) -> Any:
    # Torch's proxies take a symbol less 0, or times 4 by 4, for the symbol that it is made of, and never come to an end.
    with torch_api.without_tracing():
        offset = place - start // dtype.itemsize
        known = isinstance(offset, torch.SymInt) and offset.node.expr.is_number
        return int(offset) if known else offset


def _not_functional(node: fx.Node, error: Exception) -> NeedsEager:
    return NeedsEager(
        f"torch cannot make {node.target} functional in this place: {' '.join(str(error).split())[:300]}",
        path=frames_text(node),
        expected="operations that run under torch's functional tensors",
        fix="use the out-of-place operation, or write to a clone",
    )


class _Replay:
    def __init__(self, recorder: Any, groups: Sequence[Sequence[int]]) -> None:
        self.recorder, self.mode = recorder, recorder.mode
        self.functional = torch_api.FunctionalReplay(self.mode)
        self.group_of = {f"primals_{k + 1}": g for g, members in enumerate(groups) for k in members}
        self.groups = [[f"primals_{k + 1}" for k in members] for members in groups]
        self.env: dict[fx.Node, Any] = {}
        self.bases: dict[int, tuple[Any, int, torch.dtype]] = {}
        self.wrapped: dict[int, Any] = {}
        self.by_place: dict[fx.Node, fx.Node] = {}
        self.kernels = torch_api.fake_kernels()
        self.called: dict[fx.Node, str] = {}  # nodes of the forward, by their names in earlier joint graphs

    def run(
        self,
        forward: Sequence[Any],
        backward: Sequence[Any],
        boundary: fx.Node | None,
        also: Sequence[fx.Node] = (),
    ) -> fx.GraphModule:
        replay, graph, root = self.functional, self.recorder.graph, self.recorder.root
        replay.adopt(root, [n.target for n in graph.nodes if n.op == "get_attr"])
        inputs = self._place_inputs(graph)
        refuse_overlapping(graph)
        self.by_place = {n: root for n, root in strided_views(graph).items() if str(root.target) not in self.group_of}
        forward_nodes: list[Any] | None = None
        kept: dict[str, Any] = {}
        # What is functional only now is decomposed here: the recorder leaves mutable operations alone.
        with replay.active(self.recorder.decompositions) as meta:
            for node in graph.nodes:
                if node.op == "placeholder":
                    self.env[node] = self._input(node, inputs, meta)
                elif node.op == "get_attr":
                    value = getattr(root, node.target)
                    self.env[node] = (
                        value if isinstance(value, torch.nn.Module) else replay.constant(node.target, value)
                    )
                elif node.op == "call_function":
                    self._set_meta(meta, node)
                    last = next(iter(reversed(replay.graph.nodes)), None)
                    self.env[node] = self._call(node, root)
                    self._copy_frames(node, last)
                    if self.recorder.names_are_known and node.meta.get("partitioner_tag") == "is_forward":
                        self._keep_name(node)
                if node is boundary:
                    forward_nodes = [self._node(x) for x in forward]
                    kept = {n.name: self._node(n) for n in also}
            if forward_nodes is None:
                forward_nodes = [self._node(x) for x in forward]
                kept = {n.name: self._node(n) for n in also}
            nodes = [*forward_nodes, *[self._node(x) for x in backward]]
        self._rename()
        names = {name: node.name for name, node in kept.items()}
        module = replay.finish(nodes)
        module.meta["names"] = names
        return module

    def _keep_name(self, node: fx.Node) -> None:
        """An earlier joint graph was made without a replay: what it calls this node, and has saved by that name."""
        value = self.env[node]
        if isinstance(value, (Tensor, *torch_api.SYM_TYPES)):
            made = self._node(node)
            if isinstance(made, fx.Node) and made.target is node.target:
                self.called.setdefault(made, node.name)

    def _rename(self) -> None:
        taken = set(self.called.values())
        for made in self.functional.graph.nodes if self.called else ():
            if made in self.called:
                made.name = self.called[made]
            elif made.op == "call_function" and made.name in taken:
                made.name = f"{made.name}_late"

    # ---------------------------------------------------------------- inputs
    def _place_inputs(self, graph: fx.Graph) -> dict[fx.Node, Any]:
        values: dict[fx.Node, Any] = {}
        members: dict[str, fx.Node] = {n.target: n for n in graph.nodes if n.op == "placeholder"}
        for node in members.values():
            group = self.group_of.get(str(node.target))
            if group is None:
                value = node.meta["val"]
                values[node] = torch_api.detached(self.mode, value) if isinstance(value, Tensor) else value
                self.functional.place(str(node.target), values[node], node.meta)
            elif group not in self.bases:
                tensors = [members[m].meta["val"] for m in self.groups[group]]
                self._place_base(group, str(node.target), tensors)
        return values

    def _place_base(self, group: int, name: str, tensors: list[Tensor]) -> None:
        dtype = tensors[0].dtype
        ranges = [byte_range(t) for t in tensors]
        start, stop = min(r.start for r in ranges), max(r.stop for r in ranges)
        with self.mode:
            base = torch.empty((stop - start) // dtype.itemsize, dtype=dtype, device=tensors[0].device)
        numbers = [int(m.rsplit("_", 1)[1]) - 1 for m in self.groups[group]]
        self.functional.place(name, base, {"alias_base": (tuple(numbers), base.numel(), dtype)})
        self.bases[group] = (base, start, dtype)

    def _input(self, node: fx.Node, inputs: dict[fx.Node, Any], meta: dict[str, Any]) -> Any:
        group = self.group_of.get(str(node.target))
        if group is None:
            value = inputs[node]
            return self.functional.wrap(value) if isinstance(value, Tensor) else value
        base, start, dtype = self.bases[group]
        if group not in self.wrapped:
            self.wrapped[group] = self.functional.wrap(base)
        base = self.wrapped[group]
        member = node.meta["val"]
        meta["partitioner_tag"] = "is_forward"
        return base.as_strided(member.shape, member.stride(), _offset_after(start, dtype, member))

    # ---------------------------------------------------------------- operations
    def _set_meta(self, meta: dict[str, Any], node: fx.Node) -> None:
        meta["partitioner_tag"], meta["grad_fn_seq_nr"] = (
            node.meta.get("partitioner_tag"),
            [node.meta.get("seq_nr", -1)],
        )
        for key in _COPIED:
            meta.pop(key, None)
            if key in node.meta:
                meta[key] = node.meta[key]

    def _copy_frames(self, node: fx.Node, last: fx.Node | None) -> None:
        """fx copies only the meta keys that it knows to the nodes that a call makes."""
        frames = node.meta.get("frames")
        for made in reversed(self.functional.graph.nodes) if frames is not None else ():
            if made is last:
                return
            made.meta.setdefault("frames", frames)

    def _call(self, node: fx.Node, root: torch.nn.Module) -> Any:
        if isinstance(node.target, torch_api.HigherOrderOperator):
            return self._opaque(node, root)
        if (
            has_effects(node.target) or node.target in self.kernels
        ):  # torch would ask for a token, or has no fake kernel
            return self._opaque(node, root)
        if node.target is aten._local_scalar_dense.default and not torch_api.is_data_dependent(node.meta["val"]):
            # The fake tensor of the replay does not know the symbol that stands for the number inside.
            read = self.functional.graph.call_function(node.target, (self._node(node.args[0]),))
            read.meta.update(node.meta)
            return self.functional.adopt_number(node.meta["val"], read)
        args = fx.node.map_arg(node.args, self.env.__getitem__)
        kwargs = fx.node.map_arg(node.kwargs, self.env.__getitem__)
        if node.target in PLACED and str(view_chain(node.args[0])[0].target) in self.group_of:  # type: ignore[arg-type]
            raise _not_functional(node, RuntimeError("it counts from the start of memory that several inputs share"))
        try:
            if node in self.by_place:
                view = node.meta["val"]
                return self.env[self.by_place[node]].as_strided(view.shape, view.stride(), view.storage_offset())
            if node.target is aten.bernoulli_.float:
                _in_memory_order(args[0]).bernoulli_(*args[1:], **kwargs)
                return args[0]
            if self._loses_layout(node):
                return self._in_its_layout(node, args, kwargs)
            return node.target(*args, **kwargs)  # type: ignore[operator]
        except (RuntimeError, AssertionError) as error:
            raise _not_functional(node, error) from error

    def _loses_layout(self, node: fx.Node) -> bool:
        """Is it an operation in place on a transposed tensor, whose functional form gives a contiguous one?"""
        target: Any = node.target
        if not (isinstance(target, torch_api.OpOverload) and writes_first(target) and target.namespace == "aten"):
            return False
        kept = {torch.Tag.pointwise, torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view}
        written: Any = node.args[0]
        if target in _KEEP_LAYOUT or not kept.isdisjoint(target.tags) or not isinstance(written, fx.Node):
            return False
        t = written.meta["val"]
        return torch_api.is_dense(t) and not _is_contiguous(t)

    def _in_its_layout(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """The new value is copied to where the old one was, as it is laid out."""
        old = self._node(node.args[0])
        new = self._adopt(old, old.meta["val"])
        node.target(new, *args[1:], **kwargs)  # type: ignore[operator]
        args[0].copy_(new)
        return args[0]

    def _opaque(self, node: fx.Node, root: torch.nn.Module) -> Any:
        """Copied as it is: an operation with effects, or a higher order operator, whose branches are functional."""
        graph = self.functional.graph

        def argument(x: fx.Node) -> Any:
            return graph.get_attr(str(x.target)) if x.op == "get_attr" else self._node(x)

        target: Any = node.target
        copy = graph.call_function(target, fx.node.map_arg(node.args, argument), fx.node.map_arg(node.kwargs, argument))
        copy.meta.update(node.meta)
        return self._adopt(copy, node.meta["val"])

    def _adopt(self, node: fx.Node, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.functional.adopt_value(torch_api.detached(self.mode, value), node)
        if not isinstance(value, (tuple, list)):
            return value
        out = []
        for i, v in enumerate(value):
            if not isinstance(v, (Tensor, tuple, list)):
                out.append(v)
                continue
            item = self.functional.graph.call_function(operator.getitem, (node, i))
            item.meta.update({**node.meta, "val": v})
            out.append(self._adopt(item, v))
        return out

    def _node(self, x: Any) -> Any:
        return self.functional.node_of(self.env[x]) if isinstance(x, fx.Node) else x
