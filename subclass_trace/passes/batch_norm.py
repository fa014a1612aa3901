"""Batch norms of inference become a scale and a shift of their channels, which depend on weights
alone; those after a convolution or a linear layer go into its weight and bias.

What it computes agrees with eager mode to rounding. Used by frozen regions (`runtime.frozen`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx

from .graph import value_of

aten = torch.ops.aten
#: (input, weight, bias, mean, variance, training, momentum, eps) -> (result, statistics, ...)
_EITHER = (
    aten.native_batch_norm.default,
    aten.cudnn_batch_norm.default,
    aten.miopen_batch_norm.default,
)
#: the same, but for ``training``
_OF_INFERENCE = (
    aten._native_batch_norm_legit_no_training.default,
    aten._batch_norm_no_update.default,
)
_MADE = ("placeholder", "get_attr")


def fold_batch_norms(graph: fx.Graph, is_constant: Callable[[fx.Node], bool]) -> None:
    """Rewrite those whose statistics are not of the batch and whose weights are constants."""
    for node in list(graph.nodes):
        trains = node.target in _EITHER and node.args[5]
        if node.target not in (*_EITHER, *_OF_INFERENCE) or trains or node.kwargs:
            continue
        weights = [w for w in node.args[1:5] if isinstance(w, fx.Node)]
        first = [user for user in node.users if user.target is operator.getitem]
        if len(first) != len(node.users) or any(user.args[1] != 0 for user in first):
            continue
        if all(map(is_constant, weights)) and isinstance(node.args[3], fx.Node):
            _replace(_Writer(graph, node), node, first, is_constant)


class _Writer:
    """Writes operations in front of a node, in a dtype of at least 32 bits."""

    def __init__(self, graph: fx.Graph, at: fx.Node) -> None:
        self.graph, self.at = graph, at

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self.graph.inserting_before(self.at):
            node = self.graph.call_function(target, args, kwargs)
        node.meta = {k: v for k, v in self.at.meta.items() if k not in ("val", "trace_name")}
        node.meta["val"] = value_of(node)
        return node

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        same = node.meta["val"].dtype == dtype
        return node if same else self(aten._to_copy.default, node, dtype=dtype)


def _replace(
    write: _Writer, node: fx.Node, results: list[fx.Node], is_constant: Callable[[fx.Node], bool]
) -> None:
    x: Any = node.args[0]
    weights = [w for w in node.args[1:5] if isinstance(w, fx.Node)]
    alone = len(x.users) == 1 and all(w.op in _MADE for w in weights)
    given = [a for a in x.args if isinstance(a, fx.Node)] if alone else []
    linear, convolution = x.target is aten.addmm.default, x.target is aten.convolution.default
    if linear and not x.kwargs and all(map(is_constant, given[::2])):
        write.at = x
        scale, shift = _scale_and_shift(write, node, given[0])
        weight = _scaled(write, given[2], scale)
        new = write(aten.addmm.default, _as(write, shift, x), given[1], weight)
    elif convolution and not x.args[6] and all(map(is_constant, given[1:])):
        write.at = x
        scale, shift = _scale_and_shift(write, node, x.args[2])
        rank = given[1].meta["val"].dim()
        weight = _scaled(write, given[1], write(aten.view.default, scale, [-1] + [1] * (rank - 1)))
        new = write(aten.convolution.default, given[0], weight, _as(write, shift, x), *x.args[3:])
    else:
        scale, shift = _scale_and_shift(write, node, None)
        if (rank := x.meta["val"].dim()) > 2:
            sizes = [-1] + [1] * (rank - 2)
            scale, shift = (write(aten.view.default, s, sizes) for s in (scale, shift))
        wide = write(aten.add.Tensor, write(aten.mul.Tensor, x, scale), shift)
        new = _as(write, wide, x)
    for result in results:
        result.replace_all_uses_with(new)
    for dead in (*results, node, *([x] if alone and write.at is x else [])):
        write.graph.erase_node(dead)


def _scale_and_shift(write: _Writer, node: fx.Node, bias: Any) -> tuple[fx.Node, fx.Node]:
    """Of ``x - bias``, where that is the bias of what ``x`` comes from."""
    dtype = torch.promote_types(node.args[4].meta["val"].dtype, torch.float32)  # type: ignore[union-attr]
    gamma, beta, mean, variance = (
        None if w is None else write.cast(w, dtype) for w in node.args[1:5]  # type: ignore[arg-type]
    )
    scale = write(aten.rsqrt.default, write(aten.add.Tensor, variance, node.args[-1]))
    scale = scale if gamma is None else write(aten.mul.Tensor, scale, gamma)
    centre = mean if bias is None else write(aten.sub.Tensor, mean, write.cast(bias, dtype))
    shift = write(aten.neg.default, write(aten.mul.Tensor, centre, scale))
    return scale, shift if beta is None else write(aten.add.Tensor, shift, beta)


def _scaled(write: _Writer, weight: fx.Node, scale: fx.Node) -> fx.Node:
    wide = write.cast(weight, scale.meta["val"].dtype)
    return write.cast(write(aten.mul.Tensor, wide, scale), weight.meta["val"].dtype)


def _as(write: _Writer, value: fx.Node, like: fx.Node) -> fx.Node:
    return write.cast(value, like.meta["val"].dtype)


def lay_out_convolutions(graph: fx.Graph, is_constant: Callable[[fx.Node], bool]) -> None:
    """Weights of convolutions on the CPU as inductor wants them: it would copy them in each
    call."""
    for node in graph.find_nodes(op="call_function", target=aten.convolution.default):
        weight: Any = node.args[1]
        if is_constant(weight) and weight.meta["val"].dim() == 4 and not node.args[6]:
            if weight.meta["val"].device.type == "cpu":
                last = {"memory_format": torch.channels_last}
                node.update_arg(1, _Writer(graph, node)(aten.clone.default, weight, **last))


def but_inference(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions that leaves batch norms of inference alone."""

    def of_training(base: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(base)
        def decompose(*args: Any, **kwargs: Any) -> Any:
            training = kwargs.get("training", args[5] if len(args) > 5 else True)
            return base(*args, **kwargs) if training else NotImplemented

        return decompose

    rest = {op: base for op, base in table.items() if op not in _OF_INFERENCE}
    return {**rest, **{op: of_training(table[op]) for op in _EITHER if op in table}}
