"""How each result of a call is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from ..subclass.spec import RaggedSize, SizeExpr, Spec


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
class GradientOutput:
    """The very object that is input number ``input``: the ``.grad`` of a tensor, which is no argument."""

    input: int


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
    ``before_grad``: made under autograd of an input that requires grad only afterwards.
    ``early``: made of an input as it comes in, before the region's change of its shape is delivered.
    ``base`` counts inputs, or forward values.
    """

    base: int
    of_input: bool
    replay: Replay
    requires_grad: bool
    spec: Spec
    attributes: Mapping[str, Any] = field(default_factory=dict)
    one_of_several: bool = False
    starts_grad: bool = False
    early: bool = False
    before_grad: bool = False


@dataclass(frozen=True, eq=False)
class ValueOutput:
    """Forward value ``value``. ``attributes`` are Python attributes that the region set on it.

    ``protected``: eager has a view here of what the value does not know: autograd refuses to write to it.
    """

    value: int
    spec: Spec
    attributes: Mapping[str, Any] = field(default_factory=dict)
    protected: bool = False


@dataclass(frozen=True)
class LeafAlias:
    """Where a dense leaf of a forward value lies: in the memory of another tensor of the call.

    Attributes:
        value: the forward value that holds the other tensor; None for an input leaf.
        leaf: which leaf of that value, or of the inputs.
        delta: bytes from the start of the other tensor to the start of this one.
        same: it is that very tensor.
        counted: it shares the version counter of the other one.
        lazy: are its conjugate bit and its negative bit set?
    """

    value: int | None
    leaf: int
    delta: Any
    same: bool
    counted: bool = False
    lazy: tuple[bool, bool] = (False, False)


@dataclass(frozen=True, eq=False)
class ValueAlias:
    """A forward value that shares memory with an input or with another value.

    Attributes:
        value: its number.
        spec: with the layout of its leaves.
        leaves: for each leaf the tensor whose memory it lies in, or None.
        holder: (input number, attribute names) when the value is a wrapper inside that input: the very object.
        within: it has a history, so that the memory is shared before autograd sees the value.
    """

    value: int
    spec: Spec
    leaves: tuple[LeafAlias | None, ...]
    holder: tuple[int, tuple[str, ...]] | None = None
    within: bool = False


OutputPlan: TypeAlias = (
    ConstantOutput | SizeOutput | RaggedOutput | InputOutput | GradientOutput | SameOutput | ViewOutput | ValueOutput
)
