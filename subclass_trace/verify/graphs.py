"""Rules of graphs: dense, functional where they must be, with the inputs that they should have; two that fit each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx as fx

from .. import torch_api
from ..errors import VerificationError

if TYPE_CHECKING:
    from ..partition.interface import Partitioned


def require(holds: object, what: str, path: object, *, expected: object, got: object) -> None:
    """Raise `VerificationError` with these words, at ``path``, unless it holds."""
    if not holds:
        raise VerificationError(what, path=path, expected=str(expected), got=str(got))


def verify_joint(joint: fx.GraphModule, *, num_forward: int, tangents: Sequence[str]) -> None:
    """A joint graph: dense, functional, with the right inputs, forward outputs free of tangents.

    Args:
        num_forward: how many of its outputs belong to the forward.
        tangents: the names of the tangents that it may take, those of the backwards that it differentiates included.
    """
    _dense(joint, "joint")
    _functional(joint, "joint")
    _named_inputs(joint, tangents)
    late: dict[fx.Node, bool] = {}
    for node in joint.graph.nodes:
        own = str(node.target).startswith("tangents") if node.op == "placeholder" else False
        late[node] = own or any(late[i] for i in node.all_input_nodes)
    found = [o for o in _outputs(joint)[:num_forward] if isinstance(o, fx.Node) and late[o]]
    require(not found, "an output of the forward needs a tangent", "joint.outputs", expected="none", got=found)


def verify_forward(forward: fx.GraphModule, *, in_place: bool = False) -> None:
    """The graph of a region without a backward. ``in_place``: it is as it was recorded."""
    _dense(forward, "forward")
    if not in_place:
        _functional(forward, "forward")
    _named_inputs(forward, ())


def verify_partition(
    parts: Partitioned, *, num_forward: int, tangents: Sequence[str], written: Collection[str] = ()
) -> None:
    """Two programs that fit each other.

    Args:
        num_forward, tangents: see `verify_joint`.
        written: graph inputs that the region writes; what is saved must not lie in their memory.
    """
    for module, where in ((parts.forward, "forward"), (parts.backward, "backward")):
        _dense(module, where)
        _functional(module, where)
    _named_inputs(parts.forward, ())
    outputs = _outputs(parts.forward)
    expected = num_forward + len(parts.saved)
    what = "the forward returns the wrong number of values"
    require(len(outputs) == expected, what, "forward.outputs", expected=expected, got=len(outputs))
    values = dict(zip(parts.saved, outputs[num_forward:], strict=True))
    inputs = _placeholders(parts.backward)
    known = len(inputs) == len(parts.backward_inputs) and set(parts.backward_inputs) <= {*values, *tangents}
    what = "an input of the backward is neither saved nor a tangent"
    require(known, what, "backward.inputs", expected=[*values, *tangents], got=parts.backward_inputs)
    for node, name in zip(inputs, parts.backward_inputs, strict=True):
        if name in values:
            made, taken = _shape(values[name]), _shape(node)
            what = "the forward saves something else than the backward takes"
            require(made == taken, what, f"saved.{name}", expected=taken, got=made)
    memory = {_storage(n): n.name for n in _placeholders(parts.forward) if str(n.target) in written}
    for name, node in values.items():
        owner = memory.get(_storage(node))
        what, expected_memory = "a saved value lies in a written input", "memory that no write-back changes"
        require(owner is None, what, f"saved.{name}", expected=expected_memory, got=f"memory of {owner}")


def verify_backward(graph: fx.GraphModule, inputs: Sequence[str], have: Collection[str]) -> None:
    """A backward that was traced later: it takes nothing but saved values and tangents, named in ``have``."""
    _dense(graph, "backward")
    _functional(graph, "backward")
    names = [str(n.target) for n in _placeholders(graph)]
    require(names == list(inputs), "the inputs of the backward differ", "backward", expected=list(inputs), got=names)
    unknown = sorted(set(names) - set(have))
    require(not unknown, "the backward takes what is not saved", "backward", expected=sorted(have), got=unknown)


def _dense(module: fx.GraphModule, where: str) -> None:
    """No wrapper anywhere: values are FakeTensors, constants plain tensors, and every value is known."""
    for node in module.graph.nodes:
        path = f"{where}.{node.name}"
        if node.op in ("placeholder", "call_function"):
            require("val" in node.meta, "a node has no value", path, expected='node.meta["val"]', got=sorted(node.meta))
            others = [type(t).__qualname__ for t in _tensors(node.meta["val"]) if type(t) not in torch_api.FAKE_TYPES]
            require(not others, "a value in the graph is not dense", path, expected="FakeTensors", got=others)
        elif node.op == "get_attr":
            held, plain = (
                _attribute(module, str(node.target)),
                (torch.Tensor, torch.nn.Parameter, *torch_api.FAKE_TYPES),
            )
            dense = not isinstance(held, torch.Tensor) or type(held) in plain
            require(dense, "a constant is not dense", path, expected="a plain tensor", got=type(held).__qualname__)


def _functional(module: fx.GraphModule, where: str) -> None:
    """No operation writes to its arguments, in the branches of higher order operators neither."""
    for node in module.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch_api.OpOverload):
            what = "the graph holds an operation that writes to its arguments"
            mutable = torch_api.op_schema(node.target).is_mutable
            require(not mutable, what, f"{where}.{node.name}", expected="functional operations", got=node.target)
        elif node.op == "get_attr" and isinstance(held := _attribute(module, str(node.target)), fx.GraphModule):
            _functional(held, f"{where}.{node.target}")


def _named_inputs(module: fx.GraphModule, tangents: Sequence[str]) -> None:
    """Inputs are ``primals_N`` in rising order, and tangents that were declared."""
    last = 0
    for node in _placeholders(module):
        if node.target not in tangents:
            name, _, number = str(node.target).rpartition("_")
            primal = name == "primals" and number.isdigit() and int(number) > last
            expected = f"primals_N with N > {last}, or one of the tangents {list(tangents)}"
            require(primal, "a graph input has the wrong name", "inputs", expected=expected, got=node.target)
            last = int(number)


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))


def _outputs(module: fx.GraphModule) -> list[Any]:
    return list(module.graph.output_node().args[0])  # type: ignore[arg-type]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    for part in value if isinstance(value, (list, tuple)) else ():
        yield from _tensors(part)


def _attribute(module: torch.nn.Module, target: str) -> Any:
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part, None)
    return value


def _storage(node: fx.Node) -> int:
    value = node.meta["val"]
    return int(value.untyped_storage()._cdata) if getattr(value, "layout", None) is torch.strided else id(node)


def _shape(node: fx.Node) -> str:
    value = node.meta["val"]
    return f"{value.dtype}{[*value.shape]}" if isinstance(value, torch.Tensor) else "a number"
