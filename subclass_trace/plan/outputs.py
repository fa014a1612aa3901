"""How each result of a call is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..subclass.spec import RaggedSize, SizeExpr, Spec


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


Replay: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class ViewOutput:
    """A view of an input, or of a forward value: the recorded view operations are replayed on the real base.

    ``base`` counts inputs, or forward values.
    """

    base: int
    of_input: bool
    replay: Replay | SymbolicView
    requires_grad: bool
    spec: Spec


@dataclass(frozen=True, eq=False)
class ValueOutput:
    """Forward value ``value``.

    ``protected``: eager has a view here of what the value does not know: autograd refuses to write to it.
    """

    value: int
    spec: Spec
    protected: bool = False


OutputPlan: TypeAlias = ConstantOutput | SizeOutput | InputOutput | SameOutput | ViewOutput | ValueOutput
