"""How the arguments of a call become inputs of its graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..subclass.paths import Path
from ..subclass.spec import Spec


@dataclass(frozen=True, eq=False)
class InputPlan:
    """One distinct input tensor of the region.

    Attributes:
        path: where the user passes it.
        spec: what it must look like (guarded), and how it is taken apart.
        leaves: its dense leaves as places in the leaf table (one leaf may stand in several places).
        is_leaf: is it an autograd leaf? None where that does not matter: the region does not write it under autograd, and
            does not ask.
        position: where it stands among the flat arguments.
        no_gradient: the region asks for its ``.grad``, and finds None.
        of_gradient: the input is the ``.grad`` of the tensor at that position.
        grad_dtype: of the gradients that it asks for (None: any).
        facts: (name, answer) of what else it asks; see `capture.metadata`.
    """

    path: Path
    spec: Spec
    leaves: tuple[int, ...]
    is_leaf: bool | None
    position: int
    no_gradient: bool = False
    of_gradient: bool = False
    grad_dtype: torch.dtype | None = None
    facts: tuple[tuple[str, Any], ...] = ()

    def of(self, flat: Sequence[Any]) -> torch.Tensor:
        """The input tensor of a call with these flat arguments. (None for a gradient that is not there.)"""
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

    A leaf's 'size', 'stride' or 'storage_offset', an input's 'size', or its 'ragged' one (a nested int), or an 'argument': that
    at flat position ``dim``.
    """

    symbol: Any
    kind: str
    leaf: int | None
    input: int | None
    dim: int
