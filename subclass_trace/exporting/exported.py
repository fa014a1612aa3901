"""What an export gives: the program, and what its dense inputs and outputs are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from ..data.vocabulary import Writer
from ..errors import ExportError
from ..plan.values import Recipe
from ..runtime.sizes import evaluator
from ..runtime.tangents import with_unbacked
from ..state.place import GONE, Roots
from ..state.rows import Row
from ..subclass.flatten import flatten
from ..subclass.paths import Path
from ..subclass.spec import Spec, spec_leaves
from ..subclass.visit import rebuild
from ..torch_api.symbols import size_symbol
from ..torch_api.trees import pytree as torch_pytree
from .results import made
from .state import FlatState

Tensor = torch.Tensor
pytree = torch_pytree


@dataclass(frozen=True, eq=False)
class Argument:
    """A tensor among the arguments: its place among the leaves of (args, kwargs), its spec, the
    names of its dense tensors."""

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
        gradients: of the joint form: the dense tensors that the gradients are of, in the order in
            which they follow the results;
        tangents: what such a program takes after the arguments (nothing, where the one result is a
            loss).
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
            ExportError: the arguments have another structure, a tensor is another kind of wrapper,
                or of another size.
        """
        known = self._tree.unflatten([None] * self._tree.num_leaves)[1]
        kwargs = {name: kwargs[name] for name in (*known, *kwargs) if name in kwargs}
        leaves, tree = pytree.tree_flatten((args, kwargs))
        if tree != self._tree:
            raise ExportError(
                "the arguments have another structure", path="args", expected=self._tree, got=tree
            )
        for row in self._read:  # numbers, texts: they are in the program
            try:
                holds = row.holds(Roots(args, kwargs))
            except GONE:
                holds = False
            if not holds:
                fix = "export once more for it"
                raise ExportError(
                    "an argument is not what it was exported with",
                    path=row.place,
                    expected=row.code,
                    fix=fix,
                )
        found: list[Tensor] = []
        for a in self.arguments:
            name = a.names[0].partition(".")[0] if a.names else f"args[{a.position}]"
            dense, spec = flatten(leaves[a.position], Path(name))
            if [*_kinds(spec)] != [*_kinds(a.spec)]:
                expected, got = (", ".join(_kinds(s)) for s in (a.spec, spec))
                raise ExportError(
                    "an argument is of another kind", path=name, expected=expected, got=got
                )
            found += dense
        self._check_sizes(found)
        return tuple(found)

    def _check_sizes(self, leaves: Sequence[Tensor]) -> None:
        specs = self.program.graph_signature.input_specs
        names = [s.arg.name for s in specs if s.kind is InputKind.USER_INPUT]
        traced = {n.name: n.meta["val"] for n in self.program.graph.nodes if n.op == "placeholder"}
        sizes: dict[Any, int] = {}
        for leaf, name in zip(leaves, names, strict=False):  # tangents follow
            for expected, size in zip(traced[name].shape, leaf.shape, strict=True):
                symbol = size_symbol(expected)
                bounds = self.program.range_constraints.get(symbol)
                known = sizes.setdefault(symbol, size) if symbol is not None else expected
                within = bounds is None or bounds.lower <= size <= bounds.upper
                if not within or (isinstance(known, int) and known != size):
                    raise ExportError(
                        "an argument is of another size",
                        path=name,
                        expected=f"{[*traced[name].shape]}, {bounds or 'as it was'}",
                        got=[*leaf.shape],
                        fix="export once more for it, or with dynamic_shapes",
                    )

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
        """Run the program for positional arguments, without compiling: its result, and of a joint
        program (result, gradients by name), for ``tangents`` where it takes some. What it writes to
        buffers and arguments is written: to those of ``program.state_dict``.

        Raises:
            ExportError: see `flatten_inputs`; or another number of tangents.
        """
        if len(tangents) != len(self.tangents):
            raise ExportError(
                "another number of tangents",
                path="tangents",
                expected=len(self.tangents),
                got=len(tangents),
            )
        state = {**self.program.state_dict, **self.program.constants}
        signature = self.program.graph_signature
        held = [state[s.target] for s in signature.input_specs if s.target is not None]
        given = [*held, *self.flatten_inputs(*args), *tangents]
        places = {s.arg.name: k for k, s in enumerate(signature.input_specs)}
        with torch.no_grad():
            flat = self.program.graph_module(*given)
            for row, value in zip(signature.output_specs, flat, strict=True):
                if row.kind is OutputKind.USER_INPUT_MUTATION:
                    given[places[row.target]].copy_(value)
                elif row.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
                    state[row.target].copy_(value)
        flat = list(flat)[len(flat) - self._shown - len(self.gradients) :]
        result = self.unflatten_outputs(flat[: self._shown])
        return (
            (result, dict(zip(self.gradients, flat[self._shown :], strict=True)))
            if self.gradients
            else result
        )

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
            "results": [
                [k, writer.value(spec, f"result {k}")] for k, (spec, _) in self._outputs.items()
            ],
        }
        for gap in writer.gaps:
            raise ExportError("a context cannot be described", path=gap.path, got=gap.what)
        return data


def _kinds(spec: Spec) -> list[str]:
    leaves = [f"{s.dtype}, {len(s.size)} dimensions" for s in spec_leaves(spec)]
    return [getattr(getattr(spec, "cls", None), "__qualname__", "Tensor"), *leaves]
