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

import functools
from dataclasses import dataclass
from typing import Any

from ..subclass.context import Lent
from ..subclass.spec import Spec, leaf_count
from .inputs import BasePrimal as BasePrimal
from .inputs import InputPlan as InputPlan
from .inputs import LeafPrimal as LeafPrimal
from .inputs import Primal as Primal
from .inputs import SizePrimal as SizePrimal
from .inputs import SymbolPlan as SymbolPlan
from .inputs import gradient_of as gradient_of
from .mutations import MutationPlan as MutationPlan
from .outputs import ConstantOutput as ConstantOutput
from .outputs import GradientOutput as GradientOutput
from .outputs import InputOutput as InputOutput
from .outputs import LeafAlias as LeafAlias
from .outputs import OutputPlan as OutputPlan
from .outputs import Replay as Replay
from .outputs import SameOutput as SameOutput
from .outputs import SizeOutput as SizeOutput
from .outputs import SymbolicView as SymbolicView
from .outputs import ValueAlias as ValueAlias
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
class Plan:
    """Everything the run time needs of one specialization, apart from the compiled graphs."""

    inputs: tuple[InputPlan, ...]
    positions: tuple[int | None, ...]  # flat position -> input number; None where it is no tensor
    gradients: tuple[tuple[int, int], ...]  # inputs whose ``.grad`` becomes a flat output
    leaf_count: int
    primals: tuple[Primal, ...]
    symbols: tuple[SymbolPlan, ...]
    conditions: tuple[Any, ...]
    values: tuple[Spec, ...]
    saved_results: frozenset[int]  # saved values that share memory with a differentiable result that is a plain tensor
    detach_values: frozenset[int]  # flat positions among the forward outputs that must be detached to stay distinct
    size_outputs: int
    mutations: tuple[MutationPlan, ...]
    outputs: tuple[OutputPlan, ...]
    result: Recipe  # over the flat outputs, as are the side effects
    side_effects: tuple[SideEffect, ...]
    differentiable: tuple[int, ...]
    differentiated: tuple[int, ...]  # inputs that get a gradient, in the order of the backward's outputs
    grad_mode_after: bool | None
    saved: tuple[SavedValue, ...]
    offsets_matter: bool  # the graphs hold absolute storage offsets (as_strided), or the region asks for one
    aliases: tuple[ValueAlias, ...] = ()
    unbacked: tuple[tuple[Any, int], ...] = ()  # symbols that depend on values inside tensors -> number of size output
    watched_inputs: tuple[int, ...] = ()  # wrappers of which a leaf is saved: a write to them shows in their version
    watched_values: tuple[int, ...] = ()  # results of that kind
    lent: tuple[Lent, ...] = ()  # objects in contexts that results have from the call's inputs

    @functools.cached_property
    def spent_values(self) -> frozenset[int]:
        """Values that are new contents of inputs, and nothing else, which the program has written there itself."""
        done = (m.value for m in self.mutations if m.in_program and not m.copied and m.value is not None)
        return frozenset(done)

    @property
    def trains(self) -> bool:
        """Has the region a differentiable output?"""
        return bool(self.differentiable)

    @property
    def forward_leaves(self) -> int:
        """How many dense tensors the forward graph returns before sizes and saved activations."""
        return sum(map(leaf_count, self.values))
