"""Rules of a partition: two programs that fit each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx as fx

from .. import torch_api
from .graphs import dense, functional, named_inputs, require, sound

if TYPE_CHECKING:
    from ..partition.interface import Partitioned


def verify_partition(
    parts: Partitioned, *, num_forward: int, tangents: Sequence[str], written: Collection[str] = ()
) -> None:
    """Two programs that fit each other.

    Args:
        num_forward, tangents: see `verify_joint`.
        written: graph inputs that the region writes; what is saved must not lie in their memory.
    """
    for module, where in ((parts.forward, "forward"), (parts.backward, "backward")):
        sound(module, where)
        dense(module, where)
        functional(module, where)
    named_inputs(parts.forward, ())
    values = _saved_values(parts, num_forward)
    _bound(parts, tangents)
    _same_values(parts, values)
    _protected(parts, values, written)


def verify_backward(graph: fx.GraphModule, inputs: Sequence[str], have: Collection[str]) -> None:
    """A backward that was traced later: it takes nothing but saved values and tangents, named in ``have``."""
    sound(graph, "backward")
    dense(graph, "backward")
    functional(graph, "backward")
    names = [str(n.target) for n in graph.graph.nodes if n.op == "placeholder"]
    require(names == list(inputs), "the inputs of the backward differ", "backward", expected=list(inputs), got=names)
    unknown = sorted(set(names) - set(have))
    require(not unknown, "the backward takes what is not saved", "backward", expected=sorted(have), got=unknown)


def _saved_values(parts: Partitioned, num_forward: int) -> dict[str, Any]:
    """The forward returns its outputs and then one dense tensor or number for each saved name."""
    outputs = list(parts.forward.graph.output_node().args[0])  # type: ignore[arg-type]
    expected = num_forward + len(parts.saved)
    where = "forward.outputs"
    require(
        len(outputs) == expected,
        "the forward returns the wrong number of values",
        where,
        expected=expected,
        got=len(outputs),
    )
    unique = len(set(parts.saved)) == len(parts.saved)
    require(unique, "a value is saved twice", "saved", expected="distinct names", got=parts.saved)
    unknown = sorted(parts.extra - set(parts.saved))
    require(not unknown, "an extra value is not saved", "saved", expected=sorted(parts.saved), got=unknown)
    values = dict(zip(parts.saved, outputs[num_forward:], strict=True))
    names = {n.name for n in parts.forward.graph.nodes}
    for name, node in values.items():
        require(name in names, "a saved value is no node of the forward", f"saved.{name}", expected="a node", got=name)
        value = node.meta.get("val") if isinstance(node, fx.Node) else node
        dense = type(value) in torch_api.FAKE_TYPES or isinstance(value, (*torch_api.SYM_TYPES, int, float, bool))
        got = type(value).__qualname__
        require(dense, "a saved value is not dense", f"saved.{name}", expected="a FakeTensor or a number", got=got)
    return values


def _bound(parts: Partitioned, tangents: Sequence[str]) -> None:
    """Every input of the backward is a saved value or a tangent, and what the partitioner saved is used."""
    inputs = [n for n in parts.backward.graph.nodes if n.op == "placeholder"]
    require(
        len(inputs) == len(parts.backward_inputs),
        "not every input of the backward is bound",
        "backward.inputs",
        expected=f"{len(inputs)} names",
        got=parts.backward_inputs,
    )
    unknown = [n for n in parts.backward_inputs if n not in parts.saved and n not in tangents]
    require(
        not unknown,
        "an input of the backward is neither saved nor a tangent",
        "backward.inputs",
        expected=[*parts.saved, *tangents],
        got=unknown,
    )
    unused = sorted(set(parts.saved) - parts.extra - set(parts.backward_inputs))
    require(not unused, "a saved value is not used", "saved", expected="inputs of the backward", got=unused)


def _same_values(parts: Partitioned, values: dict[str, Any]) -> None:
    """A saved value is on both sides a tensor of the same dtype and shape, or a number."""
    inputs = [n for n in parts.backward.graph.nodes if n.op == "placeholder"]
    for node, name in zip(inputs, parts.backward_inputs, strict=True):
        if name in values:
            made, taken = values[name].meta.get("val"), node.meta.get("val")
            require(
                _shape(made) == _shape(taken),
                "the forward saves something else than the backward takes",
                f"saved.{name}",
                expected=_shape(taken),
                got=_shape(made),
            )


def _protected(parts: Partitioned, values: dict[str, Any], written: Collection[str]) -> None:
    """No saved value lies in the memory of an input that is written: the write-back would change it."""
    memory = {
        _storage(n.meta["val"]): n.name
        for n in parts.forward.graph.nodes
        if n.op == "placeholder" and str(n.target) in written and isinstance(n.meta["val"], torch.Tensor)
    }
    for name, node in values.items():
        value = node.meta.get("val")
        owner = memory.get(_storage(value)) if isinstance(value, torch.Tensor) else None
        expected = "memory that no write-back changes"
        require(
            owner is None,
            "a saved value lies in a written input",
            f"saved.{name}",
            expected=expected,
            got=f"memory of {owner}",
        )


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata) if value.layout is torch.strided else id(value)


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return "a number"
    return f"{value.dtype}{[str(n) for n in value.shape]}"
