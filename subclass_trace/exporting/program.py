"""An `torch.export.ExportedProgram`, built of our graph: no second trace.

Recipe and traps: parameters and buffers are placeholders under their flat names, constants are
lifted, changed inputs come first among the outputs, then results, then gradients.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)

from ..capture.graphs import output_args, placeholders
from ..torch_api.graphs import graph_module
from ..torch_api.kinds import is_fake
from ..torch_api.symbols import name_by_position
from ..torch_api.trees import pytree

Tensor = torch.Tensor
_PREFIX = {
    InputKind.PARAMETER: "p_",
    InputKind.BUFFER: "b_",
    InputKind.CONSTANT_TENSOR: "c_",
    InputKind.USER_INPUT: "",
}
_RESULTS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
_KEPT = ("val", "stack_trace", "nn_module_stack", "custom", "unbacked_bindings")


@dataclass(frozen=True, eq=False)
class ProgramInput:
    """A dense input of a program.

    Attributes:
        name: ``layers.0.weight.scale``, of an argument ``x.scale``.
        node: its placeholder in our graph; None where nothing reads it.
        fake: what it is like; ``value``: the tensor itself.
    """

    name: str
    kind: InputKind
    node: fx.Node | None
    fake: Tensor
    value: Tensor
    persistent: bool | None = None


@dataclass(frozen=True, eq=False)
class ProgramOutput:
    """An output: a node of our graph, or a constant; ``target``: the input that it changes, or
    whose gradient it is."""

    node: Any
    kind: OutputKind
    target: str | None = None


def build(
    module: fx.GraphModule,
    inputs: Sequence[ProgramInput],
    outputs: Sequence[ProgramOutput],
    ranges: Mapping[Any, Any],
    *,
    is_tuple: bool,
) -> ExportedProgram:
    """The program of a functional graph; ``is_tuple``: it gives a tuple, and not one tensor."""
    root, graph, env = torch.nn.Module(), fx.Graph(), dict[fx.Node, fx.Node]()
    inputs = [
        *(i for i in inputs if i.kind is not InputKind.USER_INPUT),
        *(i for i in inputs if i.kind is InputKind.USER_INPUT),
    ]
    lifted = _lifted(module)
    state = [i for i in inputs if i.kind is not InputKind.USER_INPUT]
    order = [*state, *lifted, *inputs[len(state) :]]
    made = [_placeholder(graph, i, env) for i in order]
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output") or node in env:
            continue
        if node.op == "get_attr":  # the graph of a branch
            setattr(root, str(node.target), operator.attrgetter(str(node.target))(module))
        env[node] = copy = graph.node_copy(node, env.__getitem__)
        copy.meta = _meta(node)
    outputs = outputs or [ProgramOutput(None, OutputKind.USER_OUTPUT)]  # torch saves none of none
    name_by_position([i.fake for i in inputs[len(state) :]])
    results = [env[o.node] if isinstance(o.node, fx.Node) else o.node for o in outputs]
    graph.output(tuple(results))
    _admit_constants(made)
    places = {i.name: node.name for i, node in zip(order, made, strict=True)}
    signature = ExportGraphSignature(
        [_input_spec(i, node) for i, node in zip(order, made, strict=True)],
        [_output_spec(o, r, places) for o, r in zip(outputs, results, strict=True)],
    )
    return ExportedProgram(
        root=graph_module(root, graph),
        graph=graph,
        graph_signature=signature,
        state_dict=_state(order),
        range_constraints=dict(ranges),
        module_call_graph=[ModuleCallEntry("", _call_signature(signature, order, is_tuple))],
        example_inputs=(tuple(i.value for i in order if i.kind is InputKind.USER_INPUT), {}),
        constants={i.name: i.value.detach() for i in order if _is_constant(i)},
        verifiers=None,
    )


def _lifted(module: fx.GraphModule) -> list[ProgramInput]:
    """The tensors that the graph holds, as inputs."""
    found = list[ProgramInput]()
    for node in module.graph.find_nodes(op="get_attr"):
        held = operator.attrgetter(str(node.target))(module)
        if isinstance(held, Tensor):
            name = f"lifted_tensor_{len(found)}"
            found.append(
                ProgramInput(name, InputKind.CONSTANT_TENSOR, node, node.meta["val"], held)
            )
    return found


def _placeholder(graph: fx.Graph, given: ProgramInput, env: dict[fx.Node, fx.Node]) -> fx.Node:
    name = _PREFIX[given.kind] + re.sub(r"\W+", "_", given.name).strip("_")
    node = graph.placeholder(name)
    node.target = node.name
    node.meta["val"] = given.fake
    if given.node is not None:
        env[given.node] = node
    return node


def _meta(node: fx.Node) -> dict[str, Any]:
    meta = {k: v for k, v in node.meta.items() if k in _KEPT}
    if stack := meta.get("nn_module_stack"):  # in a form that torch can save
        meta["nn_module_stack"] = {
            k: (path, f"{cls.__module__}.{cls.__qualname__}") for k, (path, cls) in stack.items()
        }
    return meta


def _admit_constants(nodes: Sequence[fx.Node]) -> None:
    """As torch.export's own fake mode does; AOTInductor relies on it."""
    for node in nodes:
        if isinstance(value := node.meta["val"], Tensor) and is_fake(value):
            value.fake_mode.allow_non_fake_inputs = True  # type: ignore[attr-defined]
            return


def _input_spec(given: ProgramInput, node: fx.Node) -> InputSpec:
    target = None if given.kind is InputKind.USER_INPUT else given.name
    return InputSpec(given.kind, TensorArgument(name=node.name), target, given.persistent)


def _output_spec(o: ProgramOutput, result: Any, places: Mapping[str, str]) -> OutputSpec:
    if not isinstance(result, fx.Node):
        return OutputSpec(o.kind, ConstantArgument(name="", value=result), None)
    is_number = isinstance(result.meta.get("val"), torch.SymInt)
    arg = SymIntArgument(name=result.name) if is_number else TensorArgument(name=result.name)
    of_user = o.kind in (OutputKind.USER_INPUT_MUTATION, OutputKind.GRADIENT_TO_USER_INPUT)
    return OutputSpec(
        o.kind, arg, places[o.target] if of_user and o.target is not None else o.target
    )


def _is_constant(i: ProgramInput) -> bool:
    return i.kind is InputKind.CONSTANT_TENSOR or (i.kind is InputKind.BUFFER and not i.persistent)


def _state(order: Sequence[ProgramInput]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for i in order:
        if i.kind is InputKind.PARAMETER:
            found[i.name] = torch.nn.Parameter(i.value.detach(), requires_grad=True)
        elif i.kind is InputKind.BUFFER and i.persistent:
            found[i.name] = i.value.detach()
    return found


def _call_signature(
    signature: ExportGraphSignature, order: Sequence[ProgramInput], is_tuple: bool
) -> ModuleCallSignature:
    """Of the whole: its inputs and outputs are those of the graph's own signature, which a
    decomposition brings up to date."""
    user = tuple(i.value for i in order if i.kind is InputKind.USER_INPUT)
    results = [o for o in signature.output_specs if o.kind in _RESULTS]
    return ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_flatten((user, {}))[1],
        out_spec=pytree.tree_flatten(tuple(range(len(results))) if is_tuple else 0)[1],
    )


__all__ = ["ProgramInput", "ProgramOutput", "build", "output_args", "placeholders"]
