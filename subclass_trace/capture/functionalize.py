"""Graph to graph: the recorded graph with in-place operations becomes functional by one replay.

Only a graph that holds a mutable operation comes here. What touches memory that is written runs
once more, under torch's functional tensors; all else is copied. Neither the user function nor
autograd runs again.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import torch
import torch.fx as fx

from ..errors import UnsupportedError
from ..torch_api.float_arguments import symbols_back, with_symbols
from ..torch_api.graphs import (
    contents,
    functionalizing,
    graph_module,
    replace_contents,
    to_functional,
)
from ..torch_api.kinds import SYM_TYPES, is_dense, storage_ref
from ..torch_api.modes import exclude_functionalize
from ..torch_api.operators import (
    HigherOrderOperator,
    OpOverload,
    auto_functionalized,
    is_custom_write,
)
from ..torch_api.repairs.fake_kernels import fake_kernels
from ..torch_api.trees import tree_map_only
from .aliasing import repeats
from .effects import has_effects
from .phase import Recording
from .symbols import READERS
from .traced_graph import TracedGraph
from .user_code import line_text
from .writes import written_arguments

Tensor = torch.Tensor
aten = torch.ops.aten
#: their functional forms lay the result out as the tensor was, as those of pointwise operations do
_KEEP_LAYOUT = frozenset(
    {aten.copy_.default, aten.index_put_.default, aten._index_put_impl_.default}
)


def _view_chain(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The tensor that ``node`` is a view of, and the views on the way, last first."""
    chain = []
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        made: Any = node.args[0] if node.target is operator.getitem else node
        target = made.target
        if not isinstance(target, OpOverload) or not (target.is_view or _writes_first(target)):
            break
        if target.is_view:
            chain.append(node)
        node = made.args[0]
    return node, chain


def _writes_first(target: Any) -> bool:
    """Does the operation change its first argument?"""
    first = target._schema.arguments[0] if target._schema.arguments else None
    return bool(first is not None and first.alias_info is not None and first.alias_info.is_write)


def _refuse_views(recorder: Recording) -> None:
    """Refuse writes through views with several elements in one place (``unfold``, ``expand``),
    whose inverse would add them up; and places that count from the start of a storage
    (``as_strided``), which a functional tensor has none of.

    Raises:
        UnsupportedError: there is one.
    """
    for node in recorder.graph.nodes:
        single = isinstance(node.target, OpOverload)
        for target in (
            written_arguments(node.target, node.args, node.kwargs, fx.Node) if single else ()
        ):
            if any(
                v.target is aten.unfold.default or repeats(v.meta["val"])
                for v in (target, *_view_chain(target)[1])
            ):
                raise _not_functional(
                    node, "it writes through a view with several elements in one place"
                )
    written = recorder.memory.storages
    for node in recorder.graph.nodes:
        if node.target is aten.as_strided.default and storage_ref(node.meta["val"]) in written:
            root, chain = _view_chain(node)
            if root.op == "placeholder" or len(chain) > 1:
                raise _not_functional(node, "it counts from the start of memory that is written")


def _in_memory_order(t: Any) -> Any:
    """``t`` with its dimensions in the order in which its elements lie, where that makes it
    contiguous.

    The functional ``bernoulli.p`` gives a contiguous result and draws in its order; ``bernoulli_``
    draws in the order of the memory, which is another mask for a transposed or channels-last
    tensor.
    """
    strides = t.stride()
    if t.is_contiguous():
        return t
    ordered = t.permute(sorted(range(t.dim()), key=lambda d: -strides[d]))
    return ordered if ordered.is_contiguous() else t


def _loses_layout(node: fx.Node) -> bool:
    """Is it an operation in place on a transposed tensor, whose functional form gives a contiguous
    one?"""
    target, written = node.target, node.args[0] if node.args else None
    if not (
        isinstance(target, OpOverload) and _writes_first(target) and target.namespace == "aten"
    ):
        return False
    kept = {torch.Tag.pointwise, torch.Tag.nondeterministic_seeded}
    if (
        target in _KEEP_LAYOUT
        or not kept.isdisjoint(target.tags)
        or not isinstance(written, fx.Node)
    ):
        return False
    t = written.meta["val"]
    static = all(type(n) is int for n in (*t.shape, *t.stride()))
    return is_dense(t) and not (static and t.is_contiguous())


def _out_arguments(target: Any) -> list[str]:
    """The names of what an operation writes its results into, ``out=``."""
    arguments = target._schema.arguments if isinstance(target, OpOverload) else ()
    return [
        a.name
        for a in arguments
        if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write
    ]


def _not_functional(node: fx.Node, why: object) -> UnsupportedError:
    # Dynamo leaves the step of an optimizer out of its graphs.
    return UnsupportedError(
        f"torch cannot make {node.target} functional in this place: "
        f"{' '.join(str(why).split())[:300]}",
        code="fused-step" if "_fused_" in str(node.target) else "not-functional",
        path=line_text(node.meta.get("frames")),
        fix="use the out-of-place operation, or write to a clone",
    )


def _beside_writes(graph: fx.Graph, known: set[fx.Node] | None) -> set[fx.Node]:
    """Nodes that touch no memory that an operation writes.

    ``known``: those of an earlier replay; all, if an earlier graph was made without one. The nodes
    of the forward stay among
    them: what it has saved is found by their names.

    Raises:
        UnsupportedError: a later backward writes what a node of the forward made, or reads.
    """
    beside = _untouched(graph)
    if known is None:
        return beside
    of_forward = {
        n
        for n in graph.nodes
        if n.op == "placeholder" or n.meta.get("partitioner_tag") == "is_forward"
    }
    if touched := (known & of_forward) - beside:
        raise UnsupportedError(
            "a later backward writes memory of the forward",
            code="late-write",
            path=line_text(touched.pop().meta.get("frames")),
        )
    return (beside - of_forward) | (known & of_forward)


def _memory(value: Any) -> set[Any]:
    """The storages of a tensor, or of several."""
    if isinstance(value, Tensor):
        return {storage_ref(value)}
    return set().union(*map(_memory, value)) if isinstance(value, (tuple, list)) else set()


def _untouched(graph: fx.Graph) -> set[fx.Node]:
    written: set[Any] = set()
    memory: dict[fx.Node, set[Any]] = {}
    for node in graph.nodes:
        memory[node] = _memory(node.meta.get("val"))
        if isinstance(node.target, OpOverload):
            written.update(
                *(
                    memory[t]
                    for t in written_arguments(node.target, node.args, node.kwargs, fx.Node)
                )
            )
    beside: set[fx.Node] = set()
    for node in graph.nodes:
        part = node.target is operator.getitem  # of what an operation gives
        if not part or node.args[0] in beside:
            if all(written.isdisjoint(memory[n]) for n in (node, *node.all_input_nodes)):
                beside.add(node)
    return beside


class _Writer(TracedGraph):
    """Below functional tensors: writes what they issue, which changes nothing in place, into a
    graph."""

    meta: Mapping[str, Any] = MappingProxyType({})  # of the nodes that are written

    def node_of_real(self, value: Tensor) -> fx.Node:
        """The node of a constant that a decomposition makes."""
        node: fx.Node = self.node_of(self.constant(value))
        return node

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = symbols_back(args, kwargs or {})
        if func.namespace == "prim":
            return func(*args, **kwargs)
        # What is functional only now is decomposed here: the recorder leaves mutable operations
        # alone.
        if func in self.decompositions:
            with self:
                out = self.decompositions[func](*args, **kwargs)
            if out is not NotImplemented:
                return out
        higher = isinstance(func, HigherOrderOperator)
        out = func(*args, **kwargs) if higher else self.results.run(func, args, kwargs)
        node = self.call(func, args, kwargs)
        node.meta.update(self.meta)
        self.note_results(node, out, args)
        return out


class Functionalization:
    """One replay of the recorder's graph, as a functional one."""

    def __init__(self, recorder: Recording) -> None:
        self.recorder, self.mode = recorder, recorder.mode
        self.writer = _Writer(recorder.mode, recorder.decompositions, recorder.results)
        # names of constants
        self.writer.root, self.writer.numbers = recorder.root, recorder.numbers
        self.env: dict[fx.Node, Any] = {}
        # of nodes that are no operation on memory that is written
        self.copies: dict[fx.Node, fx.Node] = {}
        self.kernels = fake_kernels()

    def run(self, forward: Any, gradients: Sequence[Any]) -> tuple[fx.GraphModule, list[str]]:
        """The graph with outputs ``[*forward.outputs, *gradients]``, and which of its nodes (by
        name) are ``forward.served``.

        Args:
            forward: see `TracedForward`; its outputs are read at its boundary, before the backward
                may write anything.

        Raises:
            UnsupportedError: torch has no functional form of a write.
        """
        _refuse_views(self.recorder)
        graph = self.recorder.graph
        beside = self.recorder.memory.beside = _beside_writes(graph, self.recorder.memory.beside)
        for node in graph.find_nodes(op="placeholder"):
            value = node.meta["val"]
            value = self.writer.bare(value) if isinstance(value, Tensor) else value
            is_input = not str(node.target).startswith("tangents")
            self.copies[node] = copy = self.writer.placeholder(
                str(node.target), value, is_untouched=is_input
            )
            copy.meta["descriptor"] = node.meta.get("descriptor")
        forward_nodes: list[Any] = []
        served: list[Any] = []
        with functionalizing(self.mode, self.writer):
            for node in graph.nodes:
                if node not in self.copies:
                    if node in beside or self._stays(node):
                        self._copy(node)
                    else:
                        self.writer.meta = {
                            k: v
                            for k, v in node.meta.items()
                            if k not in ("val", "unbacked_bindings")
                        }
                        tag = node.meta["partitioner_tag"]
                        if tag != self.writer.tag:
                            self.writer.phase = replace(self.writer.phase, tag=tag)
                        self.env[node] = self._call(node)
                if node is forward.boundary:
                    forward_nodes = [self._node(x) for x in forward.outputs]
                    served = [self._node(n).name for n in forward.served]
            nodes = [*forward_nodes, *[self._node(x) for x in gradients]]
        self.writer.graph.output(nodes)
        return graph_module(self.recorder.root, self.writer.graph, "joint"), served

    def _stays(self, node: fx.Node) -> bool:
        """A constant, a number, or what makes a size; an operation with effects, for which torch
        would ask for a token, or without a fake kernel; a higher order operator, whose branches are
        functional."""
        target, value = node.target, node.meta.get("val")
        sizes = "unbacked_bindings" in node.meta and not getattr(target, "is_view", False)
        if node.op == "get_attr" or isinstance(value, SYM_TYPES) or sizes:
            return True
        mended = target in self.kernels and not cast(Any, target)._schema.is_mutable
        return isinstance(target, HigherOrderOperator) or has_effects(target) or mended

    def _copy(self, node: fx.Node) -> None:
        # a size is that of the input, whatever was written to it since
        look_up = (
            (lambda n: self.copies.get(n) or self._node(n))
            if node.target in READERS.values()
            else self._node
        )
        args, kwargs = fx.map_arg(node.args, look_up), fx.map_arg(node.kwargs, look_up)
        copy = self.writer.graph.create_node(node.op, node.target, args, kwargs, name=node.name)
        copy.meta.update(node.meta)
        self.copies[node] = copy
        self.writer.symbols.adopt(node.meta.get("val"), copy)

    def _value(self, node: fx.Node) -> Any:
        """What a node is in the replay; a copied one is taken up where it is needed."""
        if isinstance(value := node.meta.get("val"), SYM_TYPES):
            return value
        if node not in self.env:
            self.env[node] = self._adopt(self.copies[node], value)
        return self.env[node]

    # ---- operations
    def _call(self, node: fx.Node) -> Any:
        target: Any = node.target
        args: Any = fx.node.map_arg(node.args, self._value)
        kwargs: Any = fx.node.map_arg(node.kwargs, self._value)
        call = partial(with_symbols, target)  # C++ hands floats on here
        try:
            if target is aten.bernoulli_.float:
                with_symbols(target, _in_memory_order(args[0]), *args[1:], **kwargs)
                return args[0]
            # the new value is copied to where the old one was, as that is laid out
            if _loses_layout(node):
                new = args[0].clone()
                call(new, *args[1:], **kwargs)
                return args[0].copy_(new)
            outs = [name for name in _out_arguments(target) if isinstance(kwargs.get(name), Tensor)]
            if outs:  # laid out as they are, and not as the functional form has it
                new = {name: kwargs[name].clone() for name in outs}
                call(*args, **{**kwargs, **new})
                done = [kwargs[name].copy_(new[name]) for name in outs]
                return done[0] if len(done) == 1 else tuple(done)
            if is_custom_write(target):
                return self._on_copies(target, args, kwargs)
            return call(*args, **kwargs)
        except (RuntimeError, AssertionError) as error:
            raise _not_functional(node, error) from error

    def _on_copies(self, op: Any, args: Any, kwargs: Any) -> Any:
        """A custom operation that writes to arguments: as torch's ``auto_functionalized_v2``, for
        copies of what is written."""
        given = {a.name: v for a, v in zip(op._schema.arguments, args, strict=False)} | kwargs
        bases: list[Any] = []

        def base(name: str, value: Any) -> None:
            encoded[f"_{name}_base_index"] = None if value is None else len(bases)
            bases.extend([] if value is None else [value])

        encoded: dict[str, Any] = {}
        for a in op._schema.arguments:
            value = given.get(a.name, a.default_value)
            if a.alias_info is None or not a.alias_info.is_write:
                encoded[a.name] = value
            elif isinstance(value, list):
                encoded[f"_{a.name}_length"] = len(value)
                for i, v in enumerate(value):
                    base(f"{a.name}_{i}", v)
            else:
                base(a.name, value)
        encoded["_all_bases"] = bases
        inner = tree_map_only(Tensor, contents, encoded)
        with exclude_functionalize():
            found = auto_functionalized(op, **inner)
        for t, new in zip(bases, found[len(found) - len(bases) :], strict=True):
            replace_contents(t, new)
        results = tree_map_only(Tensor, to_functional, found[: len(found) - len(bases)])
        return results[0] if len(results) == 1 else results

    def _adopt(self, node: fx.Node, value: Any) -> Any:
        if isinstance(value, Tensor):
            value = self.writer.bare(value)
            self.writer.track(value, node)
            return to_functional(value)
        if not isinstance(value, (tuple, list)):
            return value
        out = []
        for i, v in enumerate(value):
            if not isinstance(v, (Tensor, tuple, list)):
                out.append(v)
                continue
            item = self.writer.graph.call_function(operator.getitem, (node, i))
            item.meta.update({**node.meta, "val": v})
            out.append(self._adopt(item, v))
        return out

    def _node(self, x: Any) -> Any:
        if not isinstance(x, fx.Node):
            return x
        if x not in self.env:
            return self.copies[x]
        value = self.env[x]  # of a copy that was taken up since, and perhaps written
        return self.writer.node_of(contents(value) if isinstance(value, Tensor) else value)
