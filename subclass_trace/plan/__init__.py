"""Plans: what the run time does around the graphs of one specialization. Frozen; made by capture, read by runtime.

A call goes through these tables, from the top::

    flat arguments --InputPlan--> dense leaves --Primal--> inputs of the forward graph
    outputs of the forward graph = [*leaves of values, *symbolic sizes, *saved activations]
    values --MutationPlan--> written back into inputs
    values, inputs --OutputPlan--> flat results
    tangents of `differentiable` values --> gradients of inputs

Sizes in specs are ints or `SizeExpr`; `SymbolPlan` says where the symbols' values come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..subclass.spec import Spec, leaf_count
from .inputs import InputPlan as InputPlan
from .inputs import LeafPrimal as LeafPrimal
from .inputs import Primal as Primal
from .inputs import SizePrimal as SizePrimal
from .inputs import SymbolPlan as SymbolPlan
from .inputs import gradient_of as gradient_of
from .mutations import MutationPlan as MutationPlan
from .outputs import ConstantOutput as ConstantOutput
from .outputs import InputOutput as InputOutput
from .outputs import OutputPlan as OutputPlan
from .outputs import Replay as Replay
from .outputs import SameOutput as SameOutput
from .outputs import SizeOutput as SizeOutput
from .outputs import SymbolicView as SymbolicView
from .outputs import ValueOutput as ValueOutput
from .outputs import ViewOutput as ViewOutput
from .side_effects import SideEffect as SideEffect
from .values import Recipe as Recipe


@dataclass(frozen=True)
class SavedValue:
    """One value kept for the backward.

    Attributes:
        name: graph node.
        is_tensor: False for a symbolic size.
        path: the input's path when it is an input, else None.
        where: ``file:line`` of the user's code that made it.
        operation: the aten operation, or "input".
        shape, dtype: of the saved tensor.
        bytes: size of it; 0 for inputs (they are alive anyway) and sizes.
        reason: why it is kept: "partition", or "other tangents" (docs/notes/tangents.md).
    """

    name: str
    is_tensor: bool
    path: str | None
    where: str | None
    operation: str
    shape: tuple[Any, ...]
    dtype: str
    bytes: int
    reason: str


@dataclass(frozen=True, eq=False)
class PlanInputs:
    """How a call becomes the inputs of the graphs.

    Attributes:
        rows: the distinct tensors of a call.
        positions: flat position -> number of the input; None where it is no tensor.
        leaf_count: how many distinct dense leaves they have.
        primals: what each graph input is made of.
        symbols: where a call tells the sizes that are symbols.
        conditions: what must hold of them.
        offsets_matter: the graphs hold absolute storage offsets (``as_strided``), or the region asks for one.
    """

    rows: tuple[InputPlan, ...]
    positions: tuple[int | None, ...]
    leaf_count: int
    primals: tuple[Primal, ...]
    symbols: tuple[SymbolPlan, ...]
    conditions: tuple[Any, ...]
    offsets_matter: bool


@dataclass(frozen=True, eq=False)
class PlanResults:
    """How results are made of what the forward graph returns.

    Attributes:
        values: specs of the forward values, whose leaves the graph returns.
        outputs: how each flat output is made; ``recipe``: how the result is made of them.
        detach_values: flat positions among the forward outputs that must be detached to stay distinct.
        size_outputs: how many symbolic numbers follow the leaves of the values.
        unbacked: symbols that depend on values inside tensors -> number of the size output.
    """

    values: tuple[Spec, ...]
    outputs: tuple[OutputPlan, ...]
    recipe: Recipe
    detach_values: frozenset[int]
    size_outputs: int
    unbacked: tuple[tuple[Any, int], ...] = ()

    @property
    def forward_leaves(self) -> int:
        """How many dense tensors the forward graph returns before sizes and saved activations."""
        return sum(map(leaf_count, self.values))


@dataclass(frozen=True, eq=False)
class PlanMutations:
    """What a call changes of tensors that it was given.

    Attributes:
        rows: one for each input that is changed.
        gradients: (input, flat output that its ``.grad`` becomes).
        in_program: the program writes to the inputs itself.
    """

    rows: tuple[MutationPlan, ...]
    gradients: tuple[tuple[int, int], ...] = ()
    in_program: bool = False

    @property
    def spent_values(self) -> frozenset[int]:
        """Values that are new contents of inputs, which the program has written there itself."""
        return frozenset(m.value for m in self.rows if self.in_program)


@dataclass(frozen=True, eq=False)
class PlanGradients:
    """What the backward takes and gives.

    Attributes:
        differentiable: the values that get tangents.
        differentiated: the inputs that get a gradient, in the order of the backward's outputs.
        saved: what is kept for it.
        watched_inputs, watched_values: wrappers of which a leaf is saved: what is written to them shows in their version.
    """

    differentiable: tuple[int, ...]
    differentiated: tuple[int, ...]
    saved: tuple[SavedValue, ...]
    watched_inputs: tuple[int, ...] = ()
    watched_values: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything the run time needs of one specialization, apart from the compiled graphs, in five parts."""

    inputs: PlanInputs
    results: PlanResults
    mutations: PlanMutations
    side_effects: tuple[SideEffect, ...]
    gradients: PlanGradients

    @property
    def trains(self) -> bool:
        """Has the region a differentiable output?"""
        return bool(self.gradients.differentiable)
