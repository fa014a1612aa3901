"""Graph to graph: the recorded graph with in-place operations becomes functional by one replay.

Only a graph that holds a mutable operation comes here. What touches memory that is written runs once more, under torch's
functional tensors; all else is copied. Neither the user function nor autograd runs again.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api
from ..errors import NeedsEager, UnsupportedError
from .aliasing import repeats
from .effects import has_effects
from .user_code import line_text
from .writes import written_arguments

Tensor = torch.Tensor
aten = torch.ops.aten
#: their functional forms lay the result out as the tensor was, as those of pointwise operations do
_KEEP_LAYOUT = frozenset({aten.copy_.default, aten.index_put_.default, aten._index_put_impl_.default})
_COPIED = ("recompute", "ac_graph_id")


def _view_chain(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The tensor that ``node`` is a view of, and the views on the way, last first."""
    chain = []
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        made: Any = node.args[0] if node.target is operator.getitem else node
        target = made.target
        if not isinstance(target, torch_api.OpOverload) or not (target.is_view or _writes_first(target)):
            break
        if target.is_view:
            chain.append(node)
        node = made.args[0]
    return node, chain


def _writes_first(target: Any) -> bool:
    """Does the operation change its first argument?"""
    first = target._schema.arguments[0] if target._schema.arguments else None
    return bool(first is not None and first.alias_info is not None and first.alias_info.is_write)


def _refuse_views(recorder: Any) -> None:
    """Refuse writes through views with several elements in one place (``unfold``, ``expand``), whose inverse would add them up;
    and places that count from the start of a storage (``as_strided``), which a functional tensor has none of.

    Raises:
        NeedsEager: there is one.
    """
    for node in recorder.graph.nodes:
        single = isinstance(node.target, torch_api.OpOverload)
        for target in written_arguments(node.target, node.args, node.kwargs, fx.Node) if single else ():
            if any(
                v.target is aten.unfold.default or repeats(v.meta["val"]) for v in (target, *_view_chain(target)[1])
            ):
                raise _not_functional(node, "it writes through a view with several elements in one place")
    written = {storage for storage, _ in recorder.writes}
    for node in recorder.graph.nodes:
        if node.target is aten.as_strided.default and torch_api.storage_ref(node.meta["val"]) in written:
            root, chain = _view_chain(node)
            if root.op == "placeholder" or len(chain) > 1:
                raise _not_functional(node, "it counts from the start of memory that is written")


def _in_memory_order(t: Any) -> Any:
    """``t`` with its dimensions in the order in which its elements lie, where that makes it contiguous.

    The functional ``bernoulli.p`` gives a contiguous result and draws in its order; ``bernoulli_`` draws in the order of
    the memory, which is another mask for a transposed or channels-last tensor.
    """
    strides = t.stride()
    if t.is_contiguous():
        return t
    ordered = t.permute(sorted(range(t.dim()), key=lambda d: -strides[d]))
    return ordered if ordered.is_contiguous() else t


def _loses_layout(node: fx.Node) -> bool:
    """Is it an operation in place on a transposed tensor, whose functional form gives a contiguous one?"""
    target, written = node.target, node.args[0] if node.args else None
    if not (isinstance(target, torch_api.OpOverload) and _writes_first(target) and target.namespace == "aten"):
        return False
    kept = {torch.Tag.pointwise, torch.Tag.nondeterministic_seeded}
    if target in _KEEP_LAYOUT or not kept.isdisjoint(target.tags) or not isinstance(written, fx.Node):
        return False
    t = written.meta["val"]
    static = all(type(n) is int for n in (*t.shape, *t.stride()))
    return torch_api.is_dense(t) and not (static and t.is_contiguous())


def _out_arguments(target: Any) -> list[str]:
    """The names of what an operation writes its results into, ``out=``."""
    arguments = target._schema.arguments if isinstance(target, torch_api.OpOverload) else ()
    return [a.name for a in arguments if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write]


def _not_functional(node: fx.Node, why: object) -> UnsupportedError:
    # Dynamo leaves the step of an optimizer out of its graphs.
    cls = UnsupportedError if "_fused_" in str(node.target) else NeedsEager
    return cls(
        f"torch cannot make {node.target} functional in this place: {' '.join(str(why).split())[:300]}",
        path=line_text(node.meta.get("frames")),
        fix="use the out-of-place operation, or write to a clone",
    )


def _beside_writes(graph: fx.Graph, known: set[fx.Node] | None) -> set[fx.Node]:
    """Nodes that touch no memory that an operation writes. None where sizes are symbols, whose nodes the replay finds again.

    ``known``: those of an earlier replay. The nodes of the forward stay among them: what it has saved is found by their names.

    Raises:
        NeedsEager: a later backward writes what a node of the forward made, or reads.
    """
    beside = _untouched(graph)
    if known is None:
        return beside
    of_forward = {n for n in graph.nodes if n.op == "placeholder" or n.meta.get("partitioner_tag") == "is_forward"}
    if beside and (touched := (known & of_forward) - beside):
        raise NeedsEager(
            "a later backward writes memory of the forward", path=line_text(touched.pop().meta.get("frames"))
        )
    return (beside - of_forward) | (known & of_forward)


def _untouched(graph: fx.Graph) -> set[fx.Node]:
    written: set[Any] = set()
    memory: dict[fx.Node, set[Any]] = {}
    for node in graph.nodes:
        values = torch_api.pytree.tree_leaves(node.meta.get("val"))
        if any(isinstance(n, torch_api.SYM_TYPES) for v in values for n in (v.shape if isinstance(v, Tensor) else [v])):
            return set()
        memory[node] = {torch_api.storage_ref(v) for v in values if isinstance(v, Tensor)}
        if isinstance(node.target, torch_api.OpOverload):
            written.update(*(memory[t] for t in written_arguments(node.target, node.args, node.kwargs, fx.Node)))
    beside: set[fx.Node] = set()
    for node in graph.nodes:
        part = node.target is operator.getitem and node.args[0] in beside
        if part or node.op == "placeholder" or isinstance(node.target, torch_api.OpOverload):
            if all(written.isdisjoint(memory[n]) for n in (node, *node.all_input_nodes)):
                beside.add(node)
    return beside


class Functionalization:
    """One replay of the recorder's graph, as a functional one."""

    def __init__(self, recorder: Any) -> None:
        self.recorder, self.mode = recorder, recorder.mode
        self.functional = torch_api.FunctionalReplay(self.mode)
        self.env: dict[fx.Node, Any] = {}
        self.copies: dict[fx.Node, fx.Node] = {}  # of nodes that touch nothing that is written
        self.kernels = torch_api.fake_kernels()
        self.called: dict[fx.Node, str] = {}  # nodes of the forward, by their names in earlier joint graphs

    def run(
        self, forward: Sequence[Any], backward: Sequence[Any], boundary: fx.Node | None, also: Sequence[fx.Node]
    ) -> fx.GraphModule:
        """The graph with outputs ``[*forward, *backward]``.

        Args:
            boundary: last node of the forward; ``forward`` is read there, before the backward may write anything.
            also: nodes whose values at the boundary are wanted; ``meta["names"]`` of the result says which nodes have them.

        Raises:
            NeedsEager, UnsupportedError: torch has no functional form of a write.
        """
        _refuse_views(self.recorder)
        replay, graph, root = self.functional, self.recorder.graph, self.recorder.root
        replay.adopt(root, [n.target for n in graph.nodes if n.op == "get_attr"])
        beside = self.recorder.beside = _beside_writes(graph, self.recorder.beside)
        for node in graph.find_nodes(op="placeholder"):
            value = node.meta["val"]
            value = torch_api.detached(self.mode, value) if isinstance(value, Tensor) else value
            placed = replay.place(str(node.target), value, node.meta)
            if node in beside:
                self.copies[node] = placed
            else:
                self.env[node] = value
        forward_nodes: list[Any] = []
        kept: dict[str, Any] = {}
        # What is functional only now is decomposed here: the recorder leaves mutable operations alone.
        with replay.active(self.recorder.decompositions) as meta:
            for node in graph.nodes:
                if node in self.copies:
                    pass
                elif node in beside or self._stays(node):
                    self._copy(node)
                elif node.op == "placeholder":
                    value = self.env[node]
                    self.env[node] = replay.wrap(value) if isinstance(value, Tensor) else value
                elif node.op == "get_attr":
                    value = getattr(root, node.target)
                    self.env[node] = (
                        value if isinstance(value, torch.nn.Module) else replay.constant(node.target, value)
                    )
                elif node.op == "call_function":
                    self._set_meta(meta, node)
                    last = next(iter(reversed(replay.graph.nodes)), None)
                    self.env[node] = self._call(node)
                    self._copy_frames(node, last)
                    if self.recorder.names_are_known and node.meta.get("partitioner_tag") == "is_forward":
                        self._keep_name(node)
                if node is boundary:
                    forward_nodes = [self._node(x) for x in forward]
                    kept = {n.name: self._node(n) for n in also}
            nodes = [*forward_nodes, *[self._node(x) for x in backward]]
        self._rename()
        names = {name: node.name for name, node in kept.items()}
        module = replay.finish(nodes)
        module.meta["names"] = names
        return module

    def _stays(self, node: fx.Node) -> bool:
        """An operation with effects, for which torch would ask for a token, or without a fake kernel; or a higher order
        operator, whose branches are functional."""
        target = node.target
        return isinstance(target, torch_api.HigherOrderOperator) or has_effects(target) or target in self.kernels

    def _copy(self, node: fx.Node) -> None:
        copy = self.functional.graph.create_node(
            node.op, node.target, fx.map_arg(node.args, self._node), fx.map_arg(node.kwargs, self._node), name=node.name
        )
        copy.meta.update(node.meta)
        self.copies[node] = copy
        if self.recorder.names_are_known and node.meta.get("partitioner_tag") == "is_forward":
            self.called[copy] = node.name

    def _value(self, node: fx.Node) -> Any:
        """What a node is in the replay; a copied one is taken up where it is needed."""
        if node not in self.env:
            self.env[node] = self._adopt(self.copies[node], node.meta["val"])
        return self.env[node]

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

    # ---------------------------------------------------------------- operations
    def _set_meta(self, meta: dict[str, Any], node: fx.Node) -> None:
        meta["partitioner_tag"] = node.meta.get("partitioner_tag")
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

    def _call(self, node: fx.Node) -> Any:
        if node.target is aten._local_scalar_dense.default and not torch_api.is_data_dependent(node.meta["val"]):
            # The fake tensor of the replay does not know the symbol that stands for the number inside.
            read = self.functional.graph.call_function(node.target, (self._node(node.args[0]),))
            read.meta.update(node.meta)
            return self.functional.adopt_number(node.meta["val"], read)
        args: Any = fx.node.map_arg(node.args, self._value)
        kwargs: Any = fx.node.map_arg(node.kwargs, self._value)
        try:
            if node.target is aten.bernoulli_.float:
                _in_memory_order(args[0]).bernoulli_(*args[1:], **kwargs)
                return args[0]
            if _loses_layout(node):  # the new value is copied to where the old one was, as that is laid out
                new = args[0].clone()
                node.target(new, *args[1:], **kwargs)  # type: ignore[operator]
                args[0].copy_(new)
                return args[0]
            outs = [name for name in _out_arguments(node.target) if isinstance(kwargs.get(name), Tensor)]
            if outs:  # laid out as they are, and not as the functional form has it
                new = {name: kwargs[name].clone() for name in outs}
                node.target(*args, **{**kwargs, **new})  # type: ignore[operator]
                done = [kwargs[name].copy_(new[name]) for name in outs]
                return done[0] if len(done) == 1 else tuple(done)
            return node.target(*args, **kwargs)  # type: ignore[operator]
        except (RuntimeError, AssertionError) as error:
            raise _not_functional(node, error) from error

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
        if not isinstance(x, fx.Node):
            return x
        if isinstance(self.env.get(x), torch.nn.Module):
            return self.functional.graph.get_attr(str(x.target))
        if x in self.copies and x not in self.env:
            return self.copies[x]
        return self.functional.node_of(self.env[x])  # of a copy that was taken up since, and perhaps written
