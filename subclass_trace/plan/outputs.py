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
    ``base`` counts inputs, or forward values.
    """

    base: int
    of_input: bool
    replay: Replay
    requires_grad: bool
    spec: Spec
    attributes: Mapping[str, Any] = field(default_factory=dict)
    one_of_several: bool = False


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
        within: it has a history, so that the memory is shared before autograd sees the value.
    """

    value: int
    spec: Spec
    leaves: tuple[LeafAlias | None, ...]
    within: bool = False


OutputPlan: TypeAlias = (
    ConstantOutput | SizeOutput | InputOutput | GradientOutput | SameOutput | ViewOutput | ValueOutput
)
