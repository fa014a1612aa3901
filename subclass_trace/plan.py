"""Plans: what the run time does around the graphs of one specialization. Frozen; made by capture, read by runtime.

A call goes through these tables, from the top::

    flat arguments --InputPlan--> dense leaves --Primal--> inputs of the forward graph
    outputs of the forward graph = [*leaves of values, *symbolic sizes, *saved activations]
    values --MutationPlan--> written back into inputs
    values, inputs --OutputPlan--> flat results
    tangents of `differentiable` values --BackwardPlan--> gradients of inputs

Sizes in specs are ints or `SizeExpr`; `SymbolPlan` says where the symbols' values come from.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from .subclass.context import Unread
from .subclass.numbers import NumberPlace
from .subclass.paths import Path, owner_of
from .subclass.spec import RaggedSize, SizeExpr, Spec


# ---------------------------------------------------------------------------------------------- inputs
@dataclass(frozen=True, eq=False)
class InputPlan:
    """One distinct input tensor of the region.

    Attributes:
        path: where the user passes it.
        spec: what it must look like (guarded), and how it is taken apart.
        leaves: its dense leaves as places in the leaf table (one leaf may stand in several places).
        is_leaf: is it an autograd leaf? None where that does not matter: the region does not write it under autograd, and
            does not ask.
        position: where it stands among the flat arguments; None for a tensor that the function closes over.
        take_base: the input is the autograd base of the tensor at that position (docs/notes/views.md).
        constant: for a tensor that the function closes over: the tensor itself.
        is_parameter: is it an ``nn.Parameter``? None where the region does not ask.
        no_gradient: the region asks for its ``.grad``, and finds None.
        facts: (name, answer) of what else it asks; see `capture.facts`.
    """

    path: Path
    spec: Spec
    leaves: tuple[int, ...]
    is_leaf: bool | None
    position: int | None
    take_base: bool = False
    constant: torch.Tensor | None = None
    is_parameter: bool | None = None
    no_gradient: bool = False
    facts: tuple[tuple[str, Any], ...] = ()

    def of(self, flat: Sequence[Any]) -> torch.Tensor:
        """The input tensor of a call with these flat arguments."""
        if self.position is None:
            assert self.constant is not None
            return self.constant
        value = flat[self.position]
        base = value._base if self.take_base else None
        return value if base is None else base  # type: ignore[no-any-return]

    @property
    def requires_grad(self) -> bool:
        """Is it differentiated?"""
        return bool(self.spec.requires_grad)  # type: ignore[union-attr]


@dataclass(frozen=True)
class LeafPrimal:
    """A graph input that is dense leaf number ``leaf``.

    ``detached``: the leaf gets other memory in the call (``x.data = y``), while the backward may need what it had.
    """

    leaf: int
    detached: bool = False


@dataclass(frozen=True)
class SizePrimal:
    """A graph input that is a number: an outer size of a wrapper that no dense leaf carries."""

    size: Any


@dataclass(frozen=True)
class BasePrimal:
    """A graph input that is a flat view over the memory of several overlapping leaves, one of which is mutated.

    ``members[0]`` lies at the start of the range, if ``start_member`` is 0; ``numel`` elements of ``dtype``.
    """

    members: tuple[int, ...]
    numel: Any
    dtype: torch.dtype


Primal: TypeAlias = LeafPrimal | SizePrimal | BasePrimal


@dataclass(frozen=True)
class SymbolPlan:
    """Where a symbol's value comes from.

    A leaf's ``kind`` 'size', 'stride' or 'storage_offset', the 'item' that is the number in a leaf without dimensions, an
    input's outer 'size', an input's 'ragged' size (a nested int), an 'argument': the number at flat position ``dim``, or a
    'number' that the function finds in ``place``.
    """

    symbol: Any
    kind: str
    leaf: int | None
    input: int | None
    dim: int
    place: NumberPlace | None = None


# ---------------------------------------------------------------------------------------------- mutations
@dataclass(frozen=True, eq=False)
class MutationPlan:
    """What the region did to one input.

    Attributes:
        input: number of the input.
        value: number of the forward value that holds its new contents, or None (metadata alone).
        leaves: positions (within the input) of the leaves whose data is copied back.
        replaced: position -> "data" (new storage: ``leaf.data = new``) or "attribute" (the wrapper's attribute).
        memory: position of a replaced leaf whose memory was written before -> the forward value with what that holds.
        differentiable: autograd saw it, so that the input gets a new history.
        metadata: spec after the call when sizes, strides or offsets changed.
        attributes: Python attributes of the wrapper that the region changed.
        version_bumps: by how much the version counter moves.
        starts_grad: the region called ``requires_grad_()`` on it.
        stops_grad: the region detached it in place, or called ``requires_grad_(False)``.
        below: those of ``leaves`` that operations on the wrapper alone have written, which may be inference tensors.
        in_program: those of ``leaves`` that the program writes itself (docs/notes/in_place.md).
        moved: by how much that has moved the version counter of a dense input.
    """

    input: int
    value: int | None
    leaves: tuple[int, ...]
    replaced: Mapping[int, str] = field(default_factory=dict)
    memory: Mapping[int, int] = field(default_factory=dict)
    differentiable: bool = False
    metadata: Spec | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    version_bumps: int = 0
    starts_grad: bool = False
    stops_grad: bool = False
    below: tuple[int, ...] = ()
    in_program: tuple[int, ...] = ()
    moved: int = 0

    @property
    def copied(self) -> tuple[int, ...]:
        """The leaves that are still to be written when the program is done."""
        return tuple(k for k in self.leaves if k not in self.in_program)


@dataclass(frozen=True)
class OfResult:
    """Result number ``result``, as the owner of an attribute."""

    result: int


@dataclass(frozen=True, eq=False)
class AssignmentPlan:
    """What the region assigned: ``owner.<table>[name] = results[result]``.

    ``table`` is "_parameters", "_buffers", "_modules", or "__dict__" for a plain attribute; ``owner`` is a module, or the
    number of an input, or `OfResult` (then ``name`` may be dotted: of a wrapper inside). ``table`` is None where ``owner``
    is a dict (of globals, of an object's attributes) or a list itself, or a closure cell, which has no ``name``. ``anew``:
    the value is a container that the region makes, of which each call gets a new one.
    """

    owner: Any
    table: str | None
    name: Any
    result: int
    anew: bool = False

    def deliver(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        """Make the assignment in a call with these inputs and results."""
        owner: Any = self.owner
        value = _anew(results[self.result]) if self.anew else results[self.result]
        if isinstance(owner, int):
            owner, name = owner_of(inputs[owner], self.name)
            setattr(owner, name, value)
        elif isinstance(owner, OfResult):
            owner, name = owner_of(results[owner.result], self.name)
            setattr(owner, name, value)
        elif self.name is None:
            owner.cell_contents = value
        else:
            (owner if self.table is None else getattr(owner, self.table))[self.name] = value


def _anew(value: Any) -> Any:
    """A copy of a container and of the containers in it."""
    if type(value) is dict:
        return {k: _anew(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_anew, value))
    return copy.copy(value) if type(value) in (set, deque) else value


@dataclass(frozen=True, eq=False)
class CountPlan:
    """What the region moves on: ``owner.name += results[result]``; ``owner[name]`` where ``is_item`` (globals are items of a
    dict), the contents of a closure cell where ``name`` is None."""

    owner: Any
    name: Any
    is_item: bool
    result: int

    def deliver(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        """Count in a call."""
        owner, value = self.owner, results[self.result]
        if self.is_item:
            owner[self.name] += value
        elif self.name is None:
            owner.cell_contents += value
        else:
            setattr(owner, self.name, getattr(owner, self.name) + value)


@dataclass(frozen=True, eq=False)
class AppendPlan:
    """What the region adds to a list, a deque or a set: ``owner.append(results[result])``."""

    owner: Any
    result: int

    def deliver(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        """Add the value of a call."""
        (self.owner.add if isinstance(self.owner, set) else self.owner.append)(results[self.result])


@dataclass(frozen=True, eq=False)
class RemovalPlan:
    """What the region deletes: ``del owner.<table>[name]``; where ``table`` is None, ``owner`` is a dict or a set itself, or
    a list or a deque, which loses its last item (``name`` -1).

    ``result`` is the number of a result that is None.
    """

    owner: Any
    table: str | None
    name: Any
    result: int

    def deliver(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        """Delete it in a call, if it is there: what must be there is guarded."""
        holder = self.owner if self.table is None else getattr(self.owner, self.table)
        if isinstance(holder, set):
            holder.discard(self.name)
        elif isinstance(holder, (list, deque)):
            if holder:
                del holder[self.name]
        elif self.name in holder:
            del holder[self.name]


@dataclass(frozen=True, eq=False)
class HookPlan:
    """A hook that the region registers on a tensor from outside: ``owner.<method>(hook)``; ``owner`` may be the number of an
    input. ``result`` is the number of a result that is None."""

    owner: Any
    method: str
    hook: Any
    result: int

    def deliver(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        """Register it in a call."""
        getattr(inputs[self.owner] if isinstance(self.owner, int) else self.owner, self.method)(self.hook)


@dataclass(frozen=True, eq=False)
class SettingPlan:
    """A setting of torch that the region changes (its default dtype): ``owner(results[result])`` sets it."""

    owner: Callable[[Any], None]
    result: int

    def deliver(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        """Set it in a call."""
        self.owner(results[self.result])


#: what a region does to Python state in each call
StatePlan: TypeAlias = AssignmentPlan | CountPlan | AppendPlan | RemovalPlan | SettingPlan | HookPlan


# ---------------------------------------------------------------------------------------------- outputs
@dataclass(frozen=True, eq=False)
class ConstantOutput:
    """Not a tensor, or a real tensor that the region only passed through."""

    value: Any


@dataclass(frozen=True)
class SizeOutput:
    """Symbolic number ``index`` of the forward graph."""

    index: int


@dataclass(frozen=True)
class RaggedOutput:
    """The ragged size (a nested int) of a jagged input."""

    size: Any


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
    """One call of the user's that leads from a tensor to a view of it, or that changes the shape of a view in place.

    ``grad``: grad mode at the call; ``item``: which of several results.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grad: bool
    item: int | None
    in_place: bool


@dataclass(frozen=True)
class ViewSteps:
    """Replays calls one after the other, each in its own grad mode: where one function of autograd is not enough."""

    steps: tuple[ViewStep, ...]

    def __call__(self, base: torch.Tensor) -> torch.Tensor:
        """The view of ``base``."""
        value: Any = base
        for step in self.steps:
            with torch.set_grad_enabled(step.grad):
                out = step.function(value, *step.args, **step.kwargs)
            value = out if step.item is None else out[step.item]
        return value  # type: ignore[no-any-return]

    @property
    def version_bumps(self) -> int:
        """How many of the calls move the version counter."""
        return sum(step.in_place for step in self.steps)


@dataclass(frozen=True)
class StridedView:
    """A view of a dense base by its place in the memory, ``delta`` elements after the start of the base."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    delta: int

    def __call__(self, base: torch.Tensor) -> torch.Tensor:
        """The view of ``base``."""
        return base.as_strided(self.size, self.stride, base.storage_offset() + self.delta)


@dataclass(frozen=True, eq=False)
class SymbolicView:
    """Autograd's function of a view whose sizes differ between calls; ``sizes`` in the order in which it asks for them."""

    function: Callable[..., torch.Tensor]
    sizes: tuple[Any, ...]

    def at(self, env: Mapping[Any, int]) -> Callable[[torch.Tensor], torch.Tensor]:
        """The function with the sizes of one call."""
        sizes = [s.evaluate(env) if isinstance(s, (SizeExpr, RaggedSize)) else s for s in self.sizes]

        def replay(base: torch.Tensor) -> torch.Tensor:
            following = iter(sizes)
            return self.function(base, symint_visitor_fn=lambda _: next(following))

        return replay

    def __call__(self, base: torch.Tensor) -> torch.Tensor:
        """With the sizes of the trace."""
        return self.function(base)


Replay: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class ViewOutput:
    """A view of an input, or of a forward value: the recorded view operations are replayed on the real base.

    ``one_of_several``: a member of ``split`` and the like, which autograd protects from in-place operations.
    ``early``: made of an input as it comes in, before the region's change of its shape is delivered.
    ``ahead``: made of an input before the region's autograd node: see `capture.gradient_order`.
    ``dangling``: its history leads to no input, but to a leaf of the region's own, which nobody sees.
    ``base`` counts inputs, or forward values and after these the rows of ``Plan.detached``; ``replay`` None: that itself.
    """

    base: int
    of_input: bool
    replay: Replay | None
    requires_grad: bool
    spec: Spec
    attributes: Mapping[str, Any] = field(default_factory=dict)
    one_of_several: bool = False
    starts_grad: bool = False
    early: bool = False
    ahead: bool = False
    dangling: bool = False

    @property
    def version_bumps(self) -> int:
        """By how much making it moves the version counter that it shares with its base."""
        return self.replay.version_bumps if isinstance(self.replay, ViewSteps) else 0


@dataclass(frozen=True, eq=False)
class Detached:
    """``detach()`` of an input, of a forward value, or (``replay``) of a view of one: it shares its version counter."""

    base: int
    of_input: bool
    replay: Replay | None


@dataclass(frozen=True, eq=False)
class ValueOutput:
    """Forward value ``value``. ``attributes`` are Python attributes that the region set on it."""

    value: int
    spec: Spec
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LeafAlias:
    """Where a dense leaf of a forward value lies: in the memory of another tensor of the call.

    Attributes:
        value: the forward value that holds the other tensor; None for an input leaf.
        leaf: which leaf of that value, or of the inputs.
        delta: bytes from the start of the other tensor to the start of this one.
        same: it is that very tensor.
    """

    value: int | None
    leaf: int
    delta: Any
    same: bool


@dataclass(frozen=True, eq=False)
class ValueAlias:
    """A forward value that shares memory with an input or with another value.

    Attributes:
        value: its number.
        spec: with the layout of its leaves.
        leaves: for each leaf the tensor whose memory it lies in, or None.
        holder: (input number, attribute names) when the value is a wrapper inside that input: the very object.
        within: it has a history, so that the memory is shared before autograd sees the value.
        version: of the value, which has a counter of its own.
    """

    value: int
    spec: Spec
    leaves: tuple[LeafAlias | None, ...]
    holder: tuple[int, tuple[str, ...]] | None = None
    within: bool = False
    version: int = 0


OutputPlan: TypeAlias = ConstantOutput | SizeOutput | RaggedOutput | InputOutput | SameOutput | ViewOutput | ValueOutput


# ---------------------------------------------------------------------------------------------- containers
@dataclass(frozen=True)
class ContainerItem:
    """Something that a container holds after the call: the item ``before`` of before, or the new value ``new``."""

    before: Any = None
    new: int | None = None


@dataclass(frozen=True, eq=False)
class ReturnedContainer:
    """Stands in the result for a list or dict that the region did not make: the one at ``keys`` of ``(args, kwargs)``, or
    of what ``read()`` finds. Either is looked up before the region does anything: it may put another one there."""

    keys: tuple[Hashable, ...] = ()
    read: Callable[[], Any] | None = None


@dataclass(frozen=True)
class ContainerChange:
    """What the region did to a list or dict among its arguments.

    Attributes:
        keys: the way to it from ``(args, kwargs)``.
        items: all items afterwards, in their order, each with its key (a number, for a list).
        replaced: keys whose items differ; the others keep theirs.
        reordered: a dict's keys stand in another order than additions and removals make.
    """

    keys: tuple[Hashable, ...]
    items: tuple[tuple[Any, ContainerItem], ...]
    replaced: frozenset[Any]
    reordered: bool = False

    def deliver(self, container: Any, old: Any, new: Sequence[Any]) -> None:
        """Change the caller's container; ``old`` is a copy of it, ``new`` are the new values of the call."""
        made = [(key, old[i.before] if i.new is None else new[i.new]) for key, i in self.items]
        if not isinstance(container, dict):
            container.clear()
            container.extend(value for _, value in made)
            return
        for key in [k for k in container if k not in {key for key, _ in made}]:
            del container[key]
        if self.reordered:
            container.clear()
        for key, value in made:
            if self.reordered or key in self.replaced:
                container[key] = value


# ---------------------------------------------------------------------------------------------- saved activations
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


# ---------------------------------------------------------------------------------------------- the plan
@dataclass(frozen=True, eq=False)
class Plan:
    """Everything the run time needs of one specialization, apart from the compiled graphs."""

    inputs: tuple[InputPlan, ...]
    positions: tuple[int | None, ...]  # flat position -> input number; None where it is no tensor
    through_base: frozenset[int]  # positions whose tensor is a view, represented by its autograd base
    assignments: tuple[StatePlan, ...]
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
    out_tree: Any
    differentiable: tuple[int, ...]
    differentiated: tuple[int, ...]  # inputs that get a gradient, in the order of the backward's outputs
    grad_mode_after: bool | None
    saved: tuple[SavedValue, ...]
    offsets_matter: bool  # the graphs hold absolute storage offsets (as_strided), or the region asks for one
    aliases: tuple[ValueAlias, ...] = ()
    unbacked: tuple[tuple[Any, int], ...] = ()  # symbols that depend on values inside tensors -> number of size output
    fresh_leaves: tuple[int, ...] = ()  # values that the region made autograd leaves (`requires_grad_()`)
    inference: tuple[
        tuple[int, tuple[bool, ...]], ...
    ] = ()  # value -> is it, and each of its leaves, of inference mode?
    dangling: tuple[int, ...] = ()  # values that require grad, but whose history leads to no input
    detached: tuple[Detached, ...] = ()
    versions: tuple[tuple[int, int], ...] = ()  # values that the region wrote to in place -> their version
    watched_inputs: tuple[int, ...] = ()  # wrappers whose version counter stands for a saved leaf's
    independent: tuple[tuple[int, ...], ...] = ()  # groups of differentiable values: see `capture.tape.independent`
    containers: tuple[
        ContainerChange | ReturnedContainer, ...
    ] = ()  # of which ``out_tree`` is ``(result, [new items])``
    unread: tuple[Unread, ...] = ()  # values of contexts that no guard compares, since the trace read none of them

    @property
    def compared_inputs(self) -> tuple[int, ...]:
        """Watched inputs that are differentiated, as places among those: at hand in the backward, so that their version
        is compared there, which is a fifth of what saving them costs."""
        place = {number: k for k, number in enumerate(self.differentiated)}
        return tuple(place[i] for i in self.watched_inputs if i in place)

    @property
    def kept_inputs(self) -> tuple[int, ...]:
        """The other watched inputs: they are saved, and autograd compares."""
        return tuple(i for i in self.watched_inputs if i not in self.differentiated)

    @property
    def trains(self) -> bool:
        """Has the region a differentiable output?"""
        return bool(self.differentiable)

    @property
    def forward_leaves(self) -> int:
        """How many dense tensors the forward graph returns before sizes and saved activations."""
        from .subclass.spec import leaf_count

        return sum(leaf_count(s) for s in self.values)
