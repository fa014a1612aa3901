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

from .. import _torch
from ..errors import UnsupportedError
from .aliasing import byte_range
from .frames import frames_text
from .session import Session

Tensor = torch.Tensor
_COPIED = ("recompute", "ac_graph_id")


def functionalize(
    session: Session,
    forward: Sequence[Any],
    backward: Sequence[Any],
    boundary: fx.Node | None,
    groups: Sequence[Sequence[int]],
) -> fx.GraphModule:
    """Replay the recorder's graph functionally, with outputs ``[*forward, *backward]``.

    Args:
        boundary: last node of the forward; ``forward`` is read there, before the backward may write anything.
        groups: primals (by number) that overlap in memory and of which one is written.
    """
    return _Replay(session, groups).run(session.recorder.graph, session.recorder.root, forward, backward, boundary)


def functionalize_branch(mode: Any, root: torch.nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """The same for a branch of a higher order operator, whose output node is in the graph."""
    output = next(iter(reversed(graph.nodes))).args[0]
    results = list(output) if isinstance(output, (list, tuple)) else [output]
    module = _Replay(_BranchSession(mode), ()).run(graph, root, [], results, None)
    if not isinstance(output, (list, tuple)):
        last = next(iter(reversed(module.graph.nodes)))
        last.args = (last.args[0][0],)
        module.recompile()
    return module


class _BranchSession:
    """What a replay needs of a session, for a branch."""

    def __init__(self, mode: Any) -> None:
        self.mode = mode


class _Replay:
    def __init__(self, session: Any, groups: Sequence[Sequence[int]]) -> None:
        self.mode = session.mode
        self.functional = _torch.FunctionalReplay(self.mode)
        self.group_of = {f"primals_{k + 1}": g for g, members in enumerate(groups) for k in members}
        self.groups = [[f"primals_{k + 1}" for k in members] for members in groups]
        self.env: dict[fx.Node, Any] = {}
        self.bases: dict[int, tuple[Any, int, torch.dtype]] = {}
        self.wrapped: dict[int, Any] = {}

    def run(
        self,
        graph: fx.Graph,
        root: torch.nn.Module,
        forward: Sequence[Any],
        backward: Sequence[Any],
        boundary: fx.Node | None,
    ) -> fx.GraphModule:
        replay = self.functional
        replay.adopt(root, [n.target for n in graph.nodes if n.op == "get_attr"])
        inputs = self._place_inputs(graph)
        forward_nodes: list[Any] | None = None
        with replay.active() as meta:
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
                if node is boundary:
                    forward_nodes = [self._node(x) for x in forward]
            if forward_nodes is None:
                forward_nodes = [self._node(x) for x in forward]
            nodes = [*forward_nodes, *[self._node(x) for x in backward]]
        return replay.finish(nodes)

    # ---------------------------------------------------------------- inputs
    def _place_inputs(self, graph: fx.Graph) -> dict[fx.Node, Any]:
        values: dict[fx.Node, Any] = {}
        members: dict[str, fx.Node] = {n.target: n for n in graph.nodes if n.op == "placeholder"}
        for node in members.values():
            group = self.group_of.get(str(node.target))
            if group is None:
                value = node.meta["val"]
                values[node] = _torch.detached(self.mode, value) if isinstance(value, Tensor) else value
                self.functional.place(str(node.target), values[node], node.meta)
            elif group not in self.bases:
                tensors = [members[m].meta["val"] for m in self.groups[group]]
                self._place_base(group, str(node.target), tensors)
        return values

    def _place_base(self, group: int, name: str, tensors: list[Tensor]) -> None:
        dtypes = {t.dtype for t in tensors}
        dtype = dtypes.pop() if len(dtypes) == 1 else torch.uint8
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
        if member.dtype == dtype:
            offset = member.storage_offset() - start // dtype.itemsize
            return base.as_strided(member.shape, member.stride(), offset)
        if not member.is_contiguous():
            raise UnsupportedError(
                "inputs of several dtypes overlap in memory, one is written, and one of them is not contiguous",
                path=node.target,
                expected="contiguous views of the shared memory",
                got=f"stride {tuple(member.stride())} for shape {tuple(member.shape)}",
                fix="pass a clone of one of them",
            )
        own = byte_range(member)
        return base[own.start - start : own.stop - start].view(member.dtype).view(member.shape)

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
        if frames is None:
            return
        for made in reversed(self.functional.graph.nodes):
            if made is last:
                return
            made.meta.setdefault("frames", frames)

    def _call(self, node: fx.Node, root: torch.nn.Module) -> Any:
        if isinstance(node.target, _torch.HigherOrderOperator):
            return self._opaque(node, root)
        args = fx.node.map_arg(node.args, self.env.__getitem__)
        kwargs = fx.node.map_arg(node.kwargs, self.env.__getitem__)
        try:
            return node.target(*args, **kwargs)  # type: ignore[operator]
        except (RuntimeError, AssertionError) as error:
            raise UnsupportedError(
                f"torch cannot make {node.target} functional in this place: {' '.join(str(error).split())[:300]}",
                path=frames_text(node),
                expected="in-place operations that have a functional form, on views that torch can rebuild",
                got=str(node.target),
                fix="use the out-of-place operation, or write to a clone",
            ) from error

    def _opaque(self, node: fx.Node, root: torch.nn.Module) -> Any:
        """A higher order operator is copied as it is: its branches are functional already."""
        graph = self.functional.graph

        def argument(x: fx.Node) -> Any:
            return graph.get_attr(str(x.target)) if x.op == "get_attr" else self._node(x)

        target: Any = node.target
        copy = graph.call_function(target, fx.node.map_arg(node.args, argument), fx.node.map_arg(node.kwargs, argument))
        copy.meta.update(node.meta)
        value = node.meta["val"]
        if isinstance(value, Tensor):
            return self.functional.adopt_value(_torch.detached(self.mode, value), copy)
        out = []
        for i, v in enumerate(value):
            if not isinstance(v, Tensor):
                out.append(v)
                continue
            item = graph.call_function(operator.getitem, (copy, i))
            item.meta.update({k: m for k, m in node.meta.items() if k != "val"})
            out.append(self.functional.adopt_value(_torch.detached(self.mode, v), item))
        return out

    def _node(self, x: Any) -> Any:
        return self.functional.node_of(self.env[x]) if isinstance(x, fx.Node) else x
