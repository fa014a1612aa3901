"""A graph as readable code: one line per operation, with what each input and output is.

::

    def forward(
        primals_1,  # float32[2, 4]  args[0].a
    ):
        # model.py:10  return x.relu()
        relu_default = aten.relu.default(primals_1)  # float32[2, 4]
        return (
            relu_default,  # result.a
        )
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..capture.graphs import where
from ..torch_api.lines import location_text
from .names import type_text


def graph_code(module: fx.GraphModule, name: str) -> str:
    """A graph as the text of a function of this name; inputs and outputs with what they are."""
    return "\n".join(_lines(module.graph, name, [*map(str, module.meta.get("descriptors", ()))]))


def _lines(graph: fx.Graph, name: str, outputs: Sequence[str]) -> Iterator[str]:
    yield f"def {name}("
    for node in graph.nodes:
        if node.op == "placeholder":
            yield _commented(
                f"    {node.name},", node.meta.get("val"), str(node.meta.get("descriptor", ""))
            )
    yield "):"
    location = None
    for node in graph.nodes:
        if node.op == "output":
            yield "    return ("
            for k, value in enumerate(_flat(node.args[0])):
                yield _commented(
                    f"        {argument_text(value)},", None, outputs[k] if k < len(outputs) else ""
                )
            yield "    )"
        elif node.op != "placeholder":
            now = where(node)
            if now is not None and now != location:
                yield f"    # {location_text(now)}  {_source_line(node)}".rstrip()
                location = now
            yield _commented(f"    {node.name} = {call_text(node)}", node.meta.get("val"), "")


def _commented(code: str, value: Any, text: str) -> str:
    parts = [p for p in (value_text(value), text) if p]
    return f"{code}  # {'  '.join(parts)}" if parts else code


def value_text(value: Any) -> str:
    """``float32[2, 4]`` for a tensor, its name for a symbolic number, nothing for anything else."""
    if isinstance(value, torch.Tensor):
        return type_text(value.dtype, value.shape)
    return str(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else ""


def call_text(node: fx.Node) -> str:
    """The right side of a node's line."""
    if node.op == "get_attr":
        return f"self.{node.target}"
    if node.target is operator.getitem:
        return f"{argument_text(node.args[0])}[{argument_text(node.args[1])}]"
    arguments = [
        *map(argument_text, node.args),
        *[f"{k}={argument_text(v)}" for k, v in node.kwargs.items()],
    ]
    return f"{target_text(node.target)}({', '.join(arguments)})"


def target_text(target: Any) -> str:
    """The name of what a node calls: ``aten.mm.default``."""
    if isinstance(target, str) or not callable(target) or str(target).count(" "):
        return str(getattr(target, "__qualname__", target))
    return str(target)


def argument_text(value: Any) -> str:
    """An argument as code."""
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(argument_text, value))
        return (
            f"[{inner}]"
            if isinstance(value, list)
            else f"({inner}{',' if len(value) == 1 else ''})"
        )
    return value.name if isinstance(value, fx.Node) else repr(value)


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _source_line(node: fx.Node) -> str:
    return str(node.meta.get("stack_trace", "")).rstrip("\n").rpartition("\n")[2].strip()
