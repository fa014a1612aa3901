"""Plans: what the run time does around the graphs of one specialization. Frozen; made by capture,
read by runtime.

A call goes through these tables, from the top::

    flat arguments --InputPlan--> dense leaves --Primal--> inputs of the forward graph
    outputs of the forward graph = [*leaves of values, *symbolic sizes, *saved activations]
    values --MutationPlan--> written back into inputs
    values, inputs --OutputPlan--> flat results
    tangents of `differentiable` values --> gradients of inputs

Sizes in specs are ints or `SizeExpr`; `SymbolPlan` says where the symbols' values come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from ..subclass.paths import Path
from ..subclass.spec import Spec, leaf_count
from ..torch_api.lines import location_text
from .descriptors import AnyDescriptor, Descriptor, Input, forward_descriptors
from .values import Recipe


# ---- inputs
@dataclass(frozen=True, eq=False)
class InputPlan:
    """One distinct input tensor of the region.

    Attributes:
        path: where the user passes it.
        spec: what it must look like (guarded), and how it is taken apart.
        leaves: its dense leaves as places in the leaf table (one leaf may stand in several places).
        position: where it stands among the flat arguments.
        of_gradient: the input is the ``.grad`` of the tensor at that position.
        grad_dtype: of the gradients that it asks for (None: any).
        facts: (name, answer) of what the region asks of it; see `capture.metadata`.
    """

    path: Path
    spec: Spec
    leaves: tuple[int, ...]
    position: int
    of_gradient: bool = False
    grad_dtype: torch.dtype | None = None
    facts: tuple[tuple[str, Any], ...] = ()

    def of(self, flat: Sequence[Any]) -> torch.Tensor:
        """The input tensor of a call with these flat arguments. (None for a gradient that is not
        there.)"""
        value = flat[self.position]
        found: Any = gradient_of(value) if self.of_gradient else value
        return found  # type: ignore[no-any-return]

    @property
    def requires_grad(self) -> bool:
        """Is it differentiated?"""
        return bool(self.spec.requires_grad)  # type: ignore[union-attr]


def gradient_of(x: Any) -> torch.Tensor | None:
    """Its ``.grad``. (Asked of a tensor that is no leaf and keeps none, torch would warn.)"""
    return x.grad if isinstance(x, torch.Tensor) and (x.is_leaf or x.retains_grad) else None


@dataclass(frozen=True)
class LeafPrimal:
    """A graph input that is dense leaf number ``leaf``."""

    leaf: int


@dataclass(frozen=True)
class SizePrimal:
    """A graph input that is a number: an outer size of a wrapper that no dense leaf carries."""

    size: Any


Primal: TypeAlias = LeafPrimal | SizePrimal


@dataclass(frozen=True)
class SymbolPlan:
    """Where a symbol's value comes from.

    Attributes:
        kind, number: a "leaf", an "input", or what is at this position of the "flat" arguments.
        attribute: of it: ``.shape[0]``; none of a flat argument, which is a number.
        ragged: the symbol is a nested int, which stands in no condition.
    """

    symbol: Any
    kind: str
    number: int
    attribute: str = ""
    ragged: bool = False


# ---- results
@dataclass(frozen=True, eq=False)
class ConstantOutput:
    """A real tensor that the region only passed through."""

    value: Any


@dataclass(frozen=True)
class SizeOutput:
    """Symbolic number ``index`` of the forward graph."""

    index: int


@dataclass(frozen=True)
class InputOutput:
    """The very object that came in at this position of the flat arguments."""

    position: int


@dataclass(frozen=True)
class SameOutput:
    """The very object that is result number ``result``."""

    result: int


@dataclass(frozen=True, eq=False)
class ViewStep:
    """One view operation: ``operation(base, *args, **kwargs)``; of several results number
    ``which``.

    Numbers among the arguments may be `SizeExpr` or `RaggedSize`.
    """

    operation: Any
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    which: int | None = None


@dataclass(frozen=True, eq=False)
class ViewOutput:
    """A view of an input, or of a forward value: the view operations are called on the real base,
    one after the other.

    ``base`` counts inputs, or forward values.
    """

    base: int
    of_input: bool
    steps: tuple[ViewStep, ...]
    requires_grad: bool
    spec: Spec


@dataclass(frozen=True, eq=False)
class ValueOutput:
    """Forward value ``value``.

    ``protected``: eager has a view here of what the value does not know: autograd refuses to write
    to it.
    ``parameter``: the region has made it an ``nn.Parameter``.
    """

    value: int
    spec: Spec
    protected: bool = False
    parameter: bool = False


@dataclass(frozen=True)
class SharedLeaf:
    """A dense leaf of a forward value that is a tensor of the call: leaf ``number`` of the inputs
    (``kind`` "input"), or of the forward values ("value"); or what that leaf of the inputs has as
    its ``detach()``, or ``data``."""

    kind: str
    number: int


OutputPlan: TypeAlias = (
    ConstantOutput | SizeOutput | InputOutput | SameOutput | ViewOutput | ValueOutput
)


# ---- what a call changes
@dataclass(frozen=True, eq=False)
class MutationPlan:
    """The region writes to one input.

    Attributes:
        input: number of the input.
        value: number of the forward value that holds its new contents.
        leaves: positions (within the input) of the leaves whose data is written.
        differentiable: autograd saw it, so that the input gets a new history.
        moved: by how much the version counter of the input moves: 0 for a write to ``x.data``, or
            to an inner tensor. None: by what is written, since other inputs may share it.
        writes: how many operations write its memory: what the counter of a dense input moves by
            where the recorded graph runs.
    """

    input: int
    value: int
    leaves: tuple[int, ...]
    differentiable: bool = False
    moved: int | None = None
    writes: int = 0


@dataclass(frozen=True, eq=False)
class SideEffect:
    """One thing that is written.

    Attributes:
        place: where what is written stands (`state.place.Place`); of ``print`` its options.
        table: how such a thing is written; see `state.writes.Table`.
        how: "put": ``thing[key] = value``, or the key is taken away where there is no value;
            "extend": values at the end of a list or a deque; "fill": all that a container holds, in
            order.
    """

    place: Any
    table: Any
    how: str
    keys: tuple[Any, ...]
    values: tuple[Recipe, ...]


# ---- the plan
@dataclass(frozen=True)
class SavedValue:
    """One value kept for the backward: what an output of the forward graph, and an input of the
    backward graph, is.

    Attributes:
        name: the node of the trace; see `capture.graphs.trace_name`.
        is_tensor: False for a symbolic size.
        path: the input's path when it is an input, else None.
        where: ``file:line`` of the user's code that made it, or the path of the module.
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

    @property
    def short_operation(self) -> str:
        """``relu``"""
        return self.operation.removeprefix("aten.").removesuffix(".default")

    def __str__(self) -> str:
        if self.path is not None:
            return f"saved: {self.path}"
        place = f" at {location_text(self.where)}" if self.where else ""
        return f"saved: {self.short_operation}{place}"


@dataclass(frozen=True)
class TensorKind:
    """What of one tensor, an input or inside of one, no size says: a call has the same.

    ``keys``: its dispatch keys, as a number that this build of torch knows.
    """

    cls: type
    keys: int
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    def text(self, other: TensorKind) -> str:
        """In what it differs from another one."""
        rows = (
            ("class", self.cls.__qualname__, other.cls.__qualname__),
            ("dtype", self.dtype, other.dtype),
            ("device", self.device, other.device),
            ("requires_grad", self.requires_grad, other.requires_grad),
            ("dispatch keys", self.keys, other.keys),
        )
        return ", ".join(f"{name} {mine}" for name, mine, theirs in rows if mine != theirs)


@dataclass(frozen=True, eq=False)
class PlanInputs:
    """How a call becomes the inputs of the graphs.

    Attributes:
        rows: the distinct tensors of a call.
        leaf_count: how many distinct dense leaves they have.
        primals: what each graph input is made of.
        symbols: where a call tells the sizes that are symbols.
        conditions: what must hold of them.
        offsets_matter: the graphs hold absolute storage offsets (``as_strided``), or the region
            asks for one.
        alias: how inputs and leaves share memory, where that decided the trace; see
            `capture.aliasing`.
        kinds: of each input, and of the tensors inside of it, in flatten order.
        described: what each graph input is.
    """

    rows: tuple[InputPlan, ...]
    leaf_count: int
    primals: tuple[Primal, ...]
    symbols: tuple[SymbolPlan, ...]
    conditions: tuple[Any, ...]
    offsets_matter: bool
    alias: tuple[Any, ...] | None = None
    kinds: tuple[TensorKind, ...] = ()
    described: tuple[Descriptor, ...] = ()

    def descriptor(self, number: int) -> Input:
        """What an input is, as a whole."""
        path = str(self.rows[number].path)
        leaves = (leaf for d in self.described if isinstance(d, Input) for leaf in (d, *d.also))
        return replace(next(leaf for leaf in leaves if leaf.path == path), leaf=(), also=())


@dataclass(frozen=True, eq=False)
class PlanResults:
    """How results are made of what the forward graph returns.

    Attributes:
        values: specs of the forward values, whose leaves the graph returns.
        outputs: how each flat output is made; ``recipe``: how the result is made of them.
        detach_values: flat positions among the forward outputs that must be detached to stay
            distinct.
        size_outputs: how many symbolic numbers follow the leaves of the values.
        shared: places among the leaves of the values -> the tensor of the call that such a leaf is.
        unbacked: symbols that depend on values inside tensors -> number of the size output.
        described: what each forward value is; ``paths``: what each flat output is.
    """

    values: tuple[Spec, ...]
    outputs: tuple[OutputPlan, ...]
    recipe: Recipe
    detach_values: frozenset[int]
    size_outputs: int
    shared: Mapping[int, SharedLeaf] = field(default_factory=dict)
    unbacked: tuple[tuple[Any, int], ...] = ()
    described: tuple[AnyDescriptor, ...] = ()
    paths: tuple[Descriptor, ...] = ()

    @property
    def leaves_described(self) -> list[Any]:
        """What each output of the forward graph is, up to what it saves."""
        return forward_descriptors(self.described, self.values, self.size_outputs)

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
        watched_inputs, watched_values: wrappers of which a leaf is saved: what is written to them
            shows in their version.
        by_autograd: the forward program runs under autograd, which does the rest.
    """

    differentiable: tuple[int, ...]
    differentiated: tuple[int, ...]
    saved: tuple[SavedValue, ...]
    watched_inputs: tuple[int, ...] = ()
    watched_values: tuple[int, ...] = ()
    by_autograd: bool = False


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything the run time needs of one specialization, apart from the compiled graphs, in five
    parts."""

    inputs: PlanInputs
    results: PlanResults
    mutations: PlanMutations
    side_effects: tuple[SideEffect, ...]
    gradients: PlanGradients

    @property
    def trains(self) -> bool:
        """Has the region a differentiable output?"""
        return bool(self.gradients.differentiable)
