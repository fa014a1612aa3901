"""Puts together what a trace gave: names for what the graph takes and gives, then the program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx
from torch.export.graph_signature import InputKind, OutputKind

from ..capture.capture import Captured
from ..capture.graphs import output_args, placeholders, primal_number, where
from ..capture.tape import TracedBackward
from ..errors import ExportError
from ..partition.half import Half
from ..plan import SizeOutput, ValueOutput
from ..plan.values import Output, Recipe
from ..runtime.frozen import Freezer, computed
from ..runtime.sizes import freeze
from ..state.rows import Row
from ..subclass.flatten import flatten
from ..subclass.paths import Path
from ..subclass.spec import Spec, leaf_count, leaf_paths, leaf_spans, leaf_ways
from ..torch_api.operators import OpOverload
from ..torch_api.trees import pytree as torch_pytree
from .exported import Argument, Exported
from .program import ProgramInput, ProgramOutput, build
from .results import check_recipe, numbers_in
from .sizes import ranges, unbacked_ranges
from .state import FlatState

Tensor = torch.Tensor
pytree = torch_pytree


class Exporter:
    """Puts together what a trace gave."""

    def __init__(
        self,
        captured: Captured,
        graph: fx.GraphModule,
        state: FlatState,
        called: Any,
        strict: bool,
        read: tuple[Row, ...],
    ) -> None:
        self.captured, self.graph, self.state, self.strict = captured, graph, state, strict
        self.called, self.read = called, read
        self.results = output_args(graph.graph)
        self.spans = leaf_spans(captured.results.values)
        self.target: dict[int, str] = {}  # id of a real dense tensor -> its name
        self.inputs: dict[str, ProgramInput] = {}

    def exported(
        self,
        flat: Any,
        values: Mapping[str, Tensor],
        positions: Mapping[str, int],
        tree: Any,
        wanted: Any,
        backward: TracedBackward | None,
        freezer: Freezer | None = None,
    ) -> Exported:
        captured = self.captured
        self._check_effects()
        self._check_operations()
        recipe = captured.recipes.result
        check_recipe(recipe)
        reals = self._reals(flat)
        if freezer is not None:
            self._fold(freezer, reals)
        changed, nodes = self._changed(), self._nodes()
        self._name_state(reals, nodes, {reals[k] for k, _ in changed})
        arguments = self._name_arguments(values, positions, nodes)
        self._name_others(reals, nodes)
        outputs = [self._change(reals[k], node) for k, node in changed]
        outputs = list({o.target: o for o in outputs}.values())
        is_loss = backward is not None and self._is_loss(recipe)
        shown, places = self._shown(recipe, is_loss)
        outputs += shown
        gradients, tangents = tuple[str, ...](), tuple[str, ...]()
        if backward is not None:
            tangents = self._tangents(backward, is_loss)
            made = self._gradients(backward, reals)
            outputs += [output for output, _ in made]
            gradients = tuple(name for _, name in made)
        fakes = {str(row.path): row.traced for row in captured.inputs.rows}
        limits = ranges(captured.session.shape_env, wanted, fakes) if wanted else {}
        limits |= unbacked_ranges(captured.session.shape_env, self.graph.graph)
        is_tuple = backward is not None or not isinstance(recipe, Output) or len(shown) != 1
        program = build(self.graph, [*self.inputs.values()], outputs, limits, is_tuple=is_tuple)
        return Exported(
            program, self.state, arguments, gradients, tangents, tree, recipe, places, self.read
        )

    # ---- what cannot be
    def _check_effects(self) -> None:
        captured = self.captured
        if captured.inputs.sizes:
            raise ExportError(
                "a wrapper has a size that none of its dense tensors has",
                path=", ".join(map(str, captured.described)),
                fix="export without dynamic_shapes for it",
            )
        if captured.mutations.gradients:
            row = captured.inputs.rows[captured.mutations.gradients[0][0]]
            raise ExportError(
                "a call sets .grad",
                path=f"{row.path}.grad",
                fix="say joint=True, which gives gradients",
            )
        for effect in captured.recipes.seen if self.strict else ():
            fix = "take it out of the function, or say strict=False: the program leaves it out"
            raise ExportError(
                "a call changes Python state, which a program does not",
                path=str(effect.place),
                fix=fix,
            )

    def _check_operations(self) -> None:
        """A program is loaded where this package is not."""
        for node in self.graph.graph.nodes:
            if isinstance(node.target, OpOverload) and node.target.namespace == "subclass_trace":
                raise ExportError(
                    "an operation that only this package has",
                    path=where(node),
                    got=str(node.target),
                    fix="export without gradients, without assertions on values; or region.save(), "
                    "for processes with this package",
                )

    # ---- inputs
    def _reals(self, flat: Sequence[Any]) -> list[int]:
        """For each dense leaf of the trace, the id of the tensor that it stands for."""
        found: dict[int, int] = {}
        self._held: list[Tensor] = []
        for row in self.captured.inputs.rows:
            leaves = flatten(flat[row.position])[0]
            self._held += leaves
            found.update(zip(row.leaves, map(id, leaves), strict=True))
        return [found[k] for k in range(len(found))]

    def _fold(self, freezer: Freezer, reals: list[int]) -> None:
        """Of a frozen region: buffers in the place of what is made of weights alone."""
        half = Half.of_module(self.graph)
        folded, leaves = freezer.cut(half), self.captured.inputs.leaf_primals
        numbers = [primal_number(node) for node in half.inputs]
        of = {number: reals[k] for k, number in enumerate(leaves)}
        held = {id(t): t for t in self._held}
        made = computed(folded.first, [held[of[numbers[k]]] for k in folded.taken])
        self.graph = folded.rest.module
        self.results = output_args(self.graph.graph)
        nodes = placeholders(self.graph.graph)[len(folded.live) :]
        for k, (node, value) in enumerate(zip(nodes, made, strict=True)):
            row = ProgramInput(f"frozen.{k}", InputKind.BUFFER, node, node.meta["val"], value, True)
            self.inputs[row.name] = row
        read = {of.get(numbers[k], 0) for k in folded.live}
        self.state = self.state.with_any_of(read)

    def _nodes(self) -> dict[int, fx.Node]:
        """Number of a leaf -> its placeholder, where something reads it."""
        by_name = {str(n.target): n for n in self.graph.graph.find_nodes(op="placeholder")}
        named = enumerate(f"primals_{n + 1}" for n in self.captured.inputs.leaf_primals)
        return {k: by_name[name] for k, name in named if name in by_name}

    def _add(
        self,
        name: str,
        kind: InputKind,
        value: Tensor,
        nodes: Mapping[int, fx.Node],
        persistent: Any = None,
    ) -> None:
        number = next((k for k, real in enumerate(self._numbers) if real == id(value)), None)
        node = None if number is None else nodes.get(number)
        mode = self.captured.session.mode
        fake = (
            mode.from_tensor(value.detach(), static_shapes=True)
            if node is None
            else node.meta["val"]
        )
        self.target[id(value)] = name
        self.inputs[name] = ProgramInput(name, kind, node, fake, value, persistent)

    def _name_state(
        self, reals: list[int], nodes: Mapping[int, fx.Node], changed: set[int]
    ) -> None:
        self._numbers = reals
        owner = {name: e for e in self.state.entries.values() for name in e.leaves}
        for name, tensor in self.state.tensors.items():
            entry = owner[name]
            trains = (
                entry.value.requires_grad
                and tensor.is_floating_point()
                and id(tensor) not in changed
            )
            if entry.kind == "parameter" and trains:
                self._add(name, InputKind.PARAMETER, tensor, nodes)
            else:
                self._add(name, InputKind.BUFFER, tensor, nodes, entry.kind != "non-persistent")

    def _name_arguments(
        self,
        values: Mapping[str, Tensor],
        positions: Mapping[str, int],
        nodes: Mapping[int, fx.Node],
    ) -> tuple[Argument, ...]:
        found = []
        names = self._argument_names()
        for path, value in values.items():
            leaves, spec = flatten(value, Path(path))
            known = [self.target[id(t)] for t in leaves if id(t) in self.target]
            if known or len({*map(id, leaves)}) < len(leaves):
                raise ExportError(
                    "two dense tensors of the arguments, or of an argument and the module, are "
                    "one object",
                    path=path,
                    got=known[0] if known else "two of its own",
                    fix="give the example different ones: a program takes each by itself",
                )
            for (name, kind), leaf in zip(
                ((n, InputKind.USER_INPUT) for n in leaf_paths(spec, names(path))),
                leaves,
                strict=True,
            ):
                self._add(name, kind, leaf, nodes)
            found.append(Argument(positions[path], spec, tuple(leaf_paths(spec, names(path)))))
        return tuple(found)

    def _argument_names(self) -> Callable[[str], str]:
        """``args[0]`` -> the name of the parameter."""
        try:
            known = [
                p.name
                for p in inspect.signature(self.called).parameters.values()
                if p.kind is not p.VAR_POSITIONAL
            ]
        except (TypeError, ValueError):
            known = []

        def name(path: str) -> str:
            for k, known_name in enumerate(known):
                path = (
                    path.replace(f"args[{k}]", known_name, 1)
                    if path.startswith(f"args[{k}]")
                    else path
                )
            return (
                path.replace("kwargs['", "").replace("']", "")
                if path.startswith("kwargs['")
                else path
            )

        return name

    def _name_others(self, reals: Sequence[int], nodes: Mapping[int, fx.Node]) -> None:
        """Tensors that the function comes upon otherwise: constants."""
        tensors = {id(t): t for t in self._held}
        inside = {
            k
            for row in self.captured.inputs.rows
            for k in row.leaves
            if getattr(row.descriptor.place, "moves", False)
        }
        for number, real in enumerate(reals):
            if real not in self.target and number in nodes:
                if number in inside:
                    raise ExportError(
                        "a tensor among the arguments is in an object that torch's pytrees do "
                        "not take apart",
                        path=self.captured.inputs.leaf_paths[number],
                        fix="torch.export.register_dataclass, or pass it as an argument of its own",
                    )
                path = str(self.captured.inputs.leaf_paths[number])
                self._add(path, InputKind.CONSTANT_TENSOR, tensors[real], nodes)

    # ---- outputs
    def _changed(self) -> list[tuple[int, Any]]:
        """(number of a leaf, its new value), for what a call writes."""
        rows = self.captured.inputs.rows
        return [
            (rows[m.input].leaves[k], self.results[self.spans[m.value]][k])
            for m in self.captured.mutations.rows
            for k in m.leaves
        ]

    def _change(self, real: int, node: Any) -> ProgramOutput:
        given = self.inputs[self.target[real]]
        if given.kind is InputKind.CONSTANT_TENSOR:
            raise ExportError(
                "a call writes a tensor that is no state of the module",
                path=given.name,
                fix="register a buffer",
            )
        kind = (
            OutputKind.BUFFER_MUTATION
            if given.kind is InputKind.BUFFER
            else OutputKind.USER_INPUT_MUTATION
        )
        return ProgramOutput(node, kind, given.name)

    def _shown(
        self, recipe: Recipe, is_loss: bool
    ) -> tuple[list[ProgramOutput], dict[int, tuple[Spec | None, slice]]]:
        """The results, and number of a flat output -> (how it is made, where its dense tensors are
        among them)."""
        outputs: list[ProgramOutput] = []
        places: dict[int, tuple[Spec | None, slice]] = {}
        numbers = sorted({*numbers_in(recipe)})
        for number in numbers:
            plan, start = self.captured.results.outputs[number], len(outputs)
            if isinstance(plan, ValueOutput):
                kind = (
                    OutputKind.LOSS_OUTPUT
                    if is_loss and leaf_count(plan.spec) == 1
                    else OutputKind.USER_OUTPUT
                )
                outputs += [ProgramOutput(n, kind) for n in self.results[self.spans[plan.value]]]
                places[number] = freeze(plan.spec), slice(start, len(outputs))
            elif isinstance(plan, SizeOutput):
                first = self.spans[-1].stop if self.spans else 0
                outputs.append(
                    ProgramOutput(self.results[first + plan.index], OutputKind.USER_OUTPUT)
                )
                places[number] = None, slice(start, start + 1)
            else:
                raise ExportError(
                    "a result is no value of the graph",
                    path=str(self.captured.results.paths[number]),
                )
        return outputs, places

    def _is_loss(self, recipe: Recipe) -> bool:
        """Is the result one dense number that can be differentiated?"""
        numbers = {*numbers_in(recipe)}
        plans = [self.captured.results.outputs[k] for k in numbers]
        found = [
            p
            for p in plans
            if isinstance(p, ValueOutput) and p.value in self.captured.differentiable
        ]
        return (
            len(found) == len(self.captured.differentiable) == 1
            and getattr(found[0].spec, "size", None) == ()
        )

    def _tangents(self, backward: TracedBackward, is_loss: bool) -> tuple[str, ...]:
        """Tangents are arguments; of a loss it is 1."""
        by_name = {str(n.target): n for n in self.graph.graph.find_nodes(op="placeholder")}
        names = []
        for number, name in enumerate(backward.tangents):
            node = by_name.get(name)
            if node is None:
                continue
            value: Any = node.meta["val"]
            if is_loss:
                with self.graph.graph.inserting_after(node):
                    one = self.graph.graph.call_function(
                        torch.ops.aten.full.default,
                        ([*value.shape], 1),
                        {"dtype": value.dtype, "device": value.device},
                    )
                one.meta["val"] = value
                node.replace_all_uses_with(one)
            else:
                real = torch.ones(
                    [int(n) for n in value.shape], dtype=value.dtype, device=value.device
                )
                names.append(f"tangent_{number}")
                self.inputs[names[-1]] = ProgramInput(
                    names[-1], InputKind.USER_INPUT, node, value, real
                )
        return tuple(names)

    def _gradients(
        self, backward: TracedBackward, reals: Sequence[int]
    ) -> list[tuple[ProgramOutput, str]]:
        """The gradients, with the names of what they are of."""
        nodes, found = iter(self.results[backward.num_forward :]), list[tuple[ProgramOutput, str]]()
        for number, spec in zip(self.captured.differentiated, backward.grads, strict=True):
            row = self.captured.inputs.rows[number]
            own = [next(nodes) for _ in range(0 if spec is None else leaf_count(spec))]
            names = [self.target[reals[leaf]] for leaf in row.leaves]
            if spec is None or len(own) != len(names):  # of a dense bias under wrappers, a wrapper
                found += [
                    (ProgramOutput(node, OutputKind.USER_OUTPUT), ".".join((names[0], *way)))
                    for node, way in zip(
                        own, leaf_ways(spec) if spec is not None else (), strict=True
                    )
                ]
                continue
            for node, name in zip(own, names, strict=True):
                of_user = self.inputs[name].kind is InputKind.USER_INPUT
                kind = (
                    OutputKind.GRADIENT_TO_USER_INPUT
                    if of_user
                    else OutputKind.GRADIENT_TO_PARAMETER
                )
                found.append((ProgramOutput(node, kind, name), name))
        # torch wants these first
        return sorted(found, key=lambda row: row[0].kind is not OutputKind.USER_OUTPUT)
