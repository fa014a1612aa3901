"""Rules of graphs: dense, functional where they must be, tagged, with the inputs that they should have."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api
from ..errors import VerificationError

_PLAIN = (torch.Tensor, torch.nn.Parameter, *torch_api.FAKE_TYPES)


def require(holds: object, what: str, path: object, *, expected: object, got: object) -> None:
    """Raise `VerificationError` with these words, at ``path``, unless it holds."""
    if not holds:
        raise VerificationError(what, path=path, expected=str(expected), got=str(got))


def verify_joint(joint: fx.GraphModule, *, num_forward: int, tangents: Sequence[str]) -> None:
    """A joint graph: sound, dense, functional, tagged, with the right inputs, forward outputs free of tangents.

    Args:
        num_forward: how many of its outputs belong to the forward.
        tangents: the names of the tangents that it may take, those of the backwards that it differentiates included.
    """
    sound(joint, "joint")
    dense(joint, "joint")
    functional(joint, "joint")
    _tagged(joint)
    named_inputs(joint, tangents)
    _separate(joint, num_forward)


def verify_forward(forward: fx.GraphModule, *, write_back: bool = False, in_place: bool = False) -> None:
    """The graph of a region without a backward.

    Args:
        write_back: it may end in ``copy_`` operations on its inputs.
        in_place: it is as it was recorded.
    """
    sound(forward, "forward")
    dense(forward, "forward")
    if not in_place:
        functional(forward, "forward", allowed=_write_backs(forward) if write_back else ())
    named_inputs(forward, ())


def sound(module: fx.GraphModule, where: str) -> None:
    """Every node is defined before it is used, and the graph returns one flat list."""
    try:
        module.graph.lint()
    except RuntimeError as error:
        raise VerificationError(
            "the graph is not sound", path=where, expected="a graph that lints", got=error
        ) from error
    outputs = module.graph.output_node().args[0]
    flat = isinstance(outputs, (list, tuple)) and not any(isinstance(o, (list, tuple, dict)) for o in outputs)
    require(flat, "the graph does not return one flat list", where, expected="a flat list of nodes", got=outputs)


def dense(module: fx.GraphModule, where: str) -> None:
    """No wrapper anywhere: values are FakeTensors, constants plain tensors, and every value is known."""
    for node in module.graph.nodes:
        path = f"{where}.{node.name}"
        if node.op in ("placeholder", "call_function"):
            require("val" in node.meta, "a node has no value", path, expected='node.meta["val"]', got=sorted(node.meta))
            for value in _tensors(node.meta["val"]):
                fake = type(value) in torch_api.FAKE_TYPES
                require(
                    fake,
                    "a value in the graph is not dense",
                    path,
                    expected="a FakeTensor",
                    got=type(value).__qualname__,
                )
        elif node.op == "get_attr":
            held = _attribute(module, str(node.target))
            plain = isinstance(held, (fx.GraphModule, torch.Generator)) or type(held) in _PLAIN
            require(plain, "a constant is not dense", path, expected="a plain tensor", got=type(held).__qualname__)


def functional(module: fx.GraphModule, where: str, allowed: Collection[fx.Node] = ()) -> None:
    """No operation writes to its arguments, in the branches of higher order operators neither."""
    for node in module.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch_api.OpOverload) and node not in allowed:
            mutable = torch_api.op_schema(node.target).is_mutable
            require(
                not mutable,
                "the graph holds an operation that writes to its arguments",
                f"{where}.{node.name}",
                expected="functional operations",
                got=node.target,
            )
        elif node.op == "get_attr":
            held = _attribute(module, str(node.target))
            if isinstance(held, fx.GraphModule):
                functional(held, f"{where}.{node.target}")


def _write_backs(module: fx.GraphModule) -> list[fx.Node]:
    """The ``copy_`` operations on graph inputs at the end of a graph: after them nothing reads the inputs."""
    found = []
    for node in reversed(module.graph.nodes):
        if node.op == "output":
            continue
        target = node.args[0] if node.target is torch.ops.aten.copy_.default else None
        if not isinstance(target, fx.Node) or target.op != "placeholder":
            break
        found.append(node)
    return found


def _tagged(joint: fx.GraphModule) -> None:
    """Every call says whether it is forward or backward, and which autograd node it belongs to."""
    for node in joint.graph.nodes:
        if node.op != "call_function":
            continue
        path, tag = f"joint.{node.name}", node.meta.get("partitioner_tag")
        tags = ("is_forward", "is_backward")
        require(
            tag in tags, "a node is neither forward nor backward", path, expected=f"partitioner_tag in {tags}", got=tag
        )
        number = node.meta.get("seq_nr")
        known = isinstance(number, int) or not _tensors(node.meta["val"])  # sizes belong to no autograd node
        require(known, "a node belongs to no autograd node", path, expected="an integer seq_nr", got=number)


def named_inputs(module: fx.GraphModule, tangents: Sequence[str]) -> None:
    """Inputs are ``primals_N`` in rising order, and tangents that were declared."""
    last = 0
    for node in module.graph.nodes:
        if node.op != "placeholder" or node.target in tangents:
            continue
        name, _, number = str(node.target).rpartition("_")
        primal = name == "primals" and number.isdigit() and int(number) > last
        expected = f"primals_N with N > {last}, or one of the tangents {list(tangents)}"
        require(primal, "a graph input has the wrong name", f"inputs.{node.name}", expected=expected, got=node.target)
        last = int(number)


def _separate(joint: fx.GraphModule, num_forward: int) -> None:
    """No output of the forward needs a tangent or a node of the backward."""
    outputs = list(joint.graph.output_node().args[0])  # type: ignore[arg-type]
    enough = len(outputs) >= num_forward
    require(enough, "outputs are missing", "joint.outputs", expected=f"{num_forward} or more", got=len(outputs))
    late: dict[fx.Node, bool] = {}
    for node in joint.graph.nodes:
        own = str(node.target).startswith("tangents") if node.op == "placeholder" else False
        late[node] = own or any(late[i] for i in node.all_input_nodes)
    for k, out in enumerate(outputs[:num_forward]):
        free = not (isinstance(out, fx.Node) and late[out])
        require(
            free,
            "an output of the forward needs a tangent",
            f"joint.outputs[{k}]",
            expected="none",
            got=getattr(out, "name", out),
        )


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


def _attribute(module: torch.nn.Module, target: str) -> Any:
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part, None)
    return value
