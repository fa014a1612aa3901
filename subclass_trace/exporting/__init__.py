"""Export: a module over wrapper tensors becomes a `torch.export.ExportedProgram` over the dense tensors inside of them.

>>> import torch, subclass_trace as st
>>> from subclass_trace.zoo import TwoTensor
>>> model = torch.nn.Linear(2, 3)
>>> model.weight = torch.nn.Parameter(TwoTensor(torch.ones(3, 2), torch.zeros(3, 2)))
>>> exported = st.export(model, (torch.ones(4, 2),))
>>> sorted(exported.program.state_dict)
['bias', 'weight.a', 'weight.b']
>>> x = torch.rand(4, 2)
>>> flat = exported.program.module()(*exported.flatten_inputs(x))
>>> torch.equal(exported.unflatten_outputs(flat).a, model(x).a)
True

The graph is the one that a region would run: there is no second trace. The program needs nothing of this package:
`torch.export.save`, AOTInductor and ``torch.onnx.export(dynamo=True)`` take it. See docs/deploying.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from .. import torch_api
from ..capture.capture import Captured
from ..capture.graphs import output_args
from ..capture.session import Session
from ..capture.tape import TracedBackward
from ..data.vocabulary import Writer
from ..errors import ExportError, SubclassTraceError
from ..frontends.specialization import traced_call
from ..options import Options
from ..plan import SizeOutput, ValueOutput
from ..plan.values import Output, Recipe
from ..runtime.backward import TRACE_LOCK
from ..runtime.sizes import evaluator, freeze
from ..runtime.tangents import with_unbacked
from ..state.place import GONE, Call
from ..state.rows import Row
from ..subclass.flatten import flatten
from ..subclass.paths import Path
from ..subclass.spec import Spec, leaf_count, leaf_paths, leaf_spans, leaf_ways, spec_leaves
from ..subclass.visit import rebuild
from .program import ProgramInput, ProgramOutput, build
from .results import check_recipe, made, numbers_in
from .sizes import history_of, ranges, unbacked_ranges, wanted_dims
from .state import FlatState, load_flat_state

__all__ = ["Exported", "export", "export_joint", "export_module", "load_flat_state"]

Tensor = torch.Tensor
pytree = torch_api.pytree


@dataclass(frozen=True, eq=False)
class Argument:
    """A tensor among the arguments: its place among the leaves of (args, kwargs), its spec, the names of its dense tensors."""

    position: int
    spec: Spec
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Exported:
    """A program, and what its dense inputs and outputs are made of.

    Attributes:
        program: the `torch.export.ExportedProgram`.
        state: the state of the module as dense tensors.
        arguments: the tensors that a call passes.
        gradients: of the joint form: the dense tensors that the gradients are of, in the order in which they follow the
            results;
        tangents: what such a program takes after the arguments (nothing, where the one result is a loss).
    """

    program: ExportedProgram
    state: FlatState
    arguments: tuple[Argument, ...]
    gradients: tuple[str, ...]
    tangents: tuple[str, ...]
    _tree: Any
    _recipe: Recipe
    _outputs: Mapping[int, tuple[Spec | None, slice]]
    _read: tuple[Row, ...] = ()

    def flatten_inputs(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """The dense tensors of a call, in the order in which the program takes them.

        Raises:
            ExportError: the arguments have another structure, or a tensor is another kind of wrapper.
        """
        leaves, tree = pytree.tree_flatten((args, kwargs))
        if tree != self._tree:
            raise ExportError("the arguments have another structure", path="args", expected=self._tree, got=tree)
        for row in self._read:  # numbers, texts: they are in the program
            try:
                holds = row.holds(Call(args, kwargs))
            except GONE:
                holds = False
            if not holds:
                fix = "export once more for it"
                raise ExportError(
                    "an argument is not what it was exported with", path=row.place, expected=row.code, fix=fix
                )
        found: list[Tensor] = []
        for a in self.arguments:
            name = a.names[0].partition(".")[0] if a.names else f"args[{a.position}]"
            dense, spec = flatten(leaves[a.position], Path(name))
            if [*_kinds(spec)] != [*_kinds(a.spec)]:
                expected, got = (", ".join(_kinds(s)) for s in (a.spec, spec))
                raise ExportError("an argument is of another kind", path=name, expected=expected, got=got)
            found += dense
        return tuple(found)

    def unflatten_outputs(self, flat: Sequence[Any]) -> Any:
        """What the function would give, of what the program gives."""
        flat = [flat] if isinstance(flat, Tensor) else list(flat)
        values: dict[int, Any] = {}
        for number, (spec, span) in self._outputs.items():
            if spec is None:
                values[number] = flat[span.start]
                continue
            leaves = flat[span]
            env = with_unbacked([*spec_leaves(spec)], [t.shape for t in leaves], {})
            with torch.no_grad():
                values[number] = rebuild(spec, iter(leaves), evaluator(env))
        return made(self._recipe, [values.get(k) for k in range(max(values, default=-1) + 1)])

    def run(self, *args: Any, tangents: Sequence[Tensor] = ()) -> Any:
        """Run the program for positional arguments, without compiling: its result, and of a joint program (result, gradients by
        name), for ``tangents`` where it takes some.

        Raises:
            ExportError: see `flatten_inputs`; or another number of tangents.
        """
        if len(tangents) != len(self.tangents):
            raise ExportError(
                "another number of tangents", path="tangents", expected=len(self.tangents), got=len(tangents)
            )
        state = {**self.program.state_dict, **self.program.constants}
        given = [state[s.target] for s in self.program.graph_signature.input_specs if s.target is not None]
        with torch.no_grad():
            flat = self.program.graph_module(*given, *self.flatten_inputs(*args), *tangents)
        flat = list(flat)[len(flat) - self._shown - len(self.gradients) :]
        result = self.unflatten_outputs(flat[: self._shown])
        return (result, dict(zip(self.gradients, flat[self._shown :], strict=True))) if self.gradients else result

    @property
    def _shown(self) -> int:
        return max((span.stop for _, span in self._outputs.values()), default=0)

    def flatten_state_dict(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `FlatState.flatten`: what safetensors can hold."""
        return self.state.flatten(state_dict)

    def unflatten_state_dict(self, flat: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `FlatState.unflatten`."""
        return self.state.unflatten(flat)

    def describe(self) -> dict[str, Any]:
        """The wrappers of state, arguments and results, as JSON holds them: class, names, context.

        Raises:
            ExportError: a context cannot be described.
        """
        writer = Writer()
        data = {
            "state": {e.name: writer.value(e.spec, e.name) for e in self.state.entries.values()},
            "tied": self.state.tied,
            "shared": self.state.shared,
            "arguments": [[[*a.names], writer.value(a.spec, str(a.names))] for a in self.arguments],
            "results": [[k, writer.value(spec, f"result {k}")] for k, (spec, _) in self._outputs.items()],
        }
        for gap in writer.gaps:
            raise ExportError("a context cannot be described", path=gap.path, got=gap.what)
        return data


def export(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    joint: bool = False,
    strict: bool = True,
) -> Exported:
    """Export a module, or a function, as a program over dense tensors.

    Args:
        args, kwargs: of an example call.
        dynamic_shapes: as of `torch.export.export`: argument -> dimension -> `torch.export.Dim`, or one of its hints.
        joint: the program gives gradients, too: of the loss, or for tangents that follow the arguments.
        strict: what a call would change besides tensors (an attribute, a list) is an error; else it is left out.

    Raises:
        ExportError: it cannot be exported; the path says what, the fix how it can.
    """
    if not isinstance(args, tuple):
        raise ExportError("args is no tuple", path="args", expected="a tuple of arguments", got=type(args).__name__)
    named, state = (
        dict(kwargs or {}),
        FlatState.of(function) if isinstance(function, torch.nn.Module) else FlatState({}, {}, {}, {}),
    )
    called = function.forward if isinstance(function, torch.nn.Module) else function
    wanted = wanted_dims(called, args, named, dynamic_shapes)
    paths, tree = pytree.tree_flatten_with_path((args, named))
    values = {_path(way): v for way, v in paths if isinstance(v, Tensor)}
    positions = {_path(way): k for k, (way, _) in enumerate(paths)}
    session = Session(dynamic=bool(wanted), decompositions={}, materialise=True)
    history = history_of(wanted, values)
    options = Options(frontend="trace")
    try:
        with torch_api.dynamo_lock(), TRACE_LOCK, torch.set_grad_enabled(joint or torch.is_grad_enabled()):
            captured, state_read, maker = traced_call(function, (args, named), options, history, session, True)
            backward = _backward(captured) if joint else None
            graph = captured.forward_graph(in_place=False)[0] if backward is None else backward.joint
    except ExportError:
        raise
    except SubclassTraceError as error:
        parts = {"path": error.path, "expected": error.expected, "got": error.got, "fix": error.fix}
        raise ExportError(f"it cannot be traced: {error.what}", **parts) from error
    read = tuple(row for row in state_read.rows if row.place.moves and not row.place.late)
    exporter = _Exporter(captured, graph, state, called, strict, read)
    return exporter.exported(maker.flat, values, positions, tree, wanted, backward)


def _backward(captured: Captured) -> TracedBackward:
    """The backward for the tangents that the results suggest.

    Raises:
        ExportError: there is none.
    """
    if captured.tape is None:
        raise ExportError(
            "no result is differentiable", path="joint", fix="let something require grad, or say joint=False"
        )
    return captured.tape.trace(captured.tape.guess())


def export_module(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Any = None, **options: Any) -> Exported:
    """`export` under the name that users of AOTAutograd look for (``aot_export_module``); ``trace_joint=`` is ``joint=``."""
    if "trace_joint" in options:
        options["joint"] = options.pop("trace_joint")
    return export(module, args, kwargs, **options)


def export_joint(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any = None, **options: Any) -> Exported:
    """`export` with ``joint=True``: forward and backward in one program (``aot_export_joint_simple``)."""
    return export(function, args, kwargs, joint=True, **options)


def _path(way: Any) -> str:
    """``args[0]['mask']``"""
    first, *rest = way
    return f"{('args', 'kwargs')[first.idx]}{pytree.keystr(tuple(rest))}"


def _kinds(spec: Spec) -> list[str]:
    leaves = [f"{s.dtype}, {len(s.size)} dimensions" for s in spec_leaves(spec)]
    return [getattr(getattr(spec, "cls", None), "__qualname__", "Tensor"), *leaves]


class _Exporter:
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
    ) -> Exported:
        captured = self.captured
        self._check_effects()
        recipe = captured.recipes.result
        check_recipe(recipe)
        reals, changed = self._reals(flat), self._changed()
        nodes = self._nodes()
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
        return Exported(program, self.state, arguments, gradients, tangents, tree, recipe, places, self.read)

    # ---------------------------------------------------------------- what cannot be
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
            raise ExportError("a call sets .grad", path=f"{row.path}.grad", fix="say joint=True, which gives gradients")
        for effect in captured.recipes.effects if self.strict else ():
            fix = "take it out of the function, or say strict=False: the program leaves it out"
            raise ExportError("a call changes Python state, which a program does not", path=str(effect.place), fix=fix)

    # ---------------------------------------------------------------- inputs
    def _reals(self, flat: Sequence[Any]) -> list[int]:
        """For each dense leaf of the trace, the id of the tensor that it stands for."""
        found: dict[int, int] = {}
        self._held: list[Tensor] = []
        for row in self.captured.inputs.rows:
            leaves = flatten(flat[row.position])[0]
            self._held += leaves
            found.update(zip(row.leaves, map(id, leaves), strict=True))
        return [found[k] for k in range(len(found))]

    def _nodes(self) -> dict[int, fx.Node]:
        """Number of a leaf -> its placeholder."""
        by_name = {str(n.target): n for n in self.graph.graph.find_nodes(op="placeholder")}
        return {k: by_name[f"primals_{n + 1}"] for k, n in enumerate(self.captured.inputs.leaf_primals)}

    def _add(
        self, name: str, kind: InputKind, value: Tensor, nodes: Mapping[int, fx.Node], persistent: Any = None
    ) -> None:
        number = next((k for k, real in enumerate(self._numbers) if real == id(value)), None)
        node = None if number is None else nodes[number]
        mode = self.captured.session.mode
        fake = mode.from_tensor(value.detach(), static_shapes=True) if node is None else node.meta["val"]
        self.target[id(value)] = name
        self.inputs[name] = ProgramInput(name, kind, node, fake, value, persistent)

    def _name_state(self, reals: list[int], nodes: Mapping[int, fx.Node], changed: set[int]) -> None:
        self._numbers = reals
        owner = {name: e for e in self.state.entries.values() for name in e.leaves}
        for name, tensor in self.state.tensors.items():
            entry = owner[name]
            trains = entry.value.requires_grad and tensor.is_floating_point() and id(tensor) not in changed
            if entry.kind == "parameter" and trains:
                self._add(name, InputKind.PARAMETER, tensor, nodes)
            else:
                self._add(name, InputKind.BUFFER, tensor, nodes, entry.kind != "non-persistent")

    def _name_arguments(
        self, values: Mapping[str, Tensor], positions: Mapping[str, int], nodes: Mapping[int, fx.Node]
    ) -> tuple[Argument, ...]:
        found = []
        names = self._argument_names()
        for path, value in values.items():
            leaves, spec = flatten(value, Path(path))
            known = [self.target[id(t)] for t in leaves if id(t) in self.target]
            if known or len({*map(id, leaves)}) < len(leaves):
                raise ExportError(
                    "two dense tensors of the arguments, or of an argument and the module, are one object",
                    path=path,
                    got=known[0] if known else "two of its own",
                    fix="give the example different ones: a program takes each by itself",
                )
            for (name, kind), leaf in zip(
                ((n, InputKind.USER_INPUT) for n in leaf_paths(spec, names(path))), leaves, strict=True
            ):
                self._add(name, kind, leaf, nodes)
            found.append(Argument(positions[path], spec, tuple(leaf_paths(spec, names(path)))))
        return tuple(found)

    def _argument_names(self) -> Callable[[str], str]:
        """``args[0]`` -> the name of the parameter."""
        try:
            known = [
                p.name for p in inspect.signature(self.called).parameters.values() if p.kind is not p.VAR_POSITIONAL
            ]
        except (TypeError, ValueError):
            known = []

        def name(path: str) -> str:
            for k, known_name in enumerate(known):
                path = path.replace(f"args[{k}]", known_name, 1) if path.startswith(f"args[{k}]") else path
            return path.replace("kwargs['", "").replace("']", "") if path.startswith("kwargs['") else path

        return name

    def _name_others(self, reals: Sequence[int], nodes: Mapping[int, fx.Node]) -> None:
        """Tensors that the function comes upon otherwise: constants."""
        tensors = {id(t): t for t in self._held}
        inside = {
            k for row in self.captured.inputs.rows for k in row.leaves if getattr(row.descriptor.place, "moves", False)
        }
        for number, real in enumerate(reals):
            if real not in self.target:
                if number in inside:
                    raise ExportError(
                        "a tensor among the arguments is in an object that torch's pytrees do not take apart",
                        path=self.captured.inputs.leaf_paths[number],
                        fix="torch.export.register_dataclass, or pass it as an argument of its own",
                    )
                path = str(self.captured.inputs.leaf_paths[number])
                self._add(path, InputKind.CONSTANT_TENSOR, tensors[real], nodes)

    # ---------------------------------------------------------------- outputs
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
                "a call writes a tensor that is no state of the module", path=given.name, fix="register a buffer"
            )
        kind = OutputKind.BUFFER_MUTATION if given.kind is InputKind.BUFFER else OutputKind.USER_INPUT_MUTATION
        return ProgramOutput(node, kind, given.name)

    def _shown(self, recipe: Recipe, is_loss: bool) -> tuple[list[ProgramOutput], dict[int, tuple[Spec | None, slice]]]:
        """The results, and number of a flat output -> (how it is made, where its dense tensors are among them)."""
        outputs: list[ProgramOutput] = []
        places: dict[int, tuple[Spec | None, slice]] = {}
        numbers = sorted({*numbers_in(recipe)})
        for number in numbers:
            plan, start = self.captured.results.outputs[number], len(outputs)
            if isinstance(plan, ValueOutput):
                kind = OutputKind.LOSS_OUTPUT if is_loss and leaf_count(plan.spec) == 1 else OutputKind.USER_OUTPUT
                outputs += [ProgramOutput(n, kind) for n in self.results[self.spans[plan.value]]]
                places[number] = freeze(plan.spec), slice(start, len(outputs))
            elif isinstance(plan, SizeOutput):
                first = self.spans[-1].stop if self.spans else 0
                outputs.append(ProgramOutput(self.results[first + plan.index], OutputKind.USER_OUTPUT))
                places[number] = None, slice(start, start + 1)
            else:
                raise ExportError("a result is no value of the graph", path=str(self.captured.results.paths[number]))
        return outputs, places

    def _is_loss(self, recipe: Recipe) -> bool:
        """Is the result one dense number that can be differentiated?"""
        numbers = {*numbers_in(recipe)}
        plans = [self.captured.results.outputs[k] for k in numbers]
        found = [p for p in plans if isinstance(p, ValueOutput) and p.value in self.captured.differentiable]
        return len(found) == len(self.captured.differentiable) == 1 and getattr(found[0].spec, "size", None) == ()

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
                        torch.ops.aten.full.default, ([*value.shape], 1), {"dtype": value.dtype, "device": value.device}
                    )
                one.meta["val"] = value
                node.replace_all_uses_with(one)
            else:
                real = torch.ones([int(n) for n in value.shape], dtype=value.dtype, device=value.device)
                names.append(f"tangent_{number}")
                self.inputs[names[-1]] = ProgramInput(names[-1], InputKind.USER_INPUT, node, value, real)
        return tuple(names)

    def _gradients(self, backward: TracedBackward, reals: Sequence[int]) -> list[tuple[ProgramOutput, str]]:
        """The gradients, with the names of what they are of."""
        nodes, found = iter(self.results[backward.num_forward :]), list[tuple[ProgramOutput, str]]()
        for number, spec in zip(self.captured.differentiated, backward.grads, strict=True):
            row = self.captured.inputs.rows[number]
            own = [next(nodes) for _ in range(0 if spec is None else leaf_count(spec))]
            names = [self.target[reals[leaf]] for leaf in row.leaves]
            if spec is None or len(own) != len(names):  # of a dense bias under wrappers, a wrapper
                found += [
                    (ProgramOutput(node, OutputKind.USER_OUTPUT), ".".join((names[0], *way)))
                    for node, way in zip(own, leaf_ways(spec) if spec is not None else (), strict=True)
                ]
                continue
            for node, name in zip(own, names, strict=True):
                of_user = self.inputs[name].kind is InputKind.USER_INPUT
                kind = OutputKind.GRADIENT_TO_USER_INPUT if of_user else OutputKind.GRADIENT_TO_PARAMETER
                found.append((ProgramOutput(node, kind, name), name))
        return sorted(found, key=lambda row: row[0].kind is not OutputKind.USER_OUTPUT)  # torch wants these first
