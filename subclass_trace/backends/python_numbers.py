"""Steps on floats from inside of tensors, for back ends that have formulas of their own.

Inductor computes numbers by sympy, which has ``v - v == 0`` for a NaN. So each step (see
`torch_api.exact_numbers`) becomes a call of an operator that it does not look into, on tensors
without dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx

from ..torch_api.inductor import mode_of

aten = torch.ops.aten
#: the functions of the steps, by name
_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def _dtype(whole: bool) -> torch.dtype:
    return torch.int64 if whole else torch.float64


@torch.library.custom_op("subclass_trace::python_number", mutates_args=())
def _python_number(name: str, numbers: list[torch.Tensor], whole: bool) -> torch.Tensor:
    """The function of that name of these numbers."""
    made = _FUNCTIONS[name](*[n.item() for n in numbers])
    return torch.tensor(made, dtype=_dtype(whole), device="cpu")


@_python_number.register_fake
def _(name: str, numbers: list[torch.Tensor], whole: bool) -> torch.Tensor:
    return torch.empty((), dtype=_dtype(whole), device="cpu")


def steps_on_tensors(graph: fx.Graph) -> None:
    """Rewrite the steps of this graph."""
    steps = [n for n in graph.nodes if n.meta.get("is_step")]
    if not steps:
        return
    mode = mode_of(n.meta.get("val") for n in graph.nodes)

    def call(like: fx.Node, target: Any, args: Any, val: Any, **more: Any) -> fx.Node:
        made = graph.call_function(target, args)
        made.meta = {**like.meta, "val": val, **more}
        del made.meta["is_step"]
        return made

    def unknown(whole: bool) -> torch.Tensor:
        with mode:
            return torch.empty((), dtype=_dtype(whole), device="cpu")

    for node in steps:
        value = node.meta["val"]
        whole = isinstance(value, torch.SymInt)
        name = f"{node.target.__module__}.{node.target.__name__}"
        _FUNCTIONS[name] = node.target
        with graph.inserting_before(node):
            numbers = []
            for n in node.args:
                dtype = _dtype(
                    isinstance(n.meta["val"] if isinstance(n, fx.Node) else n, (int, torch.SymInt)),
                )
                numbers.append(
                    call(node, aten.scalar_tensor.default, (n,), unknown(dtype is torch.int64)),
                )
                numbers[-1].kwargs = {"dtype": dtype, "device": torch.device("cpu")}
            made = call(
                node,
                torch.ops.subclass_trace.python_number.default,
                (name, numbers, whole),
                unknown(whole),
            )
            bindings = {value.node.expr: ()}
            read = call(
                node,
                aten._local_scalar_dense.default,
                (made,),
                value,
                unbacked_bindings=bindings,
            )
        node.replace_all_uses_with(read)
        graph.erase_node(node)
